"""What the tests of the library share: run-time shape checks, float64, and sizes that cannot be mistaken for one another."""

from __future__ import annotations

from collections.abc import Iterator

import jaxtyping
import pytest
import torch

from tests import checked_once

torch.set_num_threads(1)  # the tensors are tiny, and the workers of pytest-xdist would fight over the cores

# Every annotated signature is checked, values and shapes, in whatever a test calls; but for those UNCHECKED below. (Not
# xformer.config: its errors for mistyped fields are its own.) The hook must stand before the first import of the library.
checked_once.install("xformer.layers", "xformer.model", "xformer.trace", "xformer.edits")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is not None and not torch.cuda.is_available():
        pytest.skip("NOT RUN: it needs a GPU, and this machine has none that torch can use")


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
