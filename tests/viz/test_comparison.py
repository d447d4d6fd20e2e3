"""Charts of a comparison have the numbers of their tables, on fixed scales, and are legible without colour."""

from __future__ import annotations

import pytest

from tests.analysis.duel import SOURCE, random_variant, variant_of
from tests.viz.drawn_file import all_rows as rows
from xformer import analysis, viz
from xformer.analysis.differences import lens_divergence
from xformer.analysis.generation import decode_steps, first_divergence
from xformer.decoding import Sampling
from xformer.edits import zero_positions
from xformer.viz import theme
from xformer.viz.generation import SAYS

VARIANTS = [random_variant(f"seed {seed}", "decoder", seed=seed) for seed in (2, 3)]
VARIANTS.append(variant_of('hot "one"', VARIANTS[0].model, VARIANTS[0].task, sampling=Sampling(temperature=3.0)))
RUNS = [decode_steps(variant, SOURCE) for variant in VARIANTS]
STEP, LEAST = first_divergence(RUNS[:2]), 0.15
assert STEP is not None
READINGS = [one[STEP] for one in RUNS[:2]]
CHANGED = variant_of("changed", VARIANTS[0].model, VARIANTS[0].task, (zero_positions(),))
TWINS = [RUNS[0], decode_steps(CHANGED, SOURCE)]
CHANGES_AT = first_divergence(TWINS)
assert CHANGES_AT is not None
PATCHED = [one[CHANGES_AT] for one in TWINS]
COUNTED = analysis.agreement(VARIANTS[:2], samples=50)


def test_bars_are_the_probabilities_of_all_models_on_one_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xformer.viz.generation.LEAST", LEAST)  # high enough that a token of these variants is left out
    frame = analysis.likeliest_tokens(RUNS, STEP, 4)
    chart = viz.likeliest_tokens(RUNS, STEP, 4)
    shown = {(row["model"], row["token"]): row for row in rows(chart)}
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
    shown = {(row["model"], row["step"]): row for row in rows(chart) if "model" in row}
    assert len(shown) == len(frame)
    for row in frame.to_dict("records"):
        point, verdict = shown[row["model"], row["step"]], "right" if row["right"] else "wrong"
        assert (point["place"], point["verdict"]) == (f"{row['step']} · {row['answer']}", verdict)
    notes = [row for row in rows(chart) if row.get("note") == "first difference"]
    assert [note["place"] for note in notes] == [shown["seed 2", STEP]["place"]]
    grey = {row["place"] for row in rows(chart) if row.get("note") == "the models have read different tokens"}
    assert grey == {row["place"] for row in shown.values() if not row["same_context"]}
    assert grey
    alone = rows(viz.predictions_by_step(RUNS[:1]))
    assert not [row for row in alone if row.get("note") == "first difference"]


def test_infinite_divergence_is_a_gap() -> None:
    """An encoder of this task cannot predict "end", but a decoder can."""
    runs = [decode_steps(random_variant(kind, kind), SOURCE, forced=True) for kind in ("encoder", "decoder")]
    for what, is_gap in (("kl", False), ("kl_back", True)):
        chart = viz.divergence_by_step(runs, what)
        shown = [row["shown"] for row in rows(chart) if "pair" in row]
        assert len(shown) == len(SOURCE)
        assert all((value is None) == is_gap for value in shown)
        assert "Infinity" not in chart.to_json()


def test_layers_over_different_tokens_are_not_mixed() -> None:
    reading = decode_steps(random_variant("pair", "encoder-decoder"), SOURCE, forced=True)[2]
    frame = analysis.decision_rows([reading])
    with pytest.raises(ValueError, match="one by one"):
        viz.decision_rows([reading])
    cross = frame[frame["layer"].str.endswith("cross_attn")]
    shown = rows(viz.decision_rows([reading], kind_label="cross-attention"))
    assert [row["weight"] for row in shown] == cross["weight"].tolist()
    assert {row["row"] for row in shown} >= {"decoder 1 · cross · head 1", "decoder 2 · cross · mean"}


def test_lens_shows_the_likeliest_tokens_and_where_they_diverge() -> None:
    frame = analysis.decision_lens(READINGS)
    parted = lens_divergence(frame)
    assert parted is not None
    chart = viz.decision_lens(READINGS, pair=(0, 1))
    says = [f"{row['token']} ✓" if row["right"] else row["token"] for row in frame.to_dict("records")]
    assert [row["says"] for row in rows(chart) if "model" in row] == says
    assert [row["point"] for row in rows(chart) if "note" in row] == [parted[1]]
    assert not [row for row in rows(viz.decision_lens(READINGS)) if "note" in row]


def test_patching_bars_are_sorted_in_the_hues_of_their_heads() -> None:
    both = analysis.patching(PATCHED)
    frame = both[both["source"] == PATCHED[0].adapter.name]
    shown = [row for row in rows(viz.patching(PATCHED)) if "part" in row]
    assert [row["restored"] for row in shown] == frame["restored"].head(20).tolist()
    assert all(row["hue"] == theme.head_hue(row["head"] - 1) for row in shown if row["head"])
    assert ["⇒" in row["text"] for row in shown] == [row["turns"] for row in shown]
    assert any(row["turns"] for row in shown)
    there = [row for row in rows(viz.patching(PATCHED, out_of=1, table=both)) if "part" in row]
    assert {row["source"] for row in there} == {PATCHED[1].adapter.name}
