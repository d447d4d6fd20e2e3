"""What is copied carries what it should: everything copied is the other run bit for bit, and one row is checked by hand."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from tests.analysis.duel import LAST, SHIPPED, SOURCE, contender_of, random_contender, whole_and_cut
from tests.training.tiny import ARCHITECTURES
from xformer import edits
from xformer.adapters import TaskModel
from xformer.analysis.activation_patching import (
    KIN,
    deciding_logits,
    kinship,
    parts,
    patched_logits,
    patching,
    why_unpatchable,
)
from xformer.analysis.generation import first_divergence, roll_out
from xformer.errors import InputError
from xformer.reading import Reading
from xformer.trace import record


def one_way(source: Reading, into: Reading, *, everywhere: bool = False) -> pd.DataFrame:
    """The copies out of `source` alone."""
    frame = patching([source, into], everywhere=everywhere)
    return frame[frame["source"] == source.subject.name].reset_index(drop=True)


def duel(architecture: str, **model: Any) -> tuple[Reading, Reading]:
    """A random model and the same one without positions and with a head silenced, at the first step where they part."""
    stack = "encoder" if architecture == "encoder" else "decoder"
    layer = f"{stack}.0.self_attn" if architecture == "encoder-decoder" else f"{stack}.0.attn"
    for seed in range(20):
        whole = random_contender("whole", architecture, seed=seed, model=model)
        changed = contender_of(
            "changed", whole.model, whole.task, (edits.zero_positions(), edits.ablate_head(layer, 1))
        )
        rollouts = [roll_out(contender, SOURCE, forced=True) for contender in (whole, changed)]
        step = first_divergence(rollouts)
        if step is not None:
            return rollouts[0][step], rollouts[1][step]
    raise AssertionError("none of these models minds")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("norm", ["post", "pre", "none"])
def test_everything_copied_is_the_other_run_bit_for_bit(architecture: str, norm: str) -> None:
    for source, into in (duel(architecture, norm=norm), duel(architecture, norm=norm)[::-1]):
        everything = parts(source, everywhere=True)
        whole = patched_logits(into, [part.patch(source, everywhere=True) for part in everything])
        assert torch.equal(whole, deciding_logits(source))
        streams = [part for part in everything if part.component == "residual"]
        assert torch.equal(
            patched_logits(into, [part.patch(source, everywhere=True) for part in streams]), deciding_logits(source)
        )
        assert not torch.allclose(deciding_logits(into), deciding_logits(source), atol=0.1)
        for frame in (one_way(source, into, everywhere=True), one_way(source, into)):
            last = frame[
                (frame["component"] == "residual") & (frame["layer"] == 2) & ~frame["part"].str.contains("encoder")
            ]
            assert (last["restored"].item(), last["turns"].item()) == (
                1.0,
                True,
            )  # the stream after the last layer is all


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_run_on_another_input_is_copied_bit_for_bit_too(architecture: str) -> None:
    contender = random_contender("one", architecture)
    other = contender_of("other", contender.model, contender.task)
    a = roll_out(contender, [3, 7, 1, 4, 2], forced=True)[1]
    b = roll_out(other, [5, 7, 2, 6, 6], forced=True)[1]
    assert not torch.equal(deciding_logits(a), deciding_logits(b))
    for everywhere in (False, True):
        copies = [part.patch(a, everywhere=everywhere) for part in parts(a, everywhere=everywhere)]
        assert torch.equal(patched_logits(b, copies), deciding_logits(a))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_row_worked_out_by_hand(architecture: str) -> None:
    """The logit differences of every row from tensors put together here, without `patch_from`."""
    source, into = duel(architecture)
    a, b = int(deciding_logits(source).argmax()), int(deciding_logits(into).argmax())

    def difference(logits: Tensor) -> float:
        return logits[a].item() - logits[b].item()

    goal, start = difference(deciding_logits(source)), difference(deciding_logits(into))
    frame = one_way(source, into).set_index("part")
    rows = parts(source)
    assert sorted(frame.index) == sorted(part.title for part in rows)
    for part in rows:
        value = into.trace[part.name].clone()
        at: tuple[Any, ...] = (0, into.asked[-1]) if not part.head else (0, part.head - 1, into.asked[-1])
        value[at] = source.trace[part.name][at]
        # in the changed run's own order: its edits, then the copy
        assert isinstance(into.subject, TaskModel)
        run = record(
            into.subject.model,
            into.trace.tokens,
            into.trace.target,
            edits=[*into.trace.edits, edits.replace(part.name, value)],
        )
        logits = run.logits[0, into.asked[-1]]
        row = frame.loc[part.title]
        assert row["difference"] == difference(logits)
        assert row["restored"] == pytest.approx((difference(logits) - start) / (goal - start), abs=1e-12)
        assert row["says"] == into.subject.labels[int(logits.argmax())]
        assert row["turns"] == (int(logits.argmax()) == a)
    assert (frame["restored"].abs() > 0.01).sum() > 3
    assert frame["restored"].abs().is_monotonic_decreasing


def test_both_ways_are_the_two_ways() -> None:
    one, other = duel("encoder")
    both = patching([one, other])
    n = len(both) // 2
    assert both["into"].tolist() == ["changed"] * n + ["whole"] * n
    assert both.iloc[n:].reset_index(drop=True).equals(one_way(other, one))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_silenced_head_carries_the_answer_of_a_shipped_model(name: str) -> None:
    rollouts, step = whole_and_cut(name)
    frame = one_way(rollouts[0][step], rollouts[1][step])
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
    [step] = one.asked
    wide = random_contender("wide", "encoder", model={"d_model": 19})
    deep = random_contender("deep", "encoder", model={"n_layers": 3})
    assert isinstance(one.subject, TaskModel)
    twin = contender_of("twin", one.subject.model, one.subject.task)
    broad, deeper, same = (roll_out(contender, SOURCE)[step] for contender in (wide, deep, twin))
    longer = roll_out(contender_of("whole", twin.model, twin.task), [1, 2, 3, 4, 5, 6])[step]
    assert why_unpatchable(one, other) is None
    for into, why in (
        (decoder, "different tokens"),
        (broad, r"is \[1, 5, 13\] in whole and \[1, 5, 19\] in wide"),
        (deeper, r"none in whole|in whole and"),
        (longer, r"\[1, 5, 13\] in whole and \[1, 6, 13\]"),
        (same, "Both runs say"),
    ):
        with pytest.raises(InputError, match=why):
            patching([one, into])


def test_of_a_difference_of_less_than_a_tenth_of_a_logit_no_share_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of it would be a number without a bound; the two answers differ all the same."""
    one, other = duel("decoder")
    a, b = one.predicted[-1], other.predicted[-1]
    logits = [deciding_logits(run) for run in (one, other)]
    gap = abs(sum(sign * (of[a] - of[b]).item() for sign, of in zip((1, -1), logits, strict=True)))
    monkeypatch.setattr("xformer.analysis.activation_patching.LEAST", gap * 0.99)
    assert why_unpatchable(one, other) is None
    monkeypatch.setattr("xformer.analysis.activation_patching.LEAST", gap * 1.01)
    with pytest.raises(InputError, match="about as far ahead of"):
        patching([one, other])


def test_nothing_is_copied_between_models_that_were_trained_apart() -> None:
    one, other = (random_contender(f"seed {seed}", "encoder", seed=seed) for seed in (1, 2))
    assert abs(kinship(one.model, other.model)) < KIN / 2
    with pytest.raises(InputError, match="trained apart"):
        patching([roll_out(contender, SOURCE)[0] for contender in (one, other)])


def test_a_model_that_another_was_trained_from_is_kin() -> None:
    one = random_contender("one", "encoder")
    other = random_contender("other", "encoder")
    other.model.load_state_dict({name: 1.1 * value + 0.01 for name, value in one.model.state_dict().items()})
    assert kinship(one.model, one.model) == 1.0
    assert kinship(one.model, other.model) > 0.9
