"""What each part carries of the difference of two inputs is what a run with that part replaced by hand says it carries."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pandas as pd
import pytest
import torch

from tests.adapters.families import FAMILIES
from tests.adapters.test_language_models import tokenizer
from tests.analysis.duel import random_contender
from tests.real_models import real_model
from tests.training.tiny import ARCHITECTURES
from xformer import edits, viz
from xformer.adapters import TaskModel
from xformer.adapters.any_module import AnyModule
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.analysis import patching_map
from xformer.analysis.ablation import agreement, order_to_measure
from xformer.analysis.activation_patching import PartKind, cells, estimated, measured, measuring
from xformer.analysis.minimal_pairs import (
    LEAST,
    MinimalPair,
    differing,
    one_token_changed,
    pairs,
    stacks_of,
    usual_answers,
)
from xformer.edits import AnyEdit
from xformer.errors import InputError, UnavailableError
from xformer.model import Transformer
from xformer.reading import Reading, adapter_of, read, rerun
from xformer.trace import record

PARTS = get_args(PartKind)
TEXTS = ("the cat sat on the mat", "the dog sat on the mat")


def pair_of(architecture: str, **model: Any) -> MinimalPair:
    """Two inputs of a random model that differ in their third symbol."""
    subject = random_contender("model", architecture, model=model).subject
    return MinimalPair.of(read(subject, "3 7 1 4 2"), read(subject, "3 7 5 4 2"))


def by_hand(pair: MinimalPair, changes: list[AnyEdit]) -> float:
    """The share that is restored under changes of this run, from a run of the model itself."""
    run = pair.reading
    assert isinstance(run.subject, TaskModel)
    logits = record(run.subject.model, run.trace.tokens, run.trace.target, edits=changes).logits[0, pair.position]
    one, other = pair.answers
    here, there = (r.logits[0, pair.position] for r in (run, pair.source))
    start, goal = ((at[one] - at[other]).item() for at in (here, there))
    return ((logits[one] - logits[other]).item() - start) / (goal - start)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("part", PARTS)
def test_each_cell_is_the_same_replacement_made_by_hand(architecture: str, part: PartKind) -> None:
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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_everything_replaced_is_the_other_run(architecture: str) -> None:
    pair = pair_of(architecture)
    stacks = stacks_of(pair.reading)
    everything = [edits.patch_from(pair.source.trace, f"{stack}.0.resid_pre") for stack in stacks]
    assert by_hand(pair, [*everything]) == pytest.approx(1.0, abs=1e-5)
    stream = patching_map(pair.reading, pair.source, exact=True)
    last = stream[(stream["stack"] == stacks[-1]) & (stream["layer"] == 2) & (stream["position"] == pair.position)]
    assert last["measured"].item() == pytest.approx(1.0, abs=1e-5)  # the logits are made of nothing else
    others = stream[(stream["stack"] == stacks[-1]) & (stream["layer"] == 2) & (stream["position"] != pair.position)]
    assert others["measured"].abs().max() < 1e-5


def test_what_is_linear_is_estimated_exactly() -> None:
    """Without norms and without neurons the last layer's heads are added up into the logits; with neurons they are not."""
    for d_ff, is_linear in ((0, True), (11, False)):
        pair = pair_of("encoder", norm="none", d_ff=d_ff)
        table = patching_map(pair.reading, pair.source, part="head", exact=True)
        last = table[table["layer"] == 1]
        off = (last["estimated"] - last["measured"]).abs().max()
        assert off < 1e-4 if is_linear else off > 1e-3
        assert last["measured"].abs().max() > 0.01


@pytest.mark.parametrize(
    ("model", "one", "other", "layer", "head"),
    [
        ("induction", "3 10 17 5 12 19", "3 10 17 6 12 19", 1, 0),
        ("reverse-small", "3 10 17 5 12 19", "3 10 17 6 12 19", 1, 0),
        ("reverse-mirror", "3 10 17 5 12 19", "3 10 17 6 12 19", 0, 0),
    ],
)
def test_the_part_that_is_known_to_do_the_task_carries_it(
    model: str, one: str, other: str, layer: int, head: int
) -> None:
    a, b = (read(f"checkpoints/{model}", text) for text in (one, other))
    heads = patching_map(a, b, part="head", exact=True)
    best = heads.loc[heads["measured"].idxmax()]
    assert (best["layer"], best["head"]) == (layer, head)
    assert best["measured"] > 0.9
    assert heads["estimated"].idxmax() == heads["measured"].idxmax()


