"""The attention view as a figure: all heads and their arcs as vectors, with the numbers of the run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xformer
from xformer import edits, viz
from xformer.errors import EditError
from xformer.reading import Reading
from xformer.viz import attention_patterns
from xformer.viz.theme import MASKED, head_hue

INPUT = "3 7 12 9"


@pytest.fixture(scope="module")
def original() -> Reading:
    return xformer.read("checkpoints/reverse", INPUT)


@pytest.fixture(scope="module")
def changed() -> Reading:
    changes = [edits.set_causal(True, "encoder.2.attn"), edits.ablate_head("encoder.1.attn", 2)]
    return xformer.read("checkpoints/reverse", INPUT, edits=changes)


def rows_of(chart: Any, name: str) -> list[dict[str, Any]]:
    """The rows of the one dataset with that column."""
    found = [rows for rows in chart.to_dict(validate=False)["datasets"].values() if rows and name in rows[0]]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("scale", ["fixed", "own", "log", "rest"])
def test_the_grid_has_every_weight_on_its_scale(original: Reading, scale: str) -> None:
    cells = np.array([row["share"] for row in rows_of(viz.attention_grid(original, scale=scale), "share")])
    shown = cells.reshape(4, 4, 4, 4)  # layer, head, query, key
    weights = np.stack([original[f"encoder.{layer}.attn.pattern"][0].numpy(force=True) for layer in range(4)])
    first = 1 if scale == "rest" else 0
    top = weights[..., first:].max(axis=(2, 3), keepdims=True) if scale in ("own", "rest") else 1.0
    expected = 1 + np.log10(weights) / 4 if scale == "log" else weights / top
    error = 0.01 if scale != "log" else 0.05  # a small picture keeps a byte of each weight
    seen = weights[..., first:] > 1e-3
    np.testing.assert_allclose(shown[..., first:][seen], expected[..., first:][seen], atol=error)


def test_a_changed_run_says_what_is_masked_silenced_and_moved(original: Reading, changed: Reading) -> None:
    grid = viz.attention_grid(changed, before=original).to_dict(validate=False)
    cells, *others = (grid["datasets"][layer["data"]["name"]] for layer in grid["layer"])
    assert sum(not cell["seen"] for cell in cells) == 4 * 6  # of one layer's heads all that is above the diagonal
    marks = [layer["mark"]["type"] for layer in grid["layer"]]
    assert len(others[marks.index("rule") - 1]) == 2  # one head is crossed out
    moved = [bar["x2"] - bar["x"] for bar in others[1]]
    assert moved[:8] == [0] * 8
    assert min(moved[8:]) > 0


def test_an_arc_is_as_wide_as_its_weight_and_of_the_hue_of_its_head(original: Reading, changed: Reading) -> None:
    chart = viz.attention_arcs(original, layer=2, heads=[1, 3])
    points = rows_of(chart, "arc")
    weights = original["encoder.2.attn.pattern"][0, [1, 3]].numpy(force=True)
    assert len({point["arc"] for point in points}) == (weights >= attention_patterns.ARCS_LEAST).sum()
    widest = max(points, key=lambda point: point["width"])
    assert widest["width"] == pytest.approx(0.5 + 2.7 * weights.max(), abs=1e-3)
    assert f'"range": ["{head_hue(1, False)}", "{head_hue(3, False)}"]' in json.dumps(chart.to_dict(validate=False))
    both = viz.attention_arcs(changed, layer=2, heads=[1], before=original).to_dict(validate=False)
    assert [one["title"] for one in both["hconcat"]] == ["layer 3, original", "layer 3, changed"]


def test_of_very_many_arcs_the_weakest_are_left_out(original: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_patterns, "MOST_ARCS", 4)
    points = rows_of(viz.attention_arcs(original, layer=2, heads=[1]), "arc")
    ends = {(round(point["y"] * 4 - 0.5)) for point in points if point["x"] == 1.0}
    assert len({point["arc"] for point in points}) == 4
    assert ends == {0, 1, 2, 3}  # the four weights of about 1


def test_large_pictures_are_pooled_to_so_many_cells(original: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_patterns, "HEAD_GRID_MOST_CELLS", 16)
    assert len(rows_of(viz.attention_grid(xformer.read("checkpoints/reverse", "3 7 12 9 4 11")), "share")) == 16 * 9


def test_what_is_saved_is_vectors_with_text_and_masked_cells_are_grey(changed: Reading, tmp_path: Path) -> None:
    pictures = [
        viz.attention_grid(changed),
        viz.attention(changed, layer=2, head=0),
        viz.attention_arcs(changed, layer=2, heads=[0]),
    ]
    viz.save(pictures, tmp_path / "view.svg", caption="reverse, changed")
    drawn = (tmp_path / "view.svg").read_text(encoding="utf-8")
    assert "<image" not in drawn
    for words in ("head 4", "layer 3", "3 9", "9 3", "reverse, changed"):
        assert re.search(rf"<text[^>]*>{re.escape(words)}</text>", drawn), words
    assert drawn.count(f'fill="{MASKED[False]}"') == 4 * 6 + 6
    viz.save(pictures, tmp_path / "view.pdf")
    assert (tmp_path / "view.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(("layer", "heads"), [(4, [0]), (-1, [0]), (0, [4])])
def test_what_is_not_there_is_said(original: Reading, layer: int, heads: list[int]) -> None:
    with pytest.raises(EditError, match="0 to 3, got"):
        viz.attention_arcs(original, layer=layer, heads=heads)
