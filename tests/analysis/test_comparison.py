"""The search finds what a plain walk through the same inputs finds, and ends."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.analysis.duel import random_variant, variant_of
from tests.analysis.test_scoring import sources_of
from tests.training.tiny import ARCHITECTURES
from xformer import edits
from xformer.analysis import comparison as module
from xformer.analysis.comparison import Disagreement, Variant, search
from xformer.analysis.generation import decode_steps, first_divergence
from xformer.errors import InputError


def walked(variants: list[Variant], n: int, seed: int) -> list[Disagreement]:
    """Every input on which the forced runs part, in the order they are drawn."""
    found = []
    for source in sources_of(variants[0], n, seed):
        runs = [decode_steps(variant, source, forced=True) for variant in variants]
        step = first_divergence(runs)
        if step is None:
            continue
        tokens = [one.labels[one.predicted[step]] for one in runs]
        p = [one.probability(step) for one in runs]
        pairs = combinations(range(len(runs)), 2)
        confidence = max(min(p[a], p[b]) for a, b in pairs if tokens[a] != tokens[b])
        free = all(right for one in runs for right in one.right[:step])
        right = runs[0].labels[runs[0].answer[step]]
        found.append(Disagreement(tuple(source), step, tuple(tokens), tuple(p), right, confidence, free))
    return found


def same(one: Disagreement | None, other: Disagreement) -> bool:
    assert one is not None
    assert one.probability == pytest.approx(other.probability, abs=2e-5)
    assert one.confidence == pytest.approx(other.confidence, abs=2e-5)
    return (one.source, one.step, one.predicted, one.right, one.in_free_running) == (
        other.source, other.step, other.predicted, other.right, other.in_free_running
    )  # fmt: skip


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_finds_what_a_plain_walk_finds(architecture: str) -> None:
    variants = [random_variant(f"seed {seed}", architecture, seed=seed) for seed in range(3)]
    found = walked(variants, 19, 4)
    assert len(found) > 10
    for want, expected in (
        ("first", found[0]),
        ("most confident", max(found, key=lambda one: one.confidence)),
        ("shortest", min(found, key=lambda one: len(one.source))),
    ):
        *_, last = search(variants, want, within=19, seed=4)  # pyright: ignore[reportArgumentType]
        assert same(last.found, expected)
        assert last.is_final
        assert want != "most confident" or last.n_found == len(found)


def test_it_finds_the_same_where_one_model_would_see_ahead() -> None:
    lifted = random_variant("lifted", "decoder", seed=1, edits=(edits.set_causal(False),))
    variants = [random_variant("own", "decoder"), lifted]
    found = walked(variants, 17, 4)
    *_, sure = search(variants, "most confident", within=17, seed=4)
    assert same(sure.found, max(found, key=lambda one: one.confidence))
    assert (sure.n_found, sure.looked) == (len(found), 17)


def test_a_search_without_a_result_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)
    one = random_variant("one", "decoder")
    reports = list(search([one, variant_of("twin", one.model, one.task)], within=23))
    ends = [f"None found in {n} inputs so far." for n in (7, 14, 21)] + ["None found in 23 inputs."]
    assert [report.sentence for report in reports] == ends
    assert [report.is_final for report in reports] == [False, False, False, True]


def test_the_first_ends_the_search_and_the_best_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)
    variants = [random_variant(f"seed {seed}", "encoder", seed=seed) for seed in range(2)]
    assert [report.looked for report in search(variants, "first", within=70)] == [7]
    assert [report.looked for report in search(variants, "most confident", within=70)][-1] == 70
    *_, short = search(variants, "shortest", within=700)
    assert short.found is not None
    assert len(short.found.source) == 2  # as short as this task's inputs get
    assert short.looked < 700


def test_impossible_searches_are_refused() -> None:
    one, other = (random_variant(f"seed {seed}", "encoder", seed=seed) for seed in range(2))
    with pytest.raises(InputError, match="takes two models"):
        next(search([one]))
    with pytest.raises(InputError, match="first, shortest, most confident, got 'best'"):
        next(search([one, other], "best"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="At least one input"):
        next(search([one, other], within=0))
