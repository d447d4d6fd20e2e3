"""The tape on its own: it names, keeps and changes what it is handed, and complains about what never came."""

from __future__ import annotations

import pytest
import torch

from xformer import edits
from xformer.errors import EditError
from xformer.tape import Tape


def test_edits_apply_in_the_order_given() -> None:
    a, five = torch.tensor([1.0]), torch.tensor([5.0])
    assert Tape([edits.scale("a", 2.0), edits.replace("a", five)])("a", a).tolist() == [5.0]
    assert Tape([edits.replace("a", five), edits.scale("a", 2.0)])("a", a).tolist() == [10.0]


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (("*",), {"encoder.0.attn.z", "encoder.1.attn.z", "logits"}),
        (("logits",), {"logits"}),
        (("encoder.1.*", "logits"), {"encoder.1.attn.z", "logits"}),
        ((), set()),
    ],
)
def test_keep_is_a_choice_of_globs(keep: tuple[str, ...], kept: set[str]) -> None:
    tape = Tape(keep=keep)
    edited = Tape([edits.scale(glob, 0.0) for glob in keep])
    for name in ("encoder.0.attn.z", "encoder.1.attn.z", "logits"):
        tape(name, torch.ones(1))
        assert bool(edited(name, torch.ones(1))) == (name not in kept)  # so do the globs of edits
    assert set(tape.activations) == kept
    tape.check_all_fired()


class Reshape(edits.Apply):
    """An edit that breaks the rules."""

    def apply(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return self.function(value)


@pytest.mark.parametrize(
    ("changed", "made"),
    [(torch.ones(3, 2), r"\[3, 2\] and torch.float32"), (torch.ones(2, 3).bool(), r"\[2, 3\] and torch.bool")],
)
def test_an_edit_must_keep_shape_and_type(changed: torch.Tensor, made: str) -> None:
    with pytest.raises(EditError, match=r"a, which are \[2, 3\] and torch.float32, but .* made them " + made):
        Tape([Reshape("a", lambda _: changed)])("a", torch.ones(2, 3))
