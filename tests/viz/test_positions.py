"""Charts of position encodings, read back from their specifications."""

from __future__ import annotations

from typing import Any

import torch

from tests.training.tiny import random_model
from tests.viz.drawn_file import datasets
from xformer import analysis, viz
from xformer.model import Transformer
from xformer.reading import Reading, from_trace
from xformer.trace import record
from xformer.viz import theme
from xformer.viz.positions import attention_guess


def ran(model: Transformer, **options: Any) -> Reading:
    return from_trace(model, record(model, torch.tensor([[3, 7, 1, 7, 2]]), **options))


LEARNED = ran(random_model("encoder", positions="learned"))


def test_only_positions_beyond_training_are_shaded() -> None:
    for trained, shade in ((None, []), (7, [[{"from": 6.5, "to": 10}]]), (11, [])):
        drawn = datasets(viz.position_curves(LEARNED, dimensions=[0], positions=range(11), trained=trained))
        assert [rows for rows in drawn if "from" in rows[0]] == shade


def test_guess_grid_is_empty_and_excludes_masked_cells() -> None:
    decoder = ran(random_model("decoder"))
    chart = attention_guess(decoder, layer=1, head=2, query=3, height=190).to_dict(validate=False)
    [rows] = chart["datasets"].values()
    assert len(rows) == 5 * 6 / 2
    names = analysis.attention(decoder, layer=1, head=2)["key"].unique().tolist()
    assert chart["layer"][1]["transform"][0]["filter"]["equal"] == names[3]
    assert chart["params"][0]["select"]["fields"] == ["query", "key"]
    for layer in chart["layer"]:
        assert "weight" not in str(layer["encoding"])
        assert [layer["encoding"][axis]["scale"]["domain"] for axis in ("x", "y")] == [names, names]
    assert chart["view"]["fill"] == theme.MASKED
