"""What is copied carries what it should: everything copied is the other run bit for bit, and one row is checked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.analysis.duel import LAST, SHIPPED, example_for, random_player, shipped
from tests.training.tiny import ARCHITECTURES
from xformer import edits
from xformer.analysis.deciding import Moment, moment
from xformer.analysis.parting import first_parting
from xformer.analysis.patching import KIN, kinship, parts, patched_logits, patching, patching_both_ways, unpatchable
from xformer.analysis.players import Player, play
from xformer.errors import InputError
from xformer.trace import record


def duel(architecture: str, **model: Any) -> tuple[Moment, Moment]:
    """A random model and the same one without positions and with a head silenced, at the first step where they part."""
    stack = "encoder" if architecture == "encoder" else "decoder"
    layer = f"{stack}.0.self_attn" if architecture == "encoder-decoder" else f"{stack}.0.attn"
    for seed in range(20):
        whole = random_player("whole", architecture, seed=seed, model=model)
        changed = Player("changed", whole.model, whole.task, (edits.zero_positions(), edits.ablate_head(layer, 1)))
        plays = [play(player, example_for(whole), forced=True) for player in (whole, changed)]
        step = first_parting(plays)
        if step is not None:
            return moment(plays[0], step), moment(plays[1], step)
    raise AssertionError("none of these models minds")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("norm", ["post", "pre", "none"])
def test_everything_copied_is_the_other_run_bit_for_bit(architecture: str, norm: str) -> None:
    for source, into in (duel(architecture, norm=norm), duel(architecture, norm=norm)[::-1]):
        everything = parts(source, everywhere=True)
        whole = patched_logits(into, [part.patch(source, everywhere=True) for part in everything])
        assert torch.equal(whole, source.logits)
        streams = [part for part in everything if part.component == "residual"]
        assert torch.equal(
            patched_logits(into, [part.patch(source, everywhere=True) for part in streams]), source.logits
        )
        assert not torch.allclose(into.logits, source.logits, atol=0.1)
        for frame in (patching(source, into, everywhere=True), patching(source, into)):
            last = frame[
                (frame["component"] == "residual") & (frame["layer"] == 2) & ~frame["part"].str.contains("encoder")
            ]
            assert (last["restored"].item(), last["turns"].item()) == (
                1.0,
                True,
            )  # the stream after the last layer is all


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_run_on_another_input_is_copied_bit_for_bit_too(architecture: str) -> None:
    player = random_player("one", architecture)
    other = Player("other", player.model, player.task)
    a = moment(play(player, player.task.example([3, 7, 1, 4, 2]), forced=True), 1)
    b = moment(play(other, player.task.example([5, 7, 2, 6, 6]), forced=True), 1)
    assert not torch.equal(a.logits, b.logits)
    for everywhere in (False, True):
        copies = [part.patch(a, everywhere=everywhere) for part in parts(a, everywhere=everywhere)]
        assert torch.equal(patched_logits(b, copies), a.logits)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_row_worked_out_by_hand(architecture: str) -> None:
    """The logit differences of every row from tensors put together here, without `patch_from`."""
    source, into = duel(architecture)
    a, b = int(source.logits.argmax()), int(into.logits.argmax())

    def difference(logits: Tensor) -> float:
        return logits[a].item() - logits[b].item()

    goal, start = difference(source.logits), difference(into.logits)
    frame = patching(source, into).set_index("part")
    rows = parts(source)
    assert sorted(frame.index) == sorted(part.title for part in rows)
    for part in rows:
        value = into.trace[part.name].clone()
        at: tuple[Any, ...] = (0, into.position) if not part.head else (0, part.head - 1, into.position)
        value[at] = source.trace[part.name][at]
        # in the changed run's own order: its edits, then the copy
        run = record(
            into.play.player.model,
            into.trace.tokens,
            into.trace.target,
            edits=[*into.trace.edits, edits.replace(part.name, value)],
        )
        logits = run.logits[0, into.position]
        row = frame.loc[part.title]
        assert row["difference"] == difference(logits)
        assert row["restored"] == pytest.approx((difference(logits) - start) / (goal - start), abs=1e-12)
        assert row["says"] == into.play.labels[int(logits.argmax())]
        assert row["turns"] == (int(logits.argmax()) == a)
    assert (frame["restored"].abs() > 0.01).sum() > 3
    assert frame["restored"].abs().is_monotonic_decreasing


def test_both_ways_are_the_two_ways() -> None:
    one, other = duel("encoder")
    both = patching_both_ways(one, other)
    n = len(both) // 2
    assert both.iloc[:n].equals(patching(one, other))
    assert both.iloc[n:].reset_index(drop=True).equals(patching(other, one))
    assert both["into"].tolist() == ["changed"] * n + ["whole"] * n


@pytest.mark.parametrize("name", SHIPPED)
def test_the_silenced_head_carries_the_answer_of_a_shipped_model(name: str) -> None:
    whole, cut = shipped(name), shipped(name, "cut", edits=(edits.ablate_head(LAST[name], 0),))
    plays = [play(player, example_for(whole, [3, 7, 12, 9, 1, 5])) for player in (whole, cut)]
    step = first_parting(plays)
    assert step is not None
    frame = patching(moment(plays[0], step), moment(plays[1], step))
    layer = int(LAST[name].split(".")[1]) + 1
    head = frame[
        (frame["layer"] == layer) & (frame["head"] == 1) & (~frame["part"].str.fullmatch(r"decoder 1 · head 1"))
    ]
    assert head["restored"].item() == pytest.approx(1.0, abs=1e-4)
    assert head["turns"].item()
    before = frame[frame["layer"] < layer]
    assert before["restored"].abs().max() == 0.0  # what comes before it is the same in both runs


def test_an_encoders_own_stream_counts_only_where_all_positions_are_copied() -> None:
    source, _ = duel("encoder-decoder")
    assert not any(part.name.startswith("encoder.") for part in parts(source))
    names = [part.title for part in parts(source, everywhere=True)]
    assert len(set(names)) == len(names)
    assert {
        "encoder embedding",
        "encoder 2 · residual",
        "decoder 1 · cross · head 3",
        "decoder 2 · feed-forward",
    } <= set(names)


def test_what_cannot_be_copied_says_why() -> None:
    one, other = duel("encoder")
    decoder, _ = duel("decoder")
    wide = random_player("wide", "encoder", model={"d_model": 19})
    broad = moment(play(wide, example_for(wide)), one.step)
    deep = random_player("deep", "encoder", model={"n_layers": 3})
    deeper = moment(play(deep, example_for(deep)), one.step)
    longer = moment(play(one.play.player, one.play.player.task.example([1, 2, 3, 4, 5, 6])), one.step)
    assert unpatchable(one, other) is None
    for into, why in (
        (decoder, "different tokens"),
        (broad, r"is \[1, 5, 13\] in whole and \[1, 5, 19\] in wide"),
        (deeper, r"none in whole|in whole and"),
        (longer, r"\[1, 5, 13\] in whole and \[1, 6, 13\]"),
    ):
        with pytest.raises(InputError, match=why):
            patching(one, into)
    twin = moment(play(Player("twin", one.play.player.model, one.play.player.task), one.play.example), one.step)
    with pytest.raises(InputError, match="Both runs say"):
        patching(one, twin)


def test_nothing_is_copied_between_models_that_were_trained_apart() -> None:
    one, other = (random_player(f"seed {seed}", "encoder", seed=seed) for seed in (1, 2))
    assert abs(kinship(one.model, other.model)) < KIN / 2
    moments = [moment(play(player, example_for(player)), 0) for player in (one, other)]
    with pytest.raises(InputError, match="trained apart"):
        patching(*moments)


def test_a_model_that_another_was_trained_from_is_kin() -> None:
    one = random_player("one", "encoder")
    other = random_player("other", "encoder")
    other.model.load_state_dict({name: 1.1 * value + 0.01 for name, value in one.model.state_dict().items()})
    assert kinship(one.model, one.model) == 1.0
    assert kinship(one.model, other.model) > 0.9
