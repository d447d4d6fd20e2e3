"""Patching restores what it should: with everything copied the runs are bitwise equal, and each row is recomputed by hand."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any, get_args

import pandas as pd
import pytest
import torch
from torch import Tensor

from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from tests.analysis.duel import SOURCE, module_reading, random_variant, variant_of
from tests.training.tiny import ARCHITECTURES
from xformer import edits
from xformer.adapters import TaskModel
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.analysis import patching_map
from xformer.analysis.activation_patching import (
    KIN,
    PartKind,
    cells,
    deciding_logits,
    estimated,
    kinship,
    measured,
    parts,
    patched_logits,
    patching,
    patching_incompatibility,
)
from xformer.analysis.generation import decode_steps, first_divergence
from xformer.analysis.minimal_pairs import (
    LEAST,
    MinimalPair,
    differing,
    one_token_changed,
    pairs,
    stacks_of,
    usual_answers,
)
from xformer.edits import Edit
from xformer.errors import InputError
from xformer.model import Transformer
from xformer.reading import Reading, adapter_of, read, rerun
from xformer.trace import record


def one_way(source: Reading, into: Reading, *, everywhere: bool = False) -> pd.DataFrame:
    """Patch out of `source` only."""
    frame = patching([source, into], everywhere=everywhere)
    return frame.query(f"source == {source.adapter.name!r}").reset_index(drop=True)


@cache
def duel(architecture: str, **model: Any) -> tuple[Reading, Reading]:
    """Return a random model and a copy without positions and one head, at the first step at which they diverge."""
    stack = "encoder" if architecture == "encoder" else "decoder"
    layer = f"{stack}.0.self_attn" if architecture == "encoder-decoder" else f"{stack}.0.attn"
    for seed in range(20):
        whole = random_variant("whole", architecture, seed=seed, model=model)
        changed = variant_of("changed", whole.model, whole.task, (edits.zero_positions(), edits.ablate_head(layer, 1)))
        runs = [decode_steps(variant, SOURCE, forced=True) for variant in (whole, changed)]
        step = first_divergence(runs)
        if step is not None:
            return runs[0][step], runs[1][step]
    raise AssertionError("none of these models changes its answer")


@pytest.mark.parametrize(("architecture", "norm"), list(zip(ARCHITECTURES, ["none", "pre", "post"], strict=True)))
def test_copying_everything_gives_the_other_run_bit_for_bit(architecture: str, norm: str) -> None:
    one, other = duel(architecture, norm=norm)
    for source, into in ((one, other), (other, one)):
        everything = parts(source, everywhere=True)
        for some in (everything, [part for part in everything if part.component == "residual"]):
            whole = patched_logits(into, [part.patch(source, everywhere=True) for part in some])
            assert torch.equal(whole, deciding_logits(source))
        assert not torch.allclose(deciding_logits(into), deciding_logits(source), atol=0.1)
    frame = patching([one, other], everywhere=True)
    last = frame.query("component == 'residual' and layer == 2 and not part.str.contains('encoder')")
    # The last layer's stream determines the logits.
    assert last[["restored", "turns"]].to_numpy().tolist() == [[1.0, True]] * 2
    assert frame["into"].tolist() == ["changed"] * (len(frame) // 2) + ["whole"] * (len(frame) // 2)


def test_each_row_matches_a_patch_made_by_hand() -> None:
    """Every row's logit difference from tensors assembled here, without `patch_from`."""
    source, into = duel("encoder-decoder", norm="post")
    a, b = int(deciding_logits(source).argmax()), int(deciding_logits(into).argmax())

    def difference(logits: Tensor) -> float:
        return logits[a].item() - logits[b].item()

    goal, start = difference(deciding_logits(source)), difference(deciding_logits(into))
    frame = one_way(source, into).set_index("part")
    rows = parts(source)
    assert sorted(frame.index) == sorted(part.title for part in rows)
    for part in rows:
        value, [position] = into.trace[part.name].clone(), into.target_positions
        at = (0, part.head - 1, position) if part.head else (0, position)
        value[at] = source.trace[part.name][at]
        assert isinstance(into.adapter, TaskModel)
        changes = [*into.trace.edits, edits.replace(part.name, value)]  # its own edits, then the copy
        logits = record(into.adapter.model, into.trace.tokens, into.trace.target, edits=changes).logits[0, position]
        assert frame.loc[part.title, ["difference", "restored", "says", "turns"]].to_dict() == {
            "difference": difference(logits),
            "restored": pytest.approx((difference(logits) - start) / (goal - start), abs=1e-12),
            "says": into.adapter.token_labels[int(logits.argmax())],
            "turns": int(logits.argmax()) == a,
        }
    assert (frame["restored"].abs() > 0.01).sum() > 3
    assert frame["restored"].abs().is_monotonic_decreasing


