"""What each part carries of the difference of two inputs is what a run with that part replaced by hand says it carries."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pandas as pd
import pytest
import torch

from tests.analysis.duel import random_contender
from tests.real_models import real_model
from tests.subjects.families import FAMILIES
from tests.subjects.test_language_models import tokenizer
from tests.training.tiny import ARCHITECTURES
from xformer import edits, viz
from xformer.analysis import patching_map
from xformer.analysis.minimal_pair import LEAST, MinimalPair, differing, stacks_of, usual_answers
from xformer.analysis.one_token_changed import one_token_changed, pairs
from xformer.analysis.patched_cells import Part, agreement, attributed, cells, restored, restoring
from xformer.edits import AnyEdit
from xformer.errors import InputError, UnavailableError
from xformer.model import Transformer
from xformer.reading import Reading, read, rerun, subject_of
from xformer.subjects import TaskModel
from xformer.subjects.foreign.any_module import AnyModule
from xformer.subjects.foreign.language_model import LanguageModel
from xformer.trace import record

PARTS = get_args(Part)
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
def test_each_cell_is_the_same_replacement_made_by_hand(architecture: str, part: Part) -> None:
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
        assert row["restored"] == pytest.approx(by_hand(pair, [edits.replace(name, value)]), abs=1e-4)
    assert (table["restored"].abs() > 0.01).sum() >= 3


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_everything_replaced_is_the_other_run(architecture: str) -> None:
    pair = pair_of(architecture)
    stacks = stacks_of(pair.reading)
    everything = [edits.patch_from(pair.source.trace, f"{stack}.0.resid_pre") for stack in stacks]
    assert by_hand(pair, [*everything]) == pytest.approx(1.0, abs=1e-5)
    stream = patching_map(pair.reading, pair.source, exact=True)
    last = stream[(stream["stack"] == stacks[-1]) & (stream["layer"] == 2) & (stream["position"] == pair.position)]
    assert last["restored"].item() == pytest.approx(1.0, abs=1e-5)  # the logits are made of nothing else
    others = stream[(stream["stack"] == stacks[-1]) & (stream["layer"] == 2) & (stream["position"] != pair.position)]
    assert others["restored"].abs().max() < 1e-5


def test_what_is_linear_is_attributed_exactly() -> None:
    """Without norms and without neurons the last layer's heads are added up into the logits; with neurons they are not."""
    for d_ff, is_linear in ((0, True), (11, False)):
        pair = pair_of("encoder", norm="none", d_ff=d_ff)
        table = patching_map(pair.reading, pair.source, part="head", exact=True)
        last = table[table["layer"] == 1]
        off = (last["attributed"] - last["restored"]).abs().max()
        assert off < 1e-4 if is_linear else off > 1e-3
        assert last["restored"].abs().max() > 0.01


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
    best = heads.loc[heads["restored"].idxmax()]
    assert (best["layer"], best["head"]) == (layer, head)
    assert best["restored"] > 0.9
    assert heads["attributed"].idxmax() == heads["restored"].idxmax()


@pytest.mark.parametrize("family", ["GPT-2", "Llama", "GPT-J", "BERT", "T5"])
@pytest.mark.xdist_group("transformers")
def test_models_of_others_are_patched_as_one_edit_at_a_time_does_it(family: str) -> None:
    subject = LanguageModel.open(FAMILIES[family].make(), tokenizer())
    target = " >> the mat sat" if subject.shape.is_pair else ""
    a, b = (read(subject, text + target) for text in TEXTS)
    pair = MinimalPair.of(a, b)
    for part in PARTS:
        some = cells(pair, part)[::5]
        shares = restored(pair, some)
        for cell, share in zip(some, shares, strict=True):
            value = a[cell.name].clone()
            value[0][cell.where] = b[cell.name][0][cell.where]
            run = a.subject.record(a.example, edits=[edits.replace(cell.name, value)], keep=("logits",))
            assert share == pytest.approx((pair.measure(run.logits).item() - pair.start) / pair.gap, abs=1e-4)
        assert max(map(abs, attributed(pair, some))) > 1e-4


@pytest.mark.xdist_group("transformers")
def test_a_module_that_reads_only_its_own_inputs_is_patched_part_by_part() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True)
    one, other = torch.randn(2, 1, 5, 12)
    subject = AnyModule.open(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), one)
    a, b = read(subject, None), read(subject.given(other), None)
    table = patching_map(a, b, part="head", answers=(3, 4), position=1, exact=True)
    value = a["encoder.1.attn.z"].clone()
    value[0, 2] = b["encoder.1.attn.z"][0, 2]
    leads = [
        run.logits[0, 1, 3] - run.logits[0, 1, 4]
        for run in (rerun(a, [edits.replace("encoder.1.attn.z", value)]), a, b)
    ]
    share = (leads[0] - leads[1]) / (leads[2] - leads[1])
    assert table["restored"].iloc[-1] == pytest.approx(share.item(), abs=1e-5)


