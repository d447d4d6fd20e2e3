"""How alike the places of patches are, from the model's own vectors to the tile that is drawn."""

from __future__ import annotations

import pytest
import torch

import xformer
from xformer import analysis, viz
from xformer.adapters import TaskModel
from xformer.analysis.images import place_cosines
from xformer.errors import InputError
from xformer.model import Transformer
from xformer.presets import preset
from xformer.reading import Reading
from xformer.tasks import Task


def read_image(**options: object) -> Reading:
    model = Transformer(preset("digits").model.replace(**options), torch.Generator().manual_seed(0)).eval()
    return xformer.read(TaskModel(model, Task(preset("digits").task)), "test 3")


def test_places_are_compared_without_the_class_token() -> None:
    run = read_image()
    vectors, found = run["pos_embed"].double(), place_cosines(run)
    for one, other in ((0, 0), (0, 5), (15, 3)):
        a, b = vectors[1 + one], vectors[1 + other]
        assert found[one, other].item() == pytest.approx((a @ b / (a.norm() * b.norm())).item())
    assert analysis.patch_places(run)["cosine"].tolist() == found.flatten().tolist()
    with pytest.raises(InputError, match="add nothing"):
        place_cosines(read_image(positions="none"))


def test_each_little_map_stands_at_the_place_of_its_patch() -> None:
    run = read_image()
    chart = viz.patch_places(run, dark=True).to_dict()
    [rows] = chart["datasets"].values()
    assert len(rows) == 16**2
    names, cosine = run.tokens[1:], place_cosines(run)
    for row in rows:
        one, other = (names.index(row[column]) for column in ("patch", "other"))
        assert row["cosine"] == cosine[one, other].item()
        assert row["itself"] == (one == other)
        assert (row["x"], row["y"]) == pytest.approx(
            (4.6 * (one % 4) + other % 4, 4.6 * (one // 4) + other // 4)  # 4 × 4 tiles and a gap of 0.6
        )
    scale = chart["layer"][0]["encoding"]["color"]["scale"]
    assert (scale["domain"][0], scale["domain"][-1]) == (-1, 1)
