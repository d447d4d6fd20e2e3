"""The numbers in the pictures of images are those that went in, and stand where they belong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xformer
from tests.layers.reference import randomise
from xformer import viz
from xformer.adapters import TaskModel
from xformer.analysis.images import patch_weights
from xformer.model import Transformer
from xformer.presets import preset
from xformer.reading import Reading
from xformer.tasks import Task
from xformer.viz import theme
from xformer.viz.images import (
    overlay_chart,
    overlay_frame,
    picture,
)

DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 17, 36)  # 6 × 6, in patches of 2
NAMES = ["class", *(f"r{row} c{column}" for row in (1, 2, 3) for column in (1, 2, 3))]
WEIGHTS = [DRAW.dirichlet(np.ones(10)) for _ in range(3)]


def overlay() -> Any:
    return overlay_frame([[("a", WEIGHTS[0]), ("b", WEIGHTS[1])], [("c", WEIGHTS[2])]], NAMES, (3, 3), 2, PIXELS)


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
    blank = overlay_chart(
        overlay_frame([[("a", WEIGHTS[0])]], NAMES, (3, 3), 2, np.zeros(36, int)), dark=True, what="share"
    ).to_dict()
    assert len(blank["layer"]) == 3  # tiles and two kinds of text: no ink


def read_test_image(seed: int = 0) -> Reading:
    task = Task(preset("digits").task)
    model = randomise(Transformer(preset("digits").model), seed).eval()
    return xformer.read(TaskModel(model, task), "test 3")


def test_filters_are_centred_on_zero_and_stand_in_rows() -> None:
    reading = read_test_image()
    filters = patch_weights(reading.subject.model)  # pyright: ignore
    spec = viz.patch_filters(reading).to_dict()
    [rows] = spec["datasets"].values()
    for row in rows:
        number = int(row["filter"].split()[1])
        assert row["weight"] == filters[number, row["pixel y"], row["pixel x"]].item()
    corners = [(row["x"], row["y"]) for row in rows[::4]]
    assert corners[0] == (0, 0)
    assert corners[1][0] > rows[1]["x"]  # beside the whole of the first
    assert corners[16] == (0, pytest.approx(2.8))  # sixteen in a row
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    assert scale["domain"][-1] == -scale["domain"][0] == pytest.approx(filters.abs().max().item())
    assert len(max(viz.filter_components(reading).to_dict()["datasets"].values(), key=len)) == 4 * 4


def test_bars_are_the_probabilities_of_both_runs() -> None:
    reading, before = read_test_image(0), read_test_image(1)
    spec = viz.classes(reading, before=before).to_dict()
    [data] = spec["datasets"].values()
    right = reading.answers[0]
    for row in data:
        run = {"original": before, "changed": reading}[row["run"]]
        assert row["probability"] == run.probabilities[0, int(row["digit"])].item()
        assert row["right"] == (row["digit"] == right)
    assert spec["layer"][0]["encoding"]["y"]["scale"]["domain"] == [0, 1]
    assert len(spec["layer"]) == 3
    assert len(viz.classes(reading).to_dict()["layer"]) == 2


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
