"""Charts of attention patterns: scales, masked cells and pooling."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import xformer
from tests.training.tiny import random_model
from tests.viz.drawn_file import ends_of, maps_of, rows_of, rows_of_layer, spec_of
from xformer import analysis, edits, viz
from xformer.analysis.attention_patterns import REACH, attention, pattern_cells
from xformer.errors import EditError
from xformer.reading import Reading, from_trace
from xformer.trace import record
from xformer.viz import attention_patterns
from xformer.viz.attention_patterns import head_chart, pool_cells
from xformer.viz.packing import pattern_layers
from xformer.viz.theme import head_hue

DRAW = np.random.default_rng(3)


def frame(n: int) -> pd.DataFrame:
    """Return a random pattern under a causal mask."""
    names = [f"{position} t" for position in range(n)]
    pattern = DRAW.dirichlet(np.full(n, 0.3), size=n).astype(np.float32)
    return pattern_cells(pattern, np.tri(n, dtype=bool), names, names)


def test_scale_is_fixed_or_ends_at_the_heads_largest_weight() -> None:
    cells = frame(5)
    assert ends_of(head_chart(cells)) == (0, 1)
    assert ends_of(head_chart(cells, scale="own")) == pytest.approx((0, cells["weight"].max()))


def test_difference_counts_masked_weights_as_zero() -> None:
    model, tokens = random_model("encoder"), torch.tensor([[3, 1, 4, 1]])
    own, causal = (from_trace(model, record(model, tokens, edits=made)) for made in ([], [edits.set_causal(True)]))
    at = {"layer": 1, "head": 2}
    spec = spec_of(viz.attention(causal, before=own, **at))
    assert [one["title"] for one in spec["hconcat"]] == ["original", "changed", "changed − original"]
    shown = spec["datasets"][spec["hconcat"][2]["data"]["name"]]
    before, after = analysis.attention(own, **at), analysis.attention(causal, **at)
    assert after["weight"].isna().sum() == 6
    for cell, old, new in zip(shown, before["weight"], after["weight"].fillna(0.0), strict=True):
        assert cell["weight"] == pytest.approx(new - old)


def test_large_patterns_are_max_pooled() -> None:
    n = 131
    cells = frame(n)
    small = pool_cells(cells, 64)
    assert len(small) <= 64**2
    assert small["weight"].max() == cells["weight"].max()
    size = -(-n // 64)
    assert small["weight"].iloc[0] == pytest.approx(np.nanmax(cells["weight"].to_numpy().reshape(n, n)[:size, :size]))
    assert not small["allowed"].iloc[int(len(small) ** 0.5) - 1]  # the last keys of the first queries
    assert pool_cells(cells, n) is cells
    assert pool_cells(cells, 66)["key"].iloc[-2:].tolist() == ["128 t … 129 t", "130 t"]  # the last block has one key


TOKENS = torch.tensor([[3, 7, 1, 9]])


def test_unrecorded_causal_mask_is_inferred_from_the_weights() -> None:
    model = random_model("decoder")
    whole, bare = (from_trace(model, record(model, TOKENS, keep=keep)) for keep in (("*",), ("*.pattern",)))
    for there, layer in zip(pattern_layers(whole), pattern_layers(bare), strict=True):
        assert (layer.pattern == there.pattern).all()
        assert (layer.allowed == there.allowed).all()
        assert not there.allowed.all()


def test_cells_around_one_equal_those_of_the_whole_pattern() -> None:
    model = random_model("decoder")
    n = min(model.config.max_len, 2 * REACH + 7)
    reading = from_trace(model, record(model, torch.arange(n)[None] % (model.config.vocab_size - 1) + 1))
    whole = attention(reading, layer=0, head=1)
    for query, key in ((0, 0), (n - 1, 3), (n // 2, n // 2)):
        rows, cols = (range(max(0, at - REACH), min(n, at + REACH + 1)) for at in (query, key))
        kept = [q * n + k for q in rows for k in cols]
        around = attention(reading, layer=0, head=1, around=(query, key))
        pd.testing.assert_frame_equal(around, whole.iloc[kept].reset_index(drop=True))
        drawn = rows_of(viz.attention(reading, layer=0, head=1, around=(query, key)), "weight")
        assert [row["weight"] for row in drawn if row["allowed"]] == around["weight"].dropna().tolist()
    with pytest.raises(EditError, match=f"{n} queries"):
        attention(reading, layer=0, head=1, around=(n, 0))


INPUT = "3 7 12 9"


def test_weights_are_written_into_cells_with_room(original: Reading, changed: Reading) -> None:
    at: dict[str, Any] = {"layer": 2, "head": 1}
    rows = rows_of(viz.attention(original, **at), "shown")
    weights = analysis.attention(original, **at)["weight"]
    assert [row["shown"] for row in rows] == ["0" if weight < 0.005 else f"{weight:.2f}" for weight in weights]
    assert {row["cell_colour"] for row in rows if row["weight"] > 0.9} != {
        row["cell_colour"] for row in rows if row["weight"] < 0.1
    }
    spec = spec_of(viz.attention(changed, before=original, **at))
    _, after, moved = (spec["datasets"][one["data"]["name"]] for one in spec["hconcat"])
    assert [row["shown"] for row in after if not row["allowed"]] == [""] * 6
    assert [row["shown"] for row in moved if abs(row["weight"]) >= 0.005] == [
        f"{row['weight']:+.2f}".replace("-", "−") for row in moved if abs(row["weight"]) >= 0.005
    ]


def test_weights_are_not_written_into_small_cells() -> None:
    reading = xformer.read("checkpoints/characters", "to be or not to be, that is")
    assert "layer" not in spec_of(viz.attention(reading, layer=0, head=0))


@pytest.fixture(scope="module")
def original() -> Reading:
    return xformer.read("checkpoints/reverse", INPUT)


@pytest.fixture(scope="module")
def changed() -> Reading:
    changes = [edits.set_causal(True, "encoder.2.attn"), edits.ablate_head("encoder.1.attn", 2)]
    return xformer.read("checkpoints/reverse", INPUT, edits=changes)


@pytest.mark.parametrize("scale", ["fixed", "log", "without_first_token"])
def test_grid_draws_every_weight_on_its_scale(original: Reading, scale: str) -> None:
    shown = np.reshape(maps_of(viz.attention_grid(original, scale=scale)), (4, 4, 4, 4))  # layer, head, query, key
    weights = np.stack([original[f"encoder.{layer}.attn.pattern"][0].numpy(force=True) for layer in range(4)])
    first = 1 if scale == "without_first_token" else 0
    top = weights[..., 1:].max(axis=(2, 3), keepdims=True) if scale == "without_first_token" else 1.0
    expected = 1 + np.log10(weights) / 4 if scale == "log" else weights / top
    error = 0.02 if scale != "log" else 0.05  # a thumbnail keeps one byte per weight, and sends one letter
    seen = weights[..., first:] > 1e-3
    np.testing.assert_allclose(shown[..., first:][seen], expected[..., first:][seen], atol=error)


def test_grid_of_a_changed_run_marks_masked_ablated_and_moved_heads(original: Reading, changed: Reading) -> None:
    grid = spec_of(viz.attention_grid(changed, before=original))
    assert np.isnan(maps_of(grid)).sum() == 4 * 6  # above the diagonal, in the heads of one layer
    marks = [layer["mark"]["type"] for layer in grid["layer"]]
    bars, crossed = (rows_of_layer(grid, at) for at in (2, marks.index("rule")))
    assert len(crossed) == 1
    moved = [bar["x2"] - bar["x"] for bar in bars]
    assert moved[:8] == [0] * 8
    assert min(moved[8:]) > 0


def test_arcs_have_the_width_of_their_weight_and_the_hue_of_their_head(original: Reading, changed: Reading) -> None:
    chart = viz.attention_arcs(original, layer=2, heads=[1, 3])
    points = rows_of(chart, "arc")
    weights = original["encoder.2.attn.pattern"][0, [1, 3]].numpy(force=True)
    assert len({point["arc"] for point in points}) == (weights >= attention_patterns.ARCS_LEAST).sum()
    widest = max(points, key=lambda point: point["width"])
    assert widest["width"] == pytest.approx(0.5 + 2.7 * weights.max(), abs=1e-3)
    assert f'"range": ["{head_hue(1)}", "{head_hue(3)}"]' in json.dumps(chart.to_dict(validate=False))
    both = viz.attention_arcs(changed, layer=2, heads=[1], before=original).to_dict(validate=False)
    assert [one["title"] for one in both["hconcat"]] == ["layer 3, original", "layer 3, changed"]


def test_only_the_strongest_arcs_are_drawn(original: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_patterns, "MAX_ARCS", 4)
    points = rows_of(viz.attention_arcs(original, layer=0, heads=[0]), "arc")
    widths = {point["arc"]: point["width"] for point in points}
    strongest = original["encoder.0.attn.pattern"][0, 0].flatten().topk(4).values
    assert sorted(widths.values()) == pytest.approx(sorted((0.5 + 2.7 * strongest).tolist()), abs=1e-3)


def test_missing_layers_and_heads_raise(original: Reading) -> None:
    for layer, head in ((4, 0), (0, 4)):
        with pytest.raises(EditError, match="0 to 3, got"):
            viz.attention_arcs(original, layer=layer, heads=[head])
