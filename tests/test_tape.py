"""The tape on its own: it names, keeps and changes what it is handed, and complains about what never came."""

from __future__ import annotations

import pytest
import torch

from xformer import edits
from xformer.errors import EditError
from xformer.tape import SILENT, Tape


def test_everything_passes_through_and_is_kept_under_its_name() -> None:
    tape = Tape()
    a, b = torch.randn(2, 3), torch.randn(5)
    assert tape("a", a) is a
    assert tape.at("encoder").at("0")("b", b) is b
    assert tape.names == ["a", "encoder.0.b"]
    assert tape.activations["a"] is a
    assert tape.activations["encoder.0.b"] is b
    assert tape.recording
    assert tape.at("x").at("y").recording


def test_an_edit_changes_what_goes_on_and_what_is_kept_but_not_what_came() -> None:
    tape = Tape([edits.scale("a", 2.0)])
    a = torch.tensor([1.0, -3.0])
    out = tape("a", a)
    assert out.tolist() == [2.0, -6.0]
    assert tape.activations["a"] is out
    assert a.tolist() == [1.0, -3.0]
    assert tape("b", a) is a


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
        (("*.z",), {"encoder.0.attn.z", "encoder.1.attn.z"}),
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


@pytest.mark.parametrize(
    ("glob", "recorded"),
    [
        ("encoder.1.attn.z", True),
        ("encoder.1.attn.*", True),
        ("encoder.1.a*", True),
        ("*.z", True),
        ("[e]ncoder.1.attn.z", True),
        ("encoder.?.attn.z", True),
        ("encoder.1.ffn.post", False),
        ("encoder.10.attn.z", False),
        ("encoder.1.attn", False),
        ("logits", False),
    ],
)
def test_a_part_is_recorded_only_where_something_in_it_can_be_kept_or_changed(glob: str, recorded: bool) -> None:
    for tape in (Tape(keep=[glob], fused=True), Tape([edits.scale(glob, 2.0)], keep=(), fused=True)):
        assert tape.at("encoder").at("1").at("attn").recording == recorded
        assert tape.recording  # so that dropout stays off
    assert Tape(keep=[glob]).at("encoder.1.attn").recording


@pytest.mark.parametrize(
    "tape",
    [
        Tape([edits.scale("a", 1.0), edits.scale("encoder.9.attn.z", 0.0)]),
        Tape(keep=["a", "encoder.9.attn.z"]),
        Tape(keep=["A"]),
    ],
)
def test_what_never_fires_is_an_error_that_lists_the_names(tape: Tape) -> None:
    tape("a", torch.ones(1))
    tape("encoder.0.attn.z", torch.ones(1))
    with pytest.raises(EditError, match=r"'(encoder\.9\.attn\.z|A)'; its names are a, encoder\.0\.attn\.z\."):
        tape.check_all_fired()


class Reshape:
    """An edit that breaks the rules."""

    name = "a"

    def __init__(self, changed: torch.Tensor) -> None:
        self.changed = changed

    def apply(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return self.changed


@pytest.mark.parametrize(
    ("changed", "made"),
    [(torch.ones(3, 2), r"\[3, 2\] and torch.float32"), (torch.ones(2, 3).bool(), r"\[2, 3\] and torch.bool")],
)
def test_an_edit_must_keep_shape_and_type(changed: torch.Tensor, made: str) -> None:
    with pytest.raises(EditError, match=r"a, which are \[2, 3\] and torch.float32, but .* made them " + made):
        Tape([Reshape(changed)])("a", torch.ones(2, 3))


def test_silence_passes_everything() -> None:
    a = torch.ones(1)
    assert SILENT("a", a) is a
    assert SILENT.at("encoder") is SILENT
    assert not SILENT.recording
