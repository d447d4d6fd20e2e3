"""What the tests of the library share: run-time shape checks, float64, and sizes that cannot be mistaken for one another."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch

from tests import checked_once
from tests.workers import by_group, is_for, waiting_first

GRAMMAR = "rfc3987_syntax"

torch.set_num_threads(1)  # the tensors are tiny, and the workers of pytest-xdist would fight over the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and so would the processes that they start
sys.dont_write_bytecode = False  # else each worker, and each process that a test starts, compiles everything anew
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Every annotated signature is checked, values and shapes, in whatever a test calls; but for those UNCHECKED below. (Not
# xformer.config: its errors for mistyped fields are its own.) The hook must stand before the first import of the library.
checked_once.install("xformer.layers", "xformer.model", "xformer.trace", "xformer.edits")

# Until the first test begins, no garbage is looked for, and Altair does without what JupyterLab brings, which takes it longest.
gc.disable()
sys.modules[GRAMMAR] = None  # type: ignore[assignment]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is not None and not torch.cuda.is_available():
        pytest.skip("NOT RUN: it needs a GPU, and this machine has none that torch can use")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    return by_group(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    waiting_first(items)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        return None if is_for(getattr(config, "workerinput", None), collection_path) else True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What is imported by now stays: Streamlit has garbage looked for after every run of a script, in all that there is."""
    if sys.modules.get(GRAMMAR, sys) is None:
        del sys.modules[GRAMMAR]
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _no_power_cut() -> Iterator[None]:
    """Nobody waits for the disk: that files are flushed, and in which order, is tested with an `fsync` of the test's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _settings_of_the_server() -> None:
    """Read `.streamlit/config.toml` now: Streamlit reads it once, from wherever the first test that asks has gone."""
    from streamlit import config

    config.get_config_options()
    assert config.get_option("server.address") == "127.0.0.1"


@pytest.fixture
def float64() -> Iterator[None]:
    """Double precision, so that a wrong term cannot hide behind rounding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def dims() -> dict[str, int]:
    """Different primes, so that no axis can stand in for another."""
    return {"batch": 2, "n_heads": 3, "d_head": 5, "d_value": 7, "pos": 11, "d_model": 13, "d_ff": 17, "source": 19}


UNCHECKED = (
    {"diagnosis", "integrations", "pages", "tasks", "training"}
    | {f"analysis/test_{name}.py" for name in ("agreement", "decision", "disagreement", "divergence", "patching")}
    | {"tests/test_decoding.py", "tests/test_greedy.py"}
)
"""What is tested there calls the layers over and over with what their own tests call them with, and checking every call
again would take up to two thirds of its time."""


@pytest.fixture(autouse=True)
def _checked(request: pytest.FixtureRequest) -> Iterator[None]:
    folder = request.path.parent.name
    checked_once.forget()
    places = (folder, f"{folder}/{request.path.name}")
    jaxtyping.config.update("jaxtyping_disable", not UNCHECKED.isdisjoint(places))
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the run-time shape checks: what a caller outside the tests meets when the input is wrong."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
