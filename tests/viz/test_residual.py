"""Charts of the residual stream have the numbers of the run and mark right tokens."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch

from tests.training.tiny import random_model
from tests.viz.drawn_file import all_rows, ends_of, spec_of
from xformer import analysis, edits, viz
from xformer.analysis.residual import stream, strongest
from xformer.reading import from_trace
from xformer.trace import Trace, record
from xformer.viz import theme
from xformer.viz.residual import thinned

MODEL = random_model("encoder")
LABELS = [str(token) for token in range(11)]
ANSWER_ROW = "right answer"


def traced(n: int = 7) -> Trace:
    return record(MODEL, torch.arange(n)[None] % 5 + 1)


def test_lens_shows_the_likeliest_token_of_every_cell() -> None:
    trace, answers = traced(), [3, 1, 4, 1, 5, 9, 2]
    chart = viz.lens(from_trace(MODEL, trace, answers), title="x")
    assert ends_of(chart) == (0, 1)
    shown = {(row["point"], row["position"]): row for row in all_rows(chart)}
    reading = from_trace(MODEL, trace)
    for point, x in stream(reading).items():
        for position, p in enumerate(reading.adapter.unembed(x)[0].softmax(-1)):
            row = shown[point, position]
            token = LABELS[int(p.argmax())]
            assert row["place"] == f"{position} · {int(trace.tokens[0, position])}"
            assert row["probability"] == pytest.approx(p.max().item())
            right = token == LABELS[answers[position]]
            assert row["says"] == (f"{token} ✓" if right else token)
    assert [shown[ANSWER_ROW, position]["answer"] for position in range(7)] == [LABELS[a] for a in answers]


def test_lens_frames_changed_cells_and_stores_their_original_token() -> None:
    trace, answers = traced(), [3, 1, 4, 1, 5, 9, 2]
    changed = record(MODEL, trace.tokens, edits=[edits.zero_positions()])
    own, other = (from_trace(MODEL, run, answers) for run in (trace, changed))
    spec = viz.lens(other, before=own).to_dict(validate=False)
    [frames] = [layer for layer in spec["layer"] if layer.get("transform") == [{"filter": "datum.moved"}]]
    assert frames["mark"]["strokeDash"]
    cells = spec["datasets"][frames["data"]["name"]]
    assert {cell["moved"] for cell in cells} == {True, False}
    for cell in cells:
        at = [stream(run)[cell["point"]][:, cell["position"]] for run in (own, other)]
        was, now = (int(MODEL.unembed(x).argmax()) for x in at)
        assert (cell["was"], cell["moved"]) == (LABELS[was], was != now)


def test_attribution_merges_all_but_the_largest_parts() -> None:
    parts = analysis.attribution(from_trace(MODEL, traced()), position=3, token=4)
    other = parts.assign(contribution=parts["contribution"].iloc[::-1].tolist())
    shown = strongest({"a": parts, "b": other}, 4)
    for name, whole in (("a", parts), ("b", other)):
        assert len(shown[name]) == 5
        assert shown[name]["contribution"].sum() == pytest.approx(whole["contribution"].sum())
        assert shown[name]["part"].iloc[-1] == f"{len(parts) - 4} others"
        assert whole.loc[whole["contribution"].abs().idxmax(), "part"] in shown[name]["part"].tolist()
    assert strongest({"a": parts}, len(parts) - 1)["a"] is parts


def test_lens_outlines_right_cells_and_marks_them_only_if_judged() -> None:
    trace = traced()
    judged = from_trace(MODEL, trace, trace.logits[0].argmax(-1).tolist())
    spec = spec_of(viz.lens(judged))
    outline = next(layer for layer in spec["layer"] if layer["mark"].get("filled") is False)
    assert outline["mark"]["stroke"] == theme.RIGHT.colour
    assert outline["transform"] == [{"filter": "datum.right"}]
    assert theme.RIGHT.mark in str(spec)
    assert theme.RIGHT.mark not in str(spec_of(viz.lens(replace(judged, has_right_answer=False))))
    open_ended = viz.lens(from_trace(MODEL, trace))
    assert not any(cell["right"] for cell in all_rows(open_ended))
    assert ANSWER_ROW not in spec_of(open_ended)["layer"][0]["encoding"]["y"]["sort"]


def test_early_layers_of_a_deep_model_share_a_row() -> None:
    points = ["embedding", *(f"layer {n} · {part}" for n in range(1, 31) for part in ("attention", "feed-forward"))]
    deep = pd.DataFrame({"depth": range(len(points)), "point": points})
    drawn = thinned(deep)
    grouped = [f"layers {first}–{first + 3}" for first in range(1, 25, 4)]
    assert list(drawn["point"]) == ["embedding", *grouped, *(f"layer {n}" for n in range(25, 31))]
    assert list(drawn["depth"]) == [
        0,
        *range(8, 49, 8),
        *range(50, 61, 2),
    ]  # the stream after the last layer of a group
    assert thinned(few := deep.head(24)) is few