def test_a_part_that_is_equal_in_both_runs_carries_nothing_and_costs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pair_of("decoder")
    first = differing(pair.reading, pair.source)[0]
    before = [cell for cell in cells(pair, "stream") if cell.said["position"] < first]
    assert before
    monkeypatch.setattr(Transformer, "forward", lambda *args, **more: pytest.fail("it was run"))
    assert restored(pair, before) == [0.0] * len(before)


def test_the_exact_map_tells_how_far_it_is() -> None:
    pair = pair_of("encoder")
    of = cells(pair, "stream")
    reports = list(restoring(pair, of))
    done = [len(report.shares) for report in reports]
    assert len(reports) > 1
    assert done == sorted(done)
    assert [report.is_final for report in reports] == [False] * (len(reports) - 1) + [True]
    assert all(report.shares == reports[-1].shares[: len(report.shares)] for report in reports)


def test_a_long_layer_is_reported_in_pieces_that_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pair_of("encoder")
    of = cells(pair, "head")
    whole = restored(pair, of)
    monkeypatch.setattr("xformer.analysis.patched_cells.AT_ONCE", 1)
    reports = list(restoring(pair, of))
    assert len(reports) == len(of)
    assert reports[-1].shares == pytest.approx(whole, abs=1e-5)


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
    subject = subject_of("checkpoints/reverse")
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


def test_the_rank_agreement_is_silent_where_it_would_mean_nothing() -> None:
    values = [0.1 * step for step in range(12)]
    table = pd.DataFrame({"attributed": values, "restored": [value**3 for value in values]})
    found = agreement(table)
    assert found is not None
    assert (found.rho, found.n) == (pytest.approx(1.0), 11)  # the one that does nothing is not counted
    turned = agreement(table.assign(restored=-table["restored"]))
    assert turned is not None
    assert turned.rho == pytest.approx(-1.0)
    assert agreement(table.head(9)) is None
    assert agreement(table * 1e-5) is None
    assert agreement(table.assign(attributed=0.5)) is None
    assert agreement(table.drop(columns="restored")) is None


@pytest.mark.parametrize(
    "name",
    ["addition", "brackets", "characters", "induction", "modular", "parity", "reverse", "reverse-seq2seq", "sort"],
)
def test_a_second_input_is_found_that_differs_in_one_token_that_matters(name: str) -> None:
    subject = subject_of(f"checkpoints/{name}")
    one = subject.input.read(subject.input.default)
    other = one_token_changed(subject, one)
    assert other is not None
    assert sum(a != b for a, b in zip(one, other, strict=True)) == 1
    pair = MinimalPair.of(read(subject, one), read(subject, other))
    assert abs(pair.gap) > LEAST
    if pair.reading.has_right_answer:
        assert pair.reading.answer != pair.source.answer


def test_no_second_image_is_made_up() -> None:
    subject = subject_of("checkpoints/digits")
    assert one_token_changed(subject, subject.input.read(subject.input.default)) is None
    assert pairs(subject) == {}


def test_the_picture_shows_the_table_and_frames_the_chosen_cell() -> None:
    a, b = (read("checkpoints/reverse-seq2seq", text) for text in ("3 7 12 5", "3 7 13 5"))
    for part in PARTS:
        table = patching_map(a, b, part=part, exact=True)
        for exact, column in ((True, "restored"), (False, "attributed")):
            spec = viz.patching_map(a, b, part=part, exact=exact, chosen=2).to_dict()
            shown = next(iter(spec["datasets"].values()))
            assert [row["value"] for row in shown] == pytest.approx(table[column].tolist(), abs=1e-5)
            assert len({(row["where"], row["column"]) for row in shown}) == len(shown)  # no two in one cell
            assert "cell == 2" in str(spec).replace("datum.", "").replace("===", "==")


@pytest.mark.xdist_group("transformers")
def test_the_quick_map_of_a_real_model_ranks_its_heads_as_the_exact_one() -> None:
    subject = subject_of(real_model("SmolLM2-135M-Instruct"))
    a, b = (read(subject, f"The capital of {country} is") for country in ("France", "Germany"))
    pair = MinimalPair.of(a, b)
    every = cells(pair, "head")
    assert len(every) == 270
    some = [cell for cell in every if cell.said["layer"] % 3 == 2]
    found = agreement(pd.DataFrame({"attributed": attributed(pair, some), "restored": (exact := restored(pair, some))}))
    assert found is not None
    assert found.rho > 0.9
    assert max(exact) > 0.5
    assert {"·Paris", "·Berlin"} == {a.subject.labels[token] for token in pair.answers}


def test_a_reading_that_kept_only_its_logits_is_enough() -> None:
    whole = [read("checkpoints/reverse", text) for text in ("3 7 12 5", "3 7 13 5")]
    bare: list[Reading] = [read("checkpoints/reverse", text, keep=("logits",)) for text in ("3 7 12 5", "3 7 13 5")]
    one, other = (patching_map(*runs, part="head", exact=True) for runs in (whole, bare))
    pd.testing.assert_frame_equal(one, other, atol=1e-5)
    assert torch.equal(whole[0].logits, bare[0].logits)
