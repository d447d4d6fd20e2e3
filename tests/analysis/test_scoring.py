"""Counts compared with single runs, accuracies with `evaluate`, and intervals with scipy."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import pytest
from scipy import stats

import xformer
from tests.analysis.duel import CHECKPOINTS, random_variant, shipped, variant_of
from tests.training.tiny import ARCHITECTURES
from xformer import edits
from xformer.analysis import comparison as predicting
from xformer.analysis.comparison import Variant
from xformer.analysis.generation import DecodedSteps, decode_steps
from xformer.analysis.scoring import (
    Agreement,
    accuracy,
    accuracy_by_length,
    confusion,
    count_agreement,
    has_mastered_its_training,
    lengths_compared,
    longest_mastered_length,
    same_answers,
    wilson,
)
from xformer.errors import InputError, UnavailableError
from xformer.tasks import Task
from xformer.training.evaluate import evaluate


def final(*variants: Variant, samples: int = 11, seed: int = 3) -> Agreement:
    *_, last = count_agreement(variants, samples=samples, seed=seed)
    assert last.is_final
    return last


def test_wilson_matches_scipy() -> None:
    for hits, trials in ((0, 1), (1, 1), (2, 7), (0, 60), (59, 60), (60, 60), (33_333, 100_000)):
        reference = stats.binomtest(hits, trials).proportion_ci(method="wilson")
        assert wilson(hits, trials) == pytest.approx((reference.low, reference.high), abs=1e-14)
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="4"):
        wilson(4, 3)


def sources_of(variant: Variant, samples: int, seed: int) -> list[list[int]]:
    """Return the sampled inputs, taken from an encoder's batch of the same task."""
    batch = variant.task.for_architecture("encoder").sample(samples, seed=seed)
    return [[token for token in row if token] for row in batch.tokens.tolist()]


def table(frame, *columns: str) -> dict[tuple, tuple[int, int]]:  # pyright: ignore
    return {tuple(row[c] for c in columns): (row["hits"], row["trials"]) for row in frame.to_dict("records")}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_counts_match_single_runs(architecture: str) -> None:
    stack = "encoder" if architecture == "encoder" else "decoder"
    one = random_variant("one", architecture, seed=1)
    ablated = variant_of("ablated", one.model, one.task, (edits.scale(f"{stack}.1.ffn.out", 0.0),))
    other = random_variant("other", "encoder", seed=2)
    variants = (one, ablated, other)
    result = final(*variants)
    hits: Counter = Counter()
    trials: Counter = Counter()
    predicted: Counter = Counter()

    def count(key: tuple, right: bool) -> None:
        hits[key] += right
        trials[key] += 1

    for source in sources_of(one, 11, 3):
        runs: list[DecodedSteps] = [decode_steps(variant, source, forced=True) for variant in variants]
        for this in runs:
            name = this.name
            for place, right in enumerate(this.right):
                count(("position", name, "token", place), right)
                count(("position", name, "exact", place), all(this.right[: place + 1]))
                count(("length", name, "token", len(source)), right)
                count(("all", name, "token"), right)
                predicted[name, this.labels[this.answer[place]], this.labels[this.predicted[place]]] += 1
            count(("length", name, "exact", len(source)), all(this.right))
            count(("all", name, "exact"), all(this.right))
        for a, b in ((0, 1), (0, 2), (1, 2)):
            both = [[run.labels[token] for token in run.predicted] for run in (runs[a], runs[b])]
            same = [x == y for x, y in zip(*both, strict=False)]
            for is_same in same:
                count(("pair", runs[a].name, runs[b].name, "token"), is_same)
            count(("pair", runs[a].name, runs[b].name, "exact"), all(same))

    def expected(kind: str) -> dict[tuple, tuple[int, int]]:
        return {key[1:]: (hits[key], trials[key]) for key in trials if key[0] == kind}

    assert 0 < hits["all", "one", "token"] < trials["all", "one", "token"]
    for kind, columns, frame in (
        ("all", ["model", "measure"], accuracy(result)),
        ("position", ["model", "measure", "position"], accuracy(result, "position")),
        ("length", ["model", "measure", "length"], accuracy(result, "length")),
        ("pair", ["one", "other", "measure"], same_answers(result)),
    ):
        assert table(frame, *columns) == expected(kind)
        for row in frame.to_dict("records"):
            interval = wilson(row["hits"], row["trials"])
            assert (row["share"], row["low"], row["high"]) == (row["hits"] / row["trials"], *interval)
    found = confusion(result)
    assert found.set_index(["model", "right", "predicted"])["count"].to_dict() == dict(predicted)
    shares = found.groupby(["model", "right"])["share"].sum()
    assert shares.tolist() == pytest.approx([1.0] * len(shares))


