"""Charts of step-by-step generation: tokens, verdicts, curves and the first difference, on fixed scales."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.analysis.duel import SOURCE, random_variant, variant_of
from tests.viz.drawn_file import all_rows, rows_of, spec_of
from xformer import analysis, viz
from xformer.analysis.generation import decode_steps, divergence_by_step, first_divergence, predictions_by_step
from xformer.decoding import Sampling
from xformer.errors import InputError
from xformer.viz import theme
from xformer.viz.generation import SAYS
from xformer.viz.packing import visible

VARIANTS = [random_variant(f"seed {seed}", "decoder", seed=seed) for seed in (2, 3)]
VARIANTS.append(variant_of('hot "one"', VARIANTS[0].model, VARIANTS[0].task, sampling=Sampling(temperature=3.0)))
RUNS = [decode_steps(variant, SOURCE) for variant in VARIANTS]
STEP, LEAST = first_divergence(RUNS[:2]), 0.15
assert STEP is not None
COUNTED = analysis.agreement(VARIANTS[:2], samples=50)
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


def test_bars_are_the_probabilities_of_all_models_on_one_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xformer.viz.generation.LEAST", LEAST)  # high enough that a token of these variants is left out
    frame = analysis.likeliest_tokens(RUNS, STEP, 4)
    chart = viz.likeliest_tokens(RUNS, STEP, 4)
    shown = {(row["model"], row["token"]): row for row in all_rows(chart)}
    assert 0 < len({token for _, token in shown}) < frame["token"].nunique()
    for row in frame.to_dict("records"):
        others = frame[frame["token"] == row["token"]]
        if not (others["predicted"].any() or others["right"].any() or others["probability"].max() >= LEAST):
            assert (row["model"], row["token"]) not in shown
            continue
        bar = shown[row["model"], row["token"]]
        assert bar["probability"] == row["probability"]
        assert (SAYS in bar["shown"]) == row["predicted"]
        assert bar["place"].endswith(theme.RIGHT.mark) == row["right"]
    assert [row["model"] for row in shown.values() if SAYS in row["shown"]]
    spec = chart.to_dict(validate=False)
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    assert scale == {"domain": [p.name for p in VARIANTS], "range": theme.model_hues(3)}
    assert spec["layer"][0]["encoding"]["x"]["scale"]["domain"][0] == 0


def test_lines_show_verdicts_and_mark_the_first_difference() -> None:
    frame = analysis.predictions_by_step(RUNS)
    chart = viz.predictions_by_step(RUNS, "answer_probability")
    shown = {(row["model"], row["step"]): row for row in all_rows(chart) if "model" in row}
    assert len(shown) == len(frame)
    for row in frame.to_dict("records"):
        point, verdict = shown[row["model"], row["step"]], "right" if row["right"] else "wrong"
        assert (point["place"], point["verdict"]) == (f"{row['step']} · {row['answer']}", verdict)
    notes = [row for row in all_rows(chart) if row.get("note") == "first difference"]
    assert [note["place"] for note in notes] == [shown["seed 2", STEP]["place"]]
    grey = {row["place"] for row in all_rows(chart) if row.get("note") == "the models have read different tokens"}
    assert grey == {row["place"] for row in shown.values() if not row["same_context"]}
    assert grey
    alone = all_rows(viz.predictions_by_step(RUNS[:1]))
    assert not [row for row in alone if row.get("note") == "first difference"]


def test_infinite_divergence_is_a_gap() -> None:
    """An encoder of this task cannot predict "end", but a decoder can."""
    runs = [decode_steps(random_variant(kind, kind), SOURCE, forced=True) for kind in ("encoder", "decoder")]
    for what, is_gap in (("kl", False), ("kl_back", True)):
        chart = viz.divergence_by_step(runs, what)
        shown = [row["shown"] for row in all_rows(chart) if "pair" in row]
        assert len(shown) == len(SOURCE)
        assert all((value is None) == is_gap for value in shown)
        assert "Infinity" not in chart.to_json()
