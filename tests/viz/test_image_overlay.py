"""Attention over a photograph: the right weights on the image that the model saw, whatever stands before its patches."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import xformer
from tests.adapters.zoo import ZOO
from xformer import analysis, viz
from xformer.adapters.inputs import PatchedImage
from xformer.analysis.images import patch_grid
from xformer.errors import EditError, UnavailableError
from xformer.reading import Reading
from xformer.viz.diagram_figure import described
from xformer.viz.images import photograph_url

pytestmark = pytest.mark.xdist_group("transformers")
MEMBERS = {member.name: member for member in ZOO}


def read(name: str, inputs: str = "flower") -> Reading:
    return xformer.read(MEMBERS[name].make(), inputs)


@pytest.mark.parametrize(
    ("name", "special"),
    [("ViTModel", ["class"]), ("SiglipVisionModel", []), ("DeiTForImageClassification", ["class", "special 1"])],
)
def test_the_weights_of_a_head_stand_at_its_patches(name: str, special: list[str]) -> None:
    reading = read(name)
    assert patch_grid(reading) == (3, 3)
    table = analysis.over_image(reading, query=4, layer=1, head=2)
    assert table["weight"].tolist() == reading["encoder.1.attn.pattern"][0, 2, 4].tolist()
    assert table["place"].tolist() == [*special, *(f"r{row} c{column}" for row in (1, 2, 3) for column in (1, 2, 3))]
    spec = viz.over_image(reading, query=4, layer=1, head=2).to_dict()
    [tiles] = [rows for rows in spec["datasets"].values() if len(rows) == len(table)]
    assert [row["value"] for row in tiles] == table["weight"].tolist()
    side = tiles[-1]["x2"] - tiles[-1]["x"]
    places = [(round(row["x"] / side), round((row["y"] - row["top"]) / side)) for row in tiles[len(special) :]]
    assert places == [(column, row) for row in range(3) for column in range(3)]


def test_a_layer_is_one_row_of_heads_and_their_mean() -> None:
    reading = read("ViTModel")
    table = analysis.over_image(reading, layer=1)
    assert table["panel"].unique().tolist() == ["2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.mean"]
    mean = table.loc[table["panel"] == "2.mean", "weight"].tolist()
    assert mean == pytest.approx(reading["encoder.1.attn.pattern"][0, :, 0].mean(dim=0).tolist(), abs=1e-6)


def test_a_layer_or_head_that_is_not_there_is_an_error() -> None:
    reading = read("ViTModel")
    with pytest.raises(EditError, match="attention layers 0 to 1, got 7"):
        analysis.over_image(reading, layer=7)
    with pytest.raises(EditError, match="heads 0 to 5, got 6"):
        analysis.over_image(reading, layer=0, head=6)
    with pytest.raises(UnavailableError, match="reads no image"):
        viz.over_image(xformer.read("checkpoints/reverse", "3 1 2"))


def test_the_photograph_is_the_one_that_the_model_saw() -> None:
    array = np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)
    reading = xformer.read(MEMBERS["ViTModel"].make(), Image.fromarray(array))  # its size already: nothing is resized
    of = reading.subject.input
    assert isinstance(of, PatchedImage)
    assert np.abs(of.shown(of.pixels(Image.fromarray(array))[1][0]).astype(int) - array).max() <= 1
    url = photograph_url(reading).partition(",")[2]
    grey = np.asarray(Image.open(io.BytesIO(base64.b64decode(url))).convert("L")).astype(int)
    assert np.abs(grey - np.asarray(Image.fromarray(array).convert("L")).astype(int)).mean() < 20  # JPEG loses a little


def test_a_processor_that_makes_another_size_is_brought_to_the_size_of_the_model(tmp_path: Path) -> None:
    reading = xformer.read(MEMBERS["Dinov2Model"].save(tmp_path / "dino"), "flower")
    pixels = reading.example.arguments["pixel_values"]  # pyright: ignore
    assert tuple(pixels.shape) == (1, 3, 12, 12)
    assert len(reading.tokens) == reading["encoder.0.attn.pattern"].shape[-1] == 10
    assert torch.isfinite(reading["output"]).all()


def test_the_picture_of_a_vision_model_names_no_tokens() -> None:
    boxes = {box.title: str(box) for box in described(read("ViTModel")).boxes}
    assert "12 × 12 pixels" in boxes["Input"]
    assert "patches of 4 × 4 pixels" in boxes["Embedding"]
    assert not [said for said in boxes.values() if "whole number" in said or "E[token]" in said]
