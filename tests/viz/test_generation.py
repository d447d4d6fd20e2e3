"""Charts of step-by-step generation: tokens, verdicts, curves and the first difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.viz.drawn_file import rows_of, spec_of
from tests.viz.test_comparison import RUNS, STEP
from xformer import viz
from xformer.analysis.generation import divergence_by_step, predictions_by_step
from xformer.errors import InputError
from xformer.viz import theme
from xformer.viz.packing import visible

PAIR = RUNS[:2]


def lane(chart: Any, name: str) -> list[dict[str, Any]]:
    return sorted((row for row in rows_of(chart, "lane") if row["lane"] == name), key=lambda row: row["at"])


def test_lanes_show_tokens_verdicts_probabilities_and_marks() -> None:
    chart = spec_of(viz.step_lanes(PAIR, step=2))
    first, table = PAIR[0], predictions_by_step(PAIR)
    assert [row["token"] for row in lane(chart, "input")] == [first.labels[token] for token in first.example.source]
    assert [row["token"] for row in lane(chart, "right answer")] == [first.labels[token] for token in first.answer]
    for run in PAIR:
        rows, own = lane(chart, run.name), table[table["model"] == run.name]
        assert [row["token"] for row in rows] == [visible(run.labels[token]) for token in run.predicted]
        assert [row["kind"] == "right" for row in rows] == own["right"].tolist()
        assert [row["probability"] for row in rows] == pytest.approx(own["probability"].tolist())
    hues = {row["name"]: row["hue"] for row in rows_of(chart, "hue")}
    assert hues == dict(zip([run.name for run in PAIR], theme.model_hues(2), strict=True))
    # the shown step is framed, and the first difference is marked
    tables = [rows for rows in chart["datasets"].values() if rows and set(rows[0]) <= {"at", "note"}]
    assert {(row["at"], row.get("note")) for rows in tables for row in rows} >= {(2, None), (STEP, "first difference")}
    behind = divergence_by_step(PAIR)["same_context"].tolist().index(False)
    read = {row["at"] for rows in tables for row in rows if row.get("note") == "the models have read different tokens"}
    assert min(read) == behind


def test_step_beyond_the_last_raises() -> None:
    with pytest.raises(InputError, match=r"The steps are 0 to \d+, got 99; for example step=0"):
        viz.step_lanes(PAIR, step=99)


def test_curves_below_the_lanes_are_entropies_and_divergences() -> None:
    chart = spec_of(viz.step_lanes(RUNS, step=1))
    entropy = [(row["model"], row["entropy"]) for row in rows_of(chart, "entropy")]
    assert entropy == list(predictions_by_step(RUNS)[["model", "entropy"]].itertuples(index=False, name=None))
    divergence = rows_of(chart, "pair")
    assert [row["shown"] for row in divergence] == pytest.approx(divergence_by_step(RUNS)["kl"].tolist())
    assert len({row["pair"] for row in divergence}) == 3
    assert len(viz.step_lanes(RUNS[:1]).to_dict(validate=False)["vconcat"]) == 2


def test_differing_right_answers_are_marked_as_unequal() -> None:
    other = replace(PAIR[1], answer=tuple(reversed(PAIR[1].answer)))
    tokens = [row["token"] for row in lane(viz.step_lanes([PAIR[0], other]), "right answer")]
    assert [token == "≠" for token in tokens] == [a != b for a, b in zip(PAIR[0].answer, other.answer, strict=True)]