def test_an_answer_leaked_by_an_edit_is_not_counted() -> None:
    """If a change lets a decoder see ahead, its step-by-step predictions are counted."""
    variant = random_variant("lifted", "decoder", seed=3, edits=(edits.set_causal(False),))
    result = final(variant, random_variant("untouched", "decoder", seed=3))
    right = exact = 0
    for source in sources_of(variant, 11, 3):
        one = decode_steps(variant, source, forced=True)
        right, exact = right + sum(one.right), exact + all(one.right)
    figures = accuracy(result).query("model == 'lifted'").set_index("measure")["hits"]
    assert (figures["token"], figures["exact"]) == (right, exact)


def test_variants_with_different_tokens_or_equal_names_are_refused() -> None:
    one = random_variant("one", "encoder")
    with pytest.raises(InputError, match="different names"):
        next(count_agreement([one, one]))
    with pytest.raises(InputError, match="compare models of one task"):
        next(count_agreement([one, shipped("reverse-small")]))


def test_counting_long_inputs_in_portions_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    variants = [random_variant("a", "encoder"), random_variant("b", "encoder", seed=1)]
    whole = final(*variants)
    monkeypatch.setattr(predicting, "CELLS_AT_ONCE", 50)
    reports = list(count_agreement(variants, samples=11, seed=3))
    assert len(reports) > 3
    assert [report.done for report in reports] == sorted({report.done for report in reports})
    for name in ("hits", "trials", "confusions"):
        assert getattr(reports[-1], name) == getattr(whole, name)


def reading(name: str, text: str = "3 7 12 9") -> xformer.Reading:
    return xformer.read(CHECKPOINTS / name, text)


def rows(trained: list[float], beyond: list[float]) -> pd.DataFrame:
    shares = trained + beyond
    flags = [True] * len(trained) + [False] * len(beyond)
    return pd.DataFrame({"length": range(3, 3 + len(shares)), "exact_match": shares, "trained": flags})


def test_how_far_ends_before_the_first_length_that_fails() -> None:
    assert longest_mastered_length(rows([1.0, 1.0], [1.0, 0.99, 0.98, 1.0])) == 6
    assert longest_mastered_length(rows([1.0, 1.0], [0.5, 1.0])) is None
    assert longest_mastered_length(rows([1.0, 1.0], [])) is None
    assert has_mastered_its_training(rows([1.0, 0.99], [0.0]))
    assert not has_mastered_its_training(rows([1.0, 0.98], [1.0]))
    assert not has_mastered_its_training(rows([], [1.0]))


def variant(name: str, called: str, **options: str) -> Variant:
    return Variant.load(str(CHECKPOINTS / name), called, **options)


def test_lengths_compared_matches_evaluate_at_each_length() -> None:
    models = [variant("reverse-small", "A"), variant("reverse-mirror", "B")]
    models.append(variant("reverse-small", "C", edits="ablate:encoder.0.attn.0"))
    table = lengths_compared(models, lengths=[5, 16], samples=40, seed=3).set_index(["model", "length"])
    one, row = models[1], table.loc[("B", 16)]
    found = evaluate(one.model, Task(one.task.config.replace(min_len=16, max_len=16)), samples=40, seed=3)
    both = found.exact_match, found.token_accuracy
    assert (row["exact_match"], row["token_accuracy"]) == pytest.approx(both, abs=1e-12)
    assert (row["low"], row["high"]) == wilson(round(found.exact_match * 40), 40)
    alone = accuracy_by_length(reading("reverse-mirror"), lengths=[16], samples=40, seed=3).loc[0]
    assert (alone["exact_match"], alone["low"], alone["trained"]) == (row["exact_match"], row["low"], False)
    assert table.loc[("A", 5), "exact_match"] == 1.0
    assert table.loc[("C", 5), "exact_match"] < 0.5  # its own changes are applied
    assert table["trained"].tolist() == [True, True, True, False, False, False]


def test_lengths_that_cannot_be_tested_are_refused() -> None:
    with pytest.raises(InputError, match="one task"):
        lengths_compared([variant("reverse-small", "A"), variant("addition", "B")], samples=2)
    with pytest.raises(UnavailableError, match="have the same length"):
        lengths_compared([variant("modular", "A"), variant("modular", "B")], samples=2)
    with pytest.raises(UnavailableError, match="have the same length"):
        accuracy_by_length(reading("digits", "test 3"))
    with pytest.raises(InputError, match="from 1 to 40, got 41"):  # the second model reads up to 64
        lengths_compared([variant("reverse-mirror", "A"), variant("reverse-long", "B")], lengths=[41])
    with pytest.raises(InputError, match="from 1 to 40, got 41"):
        accuracy_by_length(reading("reverse-mirror"), lengths=[41])
