"""What all tests share: run-time checks of shapes and double precision."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # else the processes that tests start would compete for the cores
os.environ.setdefault("STREAMLIT_RUNNER_POST_SCRIPT_GC", "false")  # 200 ms after each run of a screen
os.environ.setdefault("XFORMER_MODEL", "")  # a model in models/ must not change which one the screens open first
torch.set_num_threads(1)  # the tensors are tiny, and the workers of pytest-xdist compete for the cores

# Every annotated signature of these modules is checked, values and shapes, in the tests of CHECKED. (Not xformer.config:
# its errors for mistyped fields are its own.) The hook must be there before the first import of the library.
jaxtyping.install_import_hook(
    ["xformer.layers", "xformer.model", "xformer.trace", "xformer.edits"], "beartype.beartype"
)

BROWSER_TESTS = Path(__file__).parent / "browser"
CHECKED = (
    "components",
    "layers",
    "test_edits.py",
    "test_edit_links.py",
    "test_model.py",
    "test_reading.py",
    "test_trace.py",
)
"""Folders and files whose tests run with these checks; the others call the same code far more often, which takes its time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup` a file goes to one worker, and so do all tests of the app in a browser: they share a server.

    A failing test in a browser runs once more, because a starved machine delays events in ways that a visitor never meets.
    The report names both outcomes.
    """
    for item in items:
        if item.path.is_relative_to(BROWSER_TESTS):
            item.add_marker(pytest.mark.flaky(reruns=1))
        is_of_app = "app" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("app" if is_of_app else item.path.stem))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is not None and not torch.cuda.is_available():
        pytest.skip("NOT RUN: it needs a GPU, and this machine has none that torch can use")


@pytest.fixture(scope="session", autouse=True)
def _settings_of_the_server() -> None:
    """Read `.streamlit/config.toml` now: Streamlit reads it once, from the folder of the first test that asks."""
    import streamlit as st

    assert st.get_option("server.address") == "127.0.0.1"


@pytest.fixture
def float64() -> Iterator[None]:
    """Double precision, so that a wrong term cannot hide behind rounding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def _checked(request: pytest.FixtureRequest) -> Iterator[None]:
    jaxtyping.config.update("jaxtyping_disable", set(CHECKED).isdisjoint(request.path.parts))
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the run-time checks: what a caller outside the tests meets when the input is wrong."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