@pytest.mark.parametrize("family", ["GPT-2", "Llama", "GPT-J", "BERT", "T5"])
@pytest.mark.xdist_group("transformers")
def test_models_of_others_are_patched_as_one_edit_at_a_time_does_it(family: str) -> None:
    subject = HuggingFaceModel.open(FAMILIES[family].make(), tokenizer())
    target = " >> the mat sat" if subject.shape.is_pair else ""
    a, b = (read(subject, text + target) for text in TEXTS)
    pair = MinimalPair.of(a, b)
    for part in PARTS:
        some = cells(pair, part)[::5]
        shares = measured(pair, some)
        for cell, share in zip(some, shares, strict=True):
            value = a[cell.name].clone()
            value[0][cell.where] = b[cell.name][0][cell.where]
            run = a.subject.record(a.example, edits=[edits.replace(cell.name, value)], keep=("logits",))
            assert share == pytest.approx((pair.measure(run.logits).item() - pair.start) / pair.gap, abs=1e-4)
        assert max(map(abs, estimated(pair, some))) > 1e-4


@pytest.mark.xdist_group("transformers")
def test_a_module_that_reads_only_its_own_inputs_is_patched_part_by_part() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True)
    one, other = torch.randn(2, 1, 5, 12)
    module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    a, b = (read(AnyModule.open(module, inputs), None) for inputs in (one, other))
    table = patching_map(a, b, part="head", answers=(3, 4), position=1, exact=True)
    value = a["encoder.1.attn.z"].clone()
    value[0, 2] = b["encoder.1.attn.z"][0, 2]
    leads = [
        run.logits[0, 1, 3] - run.logits[0, 1, 4]
        for run in (rerun(a, [edits.replace("encoder.1.attn.z", value)]), a, b)
    ]
    share = (leads[0] - leads[1]) / (leads[2] - leads[1])
    assert table["measured"].iloc[-1] == pytest.approx(share.item(), abs=1e-5)


def test_a_part_that_is_equal_in_both_runs_carries_nothing_and_costs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pair_of("decoder")
    first = differing(pair.reading, pair.source)[0]
    before = [cell for cell in cells(pair, "stream") if cell.said["position"] < first]
    assert before
    monkeypatch.setattr(Transformer, "forward", lambda *args, **more: pytest.fail("it was run"))
    assert measured(pair, before) == [0.0] * len(before)


def test_measuring_reports_what_is_done_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xformer.analysis.ablation.AT_ONCE", 30)
    pair = pair_of("encoder")
    of = cells(pair, "stream")
    first, *others = measuring(pair, of)
    assert first.done == 0
    assert first.n_equal == sum(
        cell.said["layer"] == 0 and cell.said["position"] != 2 for cell in of
    )  # one symbol differs
    assert len(others) > 1
    assert [report.done for report in others] == sorted({report.done for report in others})
    last = others[-1]
    assert [report.is_final for report in others] == [False] * (len(others) - 1) + [True]
    assert last.done == last.to_do == len(of) - first.n_equal
    assert all(report.shares.items() <= last.shares.items() for report in others)


def test_cells_are_measured_in_turn_by_estimate_and_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xformer.analysis.ablation.AT_ONCE", 1)
    pair = pair_of("decoder")
    of = cells(pair, "head")
    estimates = [float(at) for at in range(len(of))]
    *_, last = measuring(pair, of, estimates)
    assert list(last.shares) == order_to_measure(estimates)
    assert [last.shares[at] for at in range(len(of))] == pytest.approx(measured(pair, of), abs=1e-5)
    of = cells(pair, "stream")
    *_, last = measuring(pair, of, [float(at) for at in range(len(of))])
    equal, moved = (list(last.shares)[: last.n_equal], list(last.shares)[last.n_equal :])
    assert equal
    assert [sorted(moved).index(at) for at in moved] == order_to_measure([float(at) for at in range(len(moved))])


def test_the_estimate_is_the_mean_slope_towards_the_other_input() -> None:
    """By finite differences: each cell moved a little towards the other run, at inputs between the two."""
    step = 1e-2
    for architecture, part in itertools.product(ARCHITECTURES, PARTS):
        pair = pair_of(architecture)
        run, stacks = pair.reading, stacks_of(pair.reading)
        of = cells(pair, part)[2::6]
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


