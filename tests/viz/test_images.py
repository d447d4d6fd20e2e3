"""Charts of images have the right numbers at the right places."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import xformer
from tests.analysis.test_text_similarity import MEMBERS
from tests.layers.reference import randomise
from xformer import analysis, viz
from xformer.adapters import TaskModel
from xformer.adapters.inputs import PatchedImage
from xformer.analysis.images import patch_grid, place_cosines
from xformer.errors import EditError, InputError, UnavailableError
from xformer.model import Transformer
from xformer.presets import preset
from xformer.reading import Reading
from xformer.tasks import Task
from xformer.viz.images import overlay_frame, photograph_url

DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 17, 36)  # 6 × 6, in patches of 2
NAMES = ["class", *(f"r{row} c{column}" for row in (1, 2, 3) for column in (1, 2, 3))]
WEIGHTS = [DRAW.dirichlet(np.ones(10)) for _ in range(3)]


def overlay(ink: np.ndarray = PIXELS) -> pd.DataFrame:
    panels = zip((0, 0, 1), "abc", WEIGHTS, strict=True)
    cells = [(row, panel, *cell) for row, panel, of in panels for cell in zip(NAMES, of, strict=True)]
    return overlay_frame(pd.DataFrame(cells, columns=["row", "panel", "place", "weight"]), (3, 3), 2, ink)


def test_tiles_have_the_weight_of_their_patch_and_cover_its_pixels() -> None:
    frame: Any = overlay()
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


def read_test_image(seed: int = 0, **options: Any) -> Reading:
    model = randomise(Transformer(preset("digits").model.replace(**options)), seed).eval()
    return xformer.read(TaskModel(model, Task(preset("digits").task)), "test 3")


def read(name: str) -> Reading:
    return xformer.read(MEMBERS[name].make(), "flower")


@pytest.mark.parametrize(
    ("name", "special"), [("SiglipVisionModel", []), ("DeiTForImageClassification", ["class", "special 1"])]
)
def test_weights_of_a_head_are_drawn_at_its_patches(name: str, special: list[str]) -> None:
    reading = read(name)
    assert patch_grid(reading) == (3, 3)
    table = analysis.over_image(reading, query=4, layer=1, head=2)
    assert table["weight"].tolist() == reading["encoder.1.attn.pattern"][0, 2, 4].tolist()
    assert table["place"].tolist() == [*special, *(f"r{row} c{column}" for row in (1, 2, 3) for column in (1, 2, 3))]
    spec = viz.over_image(reading, query=4, layer=1, head=2).to_dict(validate=False)
    [tiles] = [rows for rows in spec["datasets"].values() if len(rows) == len(table)]
    assert [row["value"] for row in tiles] == table["weight"].tolist()
    side = tiles[-1]["x2"] - tiles[-1]["x"]
    places = [(round(row["x"] / side), round((row["y"] - row["top"]) / side)) for row in tiles[len(special) :]]
    assert places == [(column, row) for row in range(3) for column in range(3)]


def test_layer_row_has_all_heads_and_their_mean_and_missing_ones_raise() -> None:
    reading = read("ViTModel")
    panels = analysis.over_image(reading, layer=1)["panel"].unique().tolist()
    assert panels == ["2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.mean"]
    with pytest.raises(EditError, match="attention layers 0 to 1, got 7"):
        analysis.over_image(reading, layer=7)
    with pytest.raises(EditError, match="heads 0 to 5, got 6"):
        analysis.over_image(reading, layer=0, head=6)
    with pytest.raises(UnavailableError, match="reads no image"):
        viz.over_image(xformer.read("checkpoints/reverse", "3 1 2"))


def test_photograph_is_the_models_input() -> None:
    array = np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)
    image = Image.fromarray(array)  # already the input size: nothing is resized
    reading = xformer.read(MEMBERS["ViTModel"].make(), image)
    source = reading.adapter.input
    assert isinstance(source, PatchedImage)
    assert np.abs(source.shown(source.pixels(image)[1][0]).astype(int) - array).max() <= 1
    url = photograph_url(reading).partition(",")[2]
    grey = np.asarray(Image.open(io.BytesIO(base64.b64decode(url))).convert("L")).astype(int)
    assert np.abs(grey - np.asarray(image.convert("L")).astype(int)).mean() < 20  # JPEG loses a little


def test_patch_cosines_exclude_the_class_token() -> None:
    run = read_test_image()
    vectors, found = run["pos_embed"].double(), place_cosines(run)
    for one, other in ((0, 0), (0, 5), (15, 3)):
        a, b = vectors[1 + one], vectors[1 + other]
        assert found[one, other].item() == pytest.approx((a @ b / (a.norm() * b.norm())).item())
    assert analysis.patch_cosines(run)["cosine"].tolist() == found.flatten().tolist()
    with pytest.raises(InputError, match="add no vectors"):
        place_cosines(read_test_image(positions="none"))
