"""The numbers in the pictures of images are those that went in, and stand where they belong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xformer.viz import theme
from xformer.viz.images import (
    class_bars,
    filters_chart,
    filters_frame,
    overlay_chart,
    overlay_frame,
    picture,
)

DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 17, 36)  # 6 × 6, in patches of 2
WEIGHTS = [DRAW.dirichlet(np.ones(10)) for _ in range(3)]


def overlay() -> Any:
    return overlay_frame(PIXELS, [[("a", WEIGHTS[0]), ("b", WEIGHTS[1])], [("c", WEIGHTS[2])]], 2)


def test_each_tile_has_the_weight_of_its_patch_and_covers_its_pixels() -> None:
    frame = overlay()
    for name, weights in zip("abc", WEIGHTS, strict=True):
        tiles = frame[(frame["panel"] == name) & (frame["kind"] != "ink")]
        assert tiles["value"].tolist() == weights.tolist()
        assert tiles["where"].tolist()[:4] == ["class", "r1 c1", "r1 c2", "r1 c3"]
        dots = frame[(frame["panel"] == name) & (frame["kind"] == "ink")]
        assert sorted(dots["ink"]) == sorted(PIXELS[PIXELS > 0])
        by_name = tiles.set_index("where")
        for dot in dots.itertuples():
            tile = by_name.loc[dot.where]
            assert tile["x"] < dot.x < tile["x2"]
            assert tile["y"] < dot.y < tile["y2"]
            place = round((dot.y - dot.top - 0.5) * 6 + dot.x - dot.left - 0.5)
            assert PIXELS[place] == dot.ink


def test_attention_is_drawn_on_the_fixed_scale_from_0_to_1_and_the_query_is_framed() -> None:
    spec = overlay_chart(overlay(), dark=False, what="attention", query="r2 c1").to_dict()
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    assert (scale["domain"][0], scale["domain"][-1]) == (0, 1)
    assert scale["range"] == theme.sequential(False)
    framed = spec["datasets"][spec["layer"][2]["data"]["name"]]
    assert {row["where"] for row in framed} == {"r2 c1"}
    blank = overlay_chart(overlay_frame(np.zeros(36, int), [[("a", WEIGHTS[0])]], 2), dark=True, what="share").to_dict()
    assert len(blank["layer"]) == 3  # tiles and two kinds of text: no ink


def test_filters_are_centred_on_zero() -> None:
    filters = DRAW.normal(size=(5, 3, 3))
    frame = filters_frame(filters, [f"dimension {n}" for n in range(5)], columns=2)
    for row in frame.itertuples():
        assert row.weight == filters[int(row.filter.split()[1]), row._2, row._3]
    scale = filters_chart(frame, dark=False).to_dict()["layer"][0]["encoding"]["color"]["scale"]
    assert scale["domain"][-1] == -scale["domain"][0] == pytest.approx(abs(filters).max())


def test_bars_are_the_probabilities_of_both_runs() -> None:
    runs = {"original": DRAW.dirichlet(np.ones(4)), "changed": DRAW.dirichlet(np.ones(4))}
    spec = class_bars(runs, "0123", 2, dark=False).to_dict()
    [data] = spec["datasets"].values()
    for row in data:
        assert row["probability"] == runs[row["run"]][int(row["class"])]
        assert row["right"] == (row["class"] == "2")
    assert spec["layer"][0]["encoding"]["y"]["scale"]["domain"] == [0, 1]
    assert len(spec["layer"]) == 3


@pytest.mark.parametrize("dark", [False, True])
def test_a_picture_goes_from_paper_to_ink(dark: bool) -> None:
    found = picture(np.array([0, 16, 8, 0]), dark=dark, scale=3)
    assert found.shape == (6, 6, 3)

    def colour(pixel: np.ndarray) -> str:
        return "#" + "".join(f"{value:02x}" for value in pixel)

    assert colour(found[0, 0]) == theme.pick(theme.BACKGROUND, dark)
    assert colour(found[2, 5]) == theme.pick(theme.TEXT, dark)
    between = sorted((found[0, 0].mean(), found[4, 1].mean(), found[0, 5].mean()))
    assert between[1] == found[4, 1].mean()