def test_only_the_cells_that_are_asked_for_are_measured() -> None:
    pair = pair_of("encoder")
    whole, some = (patching_map(pair.reading, pair.source, part="head", exact=exact) for exact in (True, [3, 1]))
    assert some["measured"].notna().tolist() == [at in (1, 3) for at in range(len(some))]
    assert some["measured"].dropna().tolist() == pytest.approx(whole["measured"][[1, 3]].tolist(), abs=1e-5)
    assert "measured" not in patching_map(pair.reading, pair.source, part="head")


@pytest.mark.parametrize("model", ["characters", "reverse", "sort"])
def test_the_embedding_that_makes_the_whole_difference_is_estimated_to_make_much_of_it(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of one run alone is too small: its softmaxes are saturated."""
    subject = adapter_of(f"checkpoints/{model}")
    one = subject.input.read(subject.input.default)
    other = one_token_changed(subject, one)
    assert other is not None
    pair = MinimalPair.of(read(subject, one), read(subject, other))
    stream = patching_map(pair.reading, pair.source, exact=True)
    [changed] = differing(pair.reading, pair.source, stacks_of(pair.reading)[0])
    cause = stream[(stream["layer"] == 0) & (stream["position"] == changed)].iloc[0]
    assert cause["measured"] == pytest.approx(1.0, abs=1e-4)
    assert cause["estimated"] > 0.5
    monkeypatch.setattr("xformer.analysis.activation_patching.POINTS", (0.0,))
    alone = patching_map(pair.reading, pair.source)["estimated"][cause.name]
    assert abs(1 - alone) > 2 * abs(1 - cause["estimated"])


def test_a_long_layer_is_reported_in_pieces_that_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pair_of("encoder")
    of = cells(pair, "head")
    whole = measured(pair, of)
    monkeypatch.setattr("xformer.analysis.ablation.AT_ONCE", 1)
    reports = list(measuring(pair, of))
    assert len(reports) == 1 + len(of)
    assert [reports[-1].shares[at] for at in range(len(of))] == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize(
    ("one", "other", "options", "why"),
    [
        (
            "3 7 1 4",
            "3 7 1 4 2",
            {},
            "4 tokens and the second 5.*at position 4: nothing against “2”. Take 1 from",
        ),
        ("3 7 1 4 2", "3 7 1", {}, "Add 2 to the second"),
        ("3 7 1 4", "3 7 1 4", {}, "Both inputs are the same"),
        ("3 7 1 4", "3 7 2 4", {"answers": ("3", "3")}, "Two different answers"),
        ("3 7 1 4", "3 7 2 4", {"answers": ("3",)}, "Two answers are compared, got 1"),
        ("3 7 1 4", "3 7 2 4", {"answers": ("3", "x")}, "No token is written “x”"),
        ("3 7 1 4", "3 7 2 4", {"answers": (3, 999)}, "got 999"),
        ("3 7 1 4", "3 7 2 4", {"position": 9}, "positions 0 to 3, got 9"),
        ("3 7 1 4", "3 7 2 4", {"part": "gas"}, "part is one of stream, head, neurons"),
        ("3 7 1 4", "3 7 2 4", {"part": "neurons", "groups": 0}, "groups must be at least 1"),
    ],
)
def test_what_is_no_pair_says_why(one: str, other: str, options: dict[str, Any], why: str) -> None:
    subject = adapter_of("checkpoints/reverse")
    with pytest.raises(InputError, match=why):
        patching_map(read(subject, one), read(subject, other), **options)


def test_where_both_runs_measure_alike_there_is_nothing_to_explain() -> None:
    a, b = (read("checkpoints/reverse", text) for text in ("3 7 1 4", "3 7 2 4"))
    measures = (a.logits - b.logits)[0, 3]  # says the first token, which is the same in both
    order = measures.sort().indices.tolist()
    near = min(itertools.pairwise(order), key=lambda two: (measures[two[1]] - measures[two[0]]).item())
    assert (measures[near[1]] - measures[near[0]]).abs().item() < LEAST
    with pytest.raises(InputError, match="nothing to explain"):
        patching_map(a, b, answers=near, position=3)


def test_a_model_without_neurons_says_so() -> None:
    a, b = (read("checkpoints/induction", text) for text in ("3 7 12 5", "3 7 13 5"))
    with pytest.raises(UnavailableError, match="has no neurons"):
        patching_map(a, b, part="neurons")


def test_the_usual_answers_are_what_the_two_runs_say() -> None:
    a, b = (read("checkpoints/reverse", text) for text in ("3 7 12 5", "3 7 13 5"))
    pair = MinimalPair.of(a, b)
    labels = a.subject.labels
    assert pair.position == 1  # the mirror of what differs
    assert tuple(labels[token] for token in pair.answers) == ("12", "13")
    assert pair.start > 0 > pair.goal
    assert MinimalPair.of(a, b, ("12", "13")).answers == pair.answers
    same = usual_answers(a, b, 0)  # both say 5 here
    assert labels[same[0]] == "5" != labels[same[1]]


@pytest.mark.parametrize(
    "name",
    ["addition", "brackets", "characters", "induction", "modular", "parity", "reverse", "reverse-seq2seq", "sort"],
)
def test_a_second_input_is_found_that_differs_in_one_token_that_matters(name: str) -> None:
    subject = adapter_of(f"checkpoints/{name}")
    one = subject.input.read(subject.input.default)
    other = one_token_changed(subject, one)
    assert other is not None
    assert sum(a != b for a, b in zip(one, other, strict=True)) == 1
    pair = MinimalPair.of(read(subject, one), read(subject, other))
    assert abs(pair.gap) > LEAST
    if pair.reading.has_right_answer:
        assert pair.reading.answer != pair.source.answer


def test_no_second_image_is_made_up() -> None:
    subject = adapter_of("checkpoints/digits")
    assert one_token_changed(subject, subject.input.read(subject.input.default)) is None
    assert pairs(subject) == {}


def test_the_picture_shows_the_table_and_frames_the_chosen_cell() -> None:
    a, b = (read("checkpoints/reverse-seq2seq", text) for text in ("3 7 12 5", "3 7 13 5"))
    for part in PARTS:
        table = patching_map(a, b, part=part, exact=True)
        for exact, show in ((True, None), (False, None), (True, "estimated"), ([0, 2], None)):
            spec = viz.patching_map(a, b, part=part, exact=exact, show=show, chosen=2).to_dict()
            shown = next(iter(spec["datasets"].values()))
            values = [row["value"] for row in shown]
            if isinstance(exact, list):
                assert [at for at, value in enumerate(values) if value is not None] == exact
                values, column = [values[at] for at in exact], table["measured"][exact]
            else:
                column = table[show or ("measured" if exact else "estimated")]
            assert values == pytest.approx(column.tolist(), abs=1e-5)
            assert len({(row["where"], row["column"]) for row in shown}) == len(shown)  # no two in one cell
            assert "cell == 2" in str(spec).replace("datum.", "").replace("===", "==")


@pytest.mark.xdist_group("transformers")
def test_the_estimates_of_a_real_model_rank_its_parts_as_measurements_do() -> None:
    """Who is given a drink: SmolLM2's embedding of the second “John”. The gradient of one run gives it 0.04 of 1."""
    subject = adapter_of(real_model("SmolLM2-135M-Instruct"))
    one, other = (
        read(subject, f"When Mary and John went to the store, {name} gave a drink to") for name in ("John", "Mary")
    )
    pair = MinimalPair.of(one, other)
    assert [subject.labels[token] for token in pair.answers] == ["·Mary", "·John"]
    stream, heads = cells(pair, "stream"), cells(pair, "head")
    assert len(heads) == 270
    [changed] = differing(pair.reading, pair.source)
    guesses = estimated(pair, stream)
    cause = next(at for at, cell in enumerate(stream) if (cell.said["layer"], cell.said["position"]) == (0, changed))
    assert guesses[cause] == pytest.approx(1.15, abs=0.1)
    for of, every, least in ((stream, 9, 0.85), (heads, 9, 0.6)):
        some = [cell for cell in of if cell.said["layer"] % every == 6]
        found = agreement(pd.DataFrame({"estimated": estimated(pair, some), "measured": measured(pair, some)}))
        assert found is not None
        assert found.rho > least


def test_a_reading_that_kept_only_its_logits_is_enough() -> None:
    whole = [read("checkpoints/reverse", text) for text in ("3 7 12 5", "3 7 13 5")]
    bare: list[Reading] = [read("checkpoints/reverse", text, keep=("logits",)) for text in ("3 7 12 5", "3 7 13 5")]
    one, other = (patching_map(*runs, part="head", exact=True) for runs in (whole, bare))
    pd.testing.assert_frame_equal(one, other, atol=1e-5)
    assert torch.equal(whole[0].logits, bare[0].logits)