def test_incompatible_runs_are_refused_with_the_reason() -> None:
    one, other = duel("encoder", norm="none")
    decoder, _ = duel("decoder", norm="pre")
    [step] = one.target_positions
    wide = random_variant("wide", "encoder", model={"d_model": 19})
    assert isinstance(one.adapter, TaskModel)
    twin = variant_of("twin", one.adapter.model, one.adapter.task)
    broad, same = (decode_steps(variant, SOURCE)[step] for variant in (wide, twin))
    longer = decode_steps(variant_of("whole", twin.model, twin.task), [1, 2, 3, 4, 5, 6])[step]
    assert patching_incompatibility(one, other) is None
    for into, reason in (
        (decoder, "different tokens"),
        (broad, "whole and wide have different activations"),
        (longer, "different activations"),
        (same, "Both runs predict"),
    ):
        with pytest.raises(InputError, match=reason):
            patching([one, into])


def test_runs_whose_logit_differences_hardly_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of a tiny difference would be unbounded, even though the two answers differ."""
    one, other = duel("decoder", norm="pre")
    a, b = one.predicted[-1], other.predicted[-1]
    logits = [deciding_logits(run) for run in (one, other)]
    gap = abs(sum(sign * (of[a] - of[b]).item() for sign, of in zip((1, -1), logits, strict=True)))
    monkeypatch.setattr("xformer.analysis.activation_patching.LEAST", gap * 0.99)
    assert patching_incompatibility(one, other) is None
    monkeypatch.setattr("xformer.analysis.activation_patching.LEAST", gap * 1.01)
    with pytest.raises(InputError, match="about as far ahead of"):
        patching([one, other])


def test_nothing_is_copied_between_independently_trained_models() -> None:
    one, other = (random_variant(f"seed {seed}", "encoder", seed=seed) for seed in (1, 2))
    assert abs(kinship(one.model, other.model)) < KIN / 2
    with pytest.raises(InputError, match="trained independently"):
        patching([decode_steps(variant, SOURCE)[0] for variant in (one, other)])
    other.model.load_state_dict({name: 1.1 * value + 0.01 for name, value in one.model.state_dict().items()})
    assert kinship(one.model, one.model) == pytest.approx(1.0)
    assert kinship(one.model, other.model) > 0.9


PARTS = get_args(PartKind)

TEXTS = ("the cat sat on the mat", "the dog sat on the mat")


def pair_of(architecture: str, **model: Any) -> MinimalPair:
    """Pair two inputs of a random model that differ in their third symbol."""
    adapter = random_variant("model", architecture, model=model).adapter
    return MinimalPair.of(read(adapter, "3 7 1 4 2"), read(adapter, "3 7 5 4 2"))


def by_hand(pair: MinimalPair, changes: list[Edit]) -> float:
    """Return the share that changes of this run restore, from running the model itself."""
    run = pair.reading
    assert isinstance(run.adapter, TaskModel)
    logits = record(run.adapter.model, run.trace.tokens, run.trace.target, edits=changes).logits[0, pair.position]
    one, other = pair.answers
    here, there = (r.logits[0, pair.position] for r in (run, pair.source))
    start, goal = ((at[one] - at[other]).item() for at in (here, there))
    return ((logits[one] - logits[other]).item() - start) / (goal - start)


@pytest.mark.parametrize(
    ("architecture", "part"), [("decoder", "stream"), *(("encoder-decoder", part) for part in PARTS)]
)
def test_each_cell_matches_a_replacement_made_by_hand(architecture: str, part: PartKind) -> None:
    pair = pair_of(architecture)
    table = patching_map(pair.reading, pair.source, part=part, exact=True)
    assert set(table["stack"]) == set(stacks_of(pair.reading))
    for row in table.to_dict("records"):
        where: tuple[Any, ...]
        if part == "stream":
            layer, where = row["layer"], (0, row["position"])
            name = f"{row['stack']}.{layer - 1}.resid_post" if layer else f"{row['stack']}.0.resid_pre"
        elif part == "head":
            name, where = f"{pair.reading.attention[row['layer']].path}.z", (0, row["head"])
        else:
            name = f"{pair.reading.feed_forward[row['layer']].path}.post"
            where = (0, slice(None), slice(row["first_neuron"], row["last_neuron"] + 1))
        value = pair.reading[name].clone()
        value[where] = pair.source[name][where]
        assert row["measured"] == pytest.approx(by_hand(pair, [edits.replace(name, value)]), abs=1e-4)
    assert (table["measured"].abs() > 0.01).sum() >= 3


@pytest.mark.parametrize("family", ["GPT-J", "T5"])
def test_batched_patching_of_external_models_matches_single_edits(family: str) -> None:
    adapter = HuggingFaceModel.open(FAMILIES[family].make(), tokenizer())
    target = " >> the mat sat" if adapter.shape.is_encoder_decoder else ""
    a, b = (read(adapter, text + target) for text in TEXTS)
    pair = MinimalPair.of(a, b)
    for part in PARTS:
        some = cells(pair, part)[1::29]
        shares = measured(pair, some)
        for cell, share in zip(some, shares, strict=True):
            value = a[cell.name].clone()
            value[0][cell.where] = b[cell.name][0][cell.where]
            run = a.adapter.record(a.example, edits=[edits.replace(cell.name, value)], keep=("logits",))
            assert share == pytest.approx((pair.measure(run.logits).item() - pair.start) / pair.gap, abs=1e-4)
        assert max(map(abs, estimated(pair, some))) > 1e-4


def test_a_module_is_patched_with_its_own_inputs_only() -> None:
    a, b = map(module_reading, torch.randn(2, 1, 5, 12, generator=torch.Generator().manual_seed(0)))
    moved = (b.logits - a.logits)[0, 1]
    one, other = int(moved.argmax()), int(moved.argmin())
    table = patching_map(a, b, part="head", answers=(one, other), position=1, exact=True)
    value = a["encoder.1.attn.z"].clone()
    value[0, 2] = b["encoder.1.attn.z"][0, 2]
    changed = rerun(a, [edits.replace("encoder.1.attn.z", value)])
    leads = [run.logits[0, 1, one] - run.logits[0, 1, other] for run in (changed, a, b)]
    share = (leads[0] - leads[1]) / (leads[2] - leads[1])
    assert table["measured"].iloc[-1] == pytest.approx(share.item(), abs=1e-5)


def test_a_part_that_is_equal_in_both_runs_needs_no_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pair_of("decoder")
    first = differing(pair.reading, pair.source)[0]
    before = [cell for cell in cells(pair, "stream") if cell.columns["position"] < first]
    assert before
    monkeypatch.setattr(Transformer, "forward", lambda *args, **more: pytest.fail("the model was run"))
    assert measured(pair, before) == [0.0] * len(before)


def test_the_estimate_is_the_mean_slope_towards_the_other_input() -> None:
    """By finite differences: each cell is moved slightly towards the other run, at inputs between the two."""
    step = 1e-2
    pair = pair_of("encoder-decoder")
    for part in PARTS:
        run, stacks = pair.reading, stacks_of(pair.reading)
        of = cells(pair, part)[2::31]
        for cell, found in zip(of, estimated(pair, of), strict=True):
            slopes = []
            for point in (0.0, 0.25, 0.5):
                names = [f"{stack}.0.resid_pre" for stack in stacks]
                mixed = [edits.replace(name, run[name] + point * (pair.source[name] - run[name])) for name in names]
                here = rerun(run, mixed)[cell.name]
                shares = []
                for sign in (-1, 1):
                    value = here.clone()
                    value[0][cell.where] += sign * step * (pair.source[cell.name] - run[cell.name])[0][cell.where]
                    shares.append(by_hand(pair, [*mixed, edits.replace(cell.name, value)]))
                slopes.append((shares[1] - shares[0]) / (2 * step))
            assert found == pytest.approx(sum(slopes) / 3, abs=5e-3, rel=2e-2)


def test_invalid_pairs_and_options_are_refused_with_the_reason() -> None:
    a, b, longer = (read("checkpoints/reverse", text) for text in ("3 7 1 4", "3 7 2 4", "3 7 1 4 2"))
    for other, options, reason in (
        (longer, {}, "4 tokens and the second 5.*at position 4: nothing against “2”. Take 1 from"),
        (a, {}, "Both inputs are the same"),
        (b, {"answers": ("3", "3")}, "two different answers"),
        (b, {"answers": ("3", "x")}, "There is no token “x”"),
        (b, {"position": 9}, "position must be from 0 to 3, got 9"),
        (b, {"part": "gas"}, "part is one of stream, head, neurons"),
    ):
        with pytest.raises(InputError, match=reason):
            patching_map(a, other, **options)  # pyright: ignore
    measures = (a.logits - b.logits)[0, 3]  # the first token is predicted here, the same in both
    order = measures.sort().indices.tolist()
    near = min(pairwise(order), key=lambda two: (measures[two[1]] - measures[two[0]]).item())
    assert (measures[near[1]] - measures[near[0]]).abs().item() < LEAST
    with pytest.raises(InputError, match="nothing to explain"):
        patching_map(a, b, answers=near, position=3)


def test_the_default_answers_are_the_predictions_of_the_two_runs() -> None:
    a, b = (read("checkpoints/reverse", text) for text in ("3 7 12 5", "3 7 13 5"))
    pair = MinimalPair.of(a, b)
    labels = a.adapter.token_labels
    assert pair.position == 1  # the mirror position of the difference
    assert tuple(labels[token] for token in pair.answers) == ("12", "13")
    assert pair.start > 0 > pair.goal
    assert MinimalPair.of(a, b, ("12", "13")).answers == pair.answers
    same = usual_answers(a, b, 0)  # both predict 5 here
    assert labels[same[0]] == "5" != labels[same[1]]


@pytest.mark.parametrize("name", ["brackets", "characters"])
def test_a_counterpart_differs_in_one_token_that_matters(name: str) -> None:
    adapter = adapter_of(f"checkpoints/{name}")
    one = adapter.input.read(adapter.input.default)
    other = one_token_changed(adapter, one)
    assert other is not None
    assert sum(a != b for a, b in zip(one, other, strict=True)) == 1
    pair = MinimalPair.of(read(adapter, one), read(adapter, other))
    assert abs(pair.gap) > LEAST
    if pair.reading.has_right_answer:
        assert pair.reading.answer != pair.source.answer
    digits = adapter_of("checkpoints/digits")
    assert one_token_changed(digits, digits.input.read(digits.input.default)) is None  # no image is invented
    assert pairs(digits) == {}


def test_readings_that_kept_only_their_logits_can_be_patched() -> None:
    texts = ("3 7 12 5", "3 7 13 5")
    whole, bare = ([read("checkpoints/reverse", text, keep=keep) for text in texts] for keep in (("*",), ("logits",)))
    one, other = (patching_map(*runs, part="head", exact=True) for runs in (whole, bare))
    pd.testing.assert_frame_equal(one, other, atol=1e-5)
    assert torch.equal(whole[0].logits, bare[0].logits)
