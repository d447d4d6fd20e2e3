"""The effects of ablating heads: measured, estimated to first order, and summarised."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import xformer
from pages.attention.head_scores import effect_summary
from tests.analysis.duel import of_family
from xformer import analysis, edits, viz
from xformer.analysis.ablation import NOTHING, RankAgreement, agreement, estimate_head_effects, order_to_measure
from xformer.errors import EditError, InputError, UnavailableError
from xformer.reading import rerun


def test_each_measured_effect_matches_a_run_without_that_head() -> None:
    reading = xformer.read("checkpoints/reverse-seq2seq", "3 7 12")
    frame = analysis.head_effects(reading)
    assert len(frame) == sum(reading.adapter.shape.heads.values())
    for path, head, measured in zip(frame["layer"], frame["head"], frame["measured"], strict=True):
        by_hand = rerun(reading, [edits.ablate_head(path, head)]).loss - reading.loss
        assert measured == pytest.approx(by_hand, abs=1e-5)


def test_measured_effects_of_external_models_match_runs_without_the_head() -> None:
    read = of_family("BART")
    path = read.attention[-1].path
    reading = rerun(read, [edits.ablate_head(path, 1)])
    token, second = reading.logits[0, 2].topk(2).indices.tolist()
    frame = analysis.head_effects(reading, position=2)
    for row in frame.to_dict("records"):
        at = rerun(reading, [edits.ablate_head(row["layer"], row["head"])]).logits[0, 2]
        change = (at[token] - at[second]) - (reading.logits[0, 2, token] - reading.logits[0, 2, second])
        assert row["measured"] == pytest.approx(float(change), abs=1e-4)
    ablated = frame.set_index(["layer", "head"]).loc[(path, 1)].to_dict()
    assert ablated == {"measured": pytest.approx(0, abs=1e-5), "estimated": 0}


def test_an_estimate_is_the_slope_of_the_loss_towards_ablation() -> None:
    """Removing a small share of a head changes the loss by that share of the estimate."""
    reading, share = of_family("Llama"), 1e-2
    for row in analysis.head_effects(reading, exact=False).to_dict("records")[::3]:
        assert pd.isna(row["measured"])
        name = f"{row['layer']}.z"
        both = [rerun(reading, [edits.scale(name, 1 + sign * share, heads=[row["head"]])]).loss for sign in (-1, 1)]
        assert row["estimated"] == pytest.approx((both[0] - both[1]) / (2 * share), abs=2e-4)


def test_the_head_with_the_largest_estimate_is_measured_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xformer.analysis.ablation.AT_ONCE", 12)
    found = estimate_head_effects(xformer.read("checkpoints/reverse", "3 7 12 9"))
    largest = max(found.estimated, key=lambda head: abs(found.estimated[head]))
    reports = found.measure_all()
    seen = [(one.done, one.is_final, largest in one.measured, one.table()["measured"].count()) for one in reports]
    assert seen[:2] == [(0, False, False, 0), (1, False, True, 1)]  # first only estimated
    assert seen[-1] == (16, True, True, 16)
    assert found.to_do == len(found.table()) == 16


def test_effects_that_cannot_be_measured_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = xformer.read("checkpoints/induction", "3 7 3")
    with pytest.raises(EditError, match="no head 4 in attention layer 0"):
        analysis.head_effects(reading, exact=[(0, 4)])
    with pytest.raises(InputError, match="The scores of a head are"):
        viz.head_effects(reading, score="beauty", exact=False)
    monkeypatch.setattr("xformer.analysis.ablation.free_bytes", lambda: 1000)
    with pytest.raises(UnavailableError, match="type a shorter input"):
        estimate_head_effects(reading)
    with pytest.raises(UnavailableError, match="so none can be ablated"):
        estimate_head_effects(xformer.read("checkpoints/reverse", "3 7 12 9", keep=("*.pattern",)))


def effects(*rows: tuple[float | None, float]) -> pd.DataFrame:
    """Build the effects of heads with these measurements and scores; estimates equal the measurements."""
    table = pd.DataFrame(rows, columns=["measured", "induction"]).astype(float)
    return table.assign(name=[f"head {index}" for index in table.index], estimated=table["measured"].fillna(0.0))


NONE_NEEDED = "No single head is needed: ablating any one changes the loss by {} at most."


def test_the_summary_names_the_heads_that_are_needed() -> None:
    for heads, sentences in (
        ([(2.0, 0.9), (0.1, 0.1)], ["Without **head 0** the loss goes from 1.000 to 3.000",
                                    "It also has the highest induction score, 90%."]),
        ([(2.0, 0.1), (0.01, 0.9)],
         ["**Head 1** has the highest induction score, 90%, but is not needed here: +0.010 without it."]),
        ([(2.0, 0.1), (1.0, 0.9)], ["**Head 1**, with the highest induction score, 90%, is also needed: +1.000."]),
        ([(0.5, 0.1), (None, 0.9), *[(0.1, 0.2)] * 4], ["the largest effect among the 5 measured heads (of 6)"]),
        ([(0.01, 0.3), (-0.02, 0.1)], [NONE_NEEDED.format("0.020")]),
        ([(0.0101, 0.3), (-0.0174, 0.1)], [NONE_NEEDED.format("0.018")]),
    ):  # fmt: skip
        summary = effect_summary(effects(*heads), "induction", "loss", 1.0)
        assert all(sentence in summary for sentence in sentences)
    # heads without a clear score or measurement are not named
    assert effect_summary(effects((2.0, 0.3), (0.0, 0.1)), "induction", "loss", 1.0).endswith("the largest effect.")
    for heads in (((2.0, 0.1), (0.04, 0.9)), ((0.5, 0.1), (None, 0.9), *[(0.1, 0.2)] * 4)):
        assert "head 1" not in effect_summary(effects(*heads), "induction", "loss", 1.0).lower()


def agreement_of(estimated: Sequence[float], measured: Sequence[float]) -> RankAgreement:
    """Return the agreement, which must exist."""
    found = agreement(pd.DataFrame({"estimated": estimated, "measured": measured}))
    assert found is not None
    return found


def test_the_rank_correlation_matches_scipy() -> None:
    random = np.random.default_rng(0)
    measured = random.normal(size=40)
    estimated = measured + random.normal(size=40)
    sums = [abs(measured[np.argsort(-abs(values))[:6]]).sum() for values in (estimated, measured)]
    assert 0.5 < sums[0] / sums[1] < 1.0
    rho = scipy.stats.spearmanr(estimated, measured)[0]
    wanted = RankAgreement(pytest.approx(rho), 40, 6, pytest.approx(sums[0] / sums[1]))
    assert agreement_of(estimated.tolist(), measured.tolist()) == wanted


def test_few_or_equal_numbers_have_no_agreement() -> None:
    values = [0.1 * step for step in range(12)]  # the first has no effect
    found = agreement_of(values, [value**3 for value in values])
    assert found == RankAgreement(pytest.approx(1.0), 11, 3, pytest.approx(1.0))
    assert not found.is_poor
    one = pd.DataFrame({"estimated": values, "measured": [value**3 for value in values]})
    assert agreement(one.head(10)) is None
    assert agreement(one * NOTHING / 2) is None
    assert agreement(one.assign(estimated=0.5)) is None
    assert agreement(one.drop(columns="measured")) is None
    assert agreement(one.assign(measured=[*[None] * 3, *values[3:]]).astype(float)) is None  # only nine are measured


def test_a_reversed_or_random_order_is_near_chance() -> None:
    values = [0.1 * step for step in range(1, 31)]
    inverted = agreement_of(values, [-value for value in values])
    assert (inverted.rho, inverted.is_near_chance) == (pytest.approx(-1.0), True)
    assert agreement_of(values, np.random.default_rng(1).permutation(values).tolist()).is_near_chance


def test_a_good_order_that_misses_the_largest_effects_is_poor() -> None:
    values = [0.01 * step for step in range(1, 61)]
    missed = agreement_of([0.0, 0.0, 0.0, 0.0, *values[4:]], [9.0, 8.0, 7.0, 6.0, *values[4:]])
    assert missed.found == pytest.approx(sum(values[-6:]) / (9 + 8 + 7 + 6 + sum(values[-2:])))
    assert (missed.is_near_chance, missed.is_poor) == (False, True)
    alike = agreement_of(values, [*values[:40], *[0.7 - value / 10 for value in values[40:]]])
    assert (alike.found > 0.95, alike.is_poor) == (True, False)


def test_every_second_part_is_measured_in_random_order() -> None:
    order = order_to_measure([(-1.0) ** at * at for at in range(1000)])
    assert sorted(order) == list(range(1000))
    assert order[0] == 999
    first = set(order[:100])
    assert set(range(960, 1000)) <= first
    assert 35 <= len(first & set(range(900))) <= 50


def test_the_first_head_worth_seeing_has_a_pattern_and_an_effect() -> None:
    reading = xformer.read("checkpoints/reverse-small", "3 7 12 9 4 11")
    first, second = xformer.analysis.heads_worth_seeing(reading).to_dict("records")
    assert (first["layer"], first["pattern"]) == ("encoder.1.attn", "task_pattern")
    assert (second["layer"], second["pattern"]) == ("encoder.0.attn", "")  # a larger effect, but no known pattern
    for row in (first, second):
        without = xformer.read("checkpoints/reverse-small", "3 7 12 9 4 11", edits=f"ablate:{row['layer']}.0")
        assert row["right"] == without.n_correct < reading.n_correct
        assert row["effect"] == pytest.approx(without.loss - reading.loss, rel=1e-4)
