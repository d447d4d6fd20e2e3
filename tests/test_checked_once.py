"""Tests of the run-time checks: what is unlike anything before it in its test is checked, what is like it is let through."""

from __future__ import annotations

from collections.abc import Sequence

import beartype
import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from tests import checked_once


@checked_once._once(typechecker=beartype.beartype)
def added(a: Float[Tensor, " n"], b: Float[Tensor, " n"], name: str = "", given: Sequence[Tensor] = ()) -> Tensor:
    return a[:1] + b[:1] + 0 * a


@pytest.mark.parametrize(
    "unlike",
    [
        {"a": torch.ones(4)},
        {"b": torch.ones(3, dtype=torch.long)},
        {"b": torch.ones(3, 1)},
        {"b": [1.0, 1.0, 1.0]},
        {"name": 1},
        {"given": (1,)},
    ],
)
def test_a_call_unlike_those_before_is_checked(unlike: dict[str, object]) -> None:
    like: dict[str, object] = {"a": torch.ones(3), "b": torch.ones(3), "name": "", "given": ()}
    for _ in range(2):
        assert added(**like).tolist() == [2, 2, 2]  # type: ignore[arg-type]
        with pytest.raises(jaxtyping.TypeCheckError):
            added(**like | unlike)  # type: ignore[arg-type]


def test_alike_calls_are_let_through_until_the_next_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = []
    monkeypatch.setattr(
        checked_once, "_check", lambda thing, typechecker: lambda *args: checks.append(args) or thing(*args)
    )
    negated = checked_once._once(typechecker=None)(lambda x: -x)
    assert [negated(torch.ones(2)).sum().item() for _ in range(3)] == [-2, -2, -2]
    assert len(checks) == 1
    negated(torch.ones(3))
    assert len(checks) == 2
    checked_once.forget()
    negated(torch.ones(2))
    assert len(checks) == 3
