"""What is drawn of positions is what the library computes; numbers read back from the charts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.training.tiny import random_model
from tests.viz.drawn_file import datasets, spec_of
from xformer import analysis, viz
from xformer.model import Transformer
from xformer.positions.alibi import alibi_slopes
from xformer.reading import Reading, from_trace
from xformer.trace import record
from xformer.viz import theme
from xformer.viz.positions import attention_guess


def ran(model: Transformer, **options: Any) -> Reading:
    return from_trace(model, record(model, torch.tensor([[3, 7, 1, 7, 2]]), **options))


LEARNED = ran(random_model("encoder", positions="learned"))


def test_only_positions_that_training_never_showed_are_shaded() -> None:
    for trained, shade in ((None, []), (7, [[{"from": 6.5, "to": 10}]]), (11, [])):
        drawn = datasets(viz.position_curves(LEARNED, dimensions=[0], positions=range(11), trained=trained, dark=True))
        assert [rows for rows in drawn if "from" in rows[0]] == shade


def test_alibi_has_one_line_a_head_in_the_heads_hues() -> None:
    chart = viz.position_offsets(ran(random_model("encoder", positions="alibi", n_heads=3)), n=5, dark=True)
    [rows] = datasets(chart)
    assert {row["head"] for row in rows} == {1, 2, 3}
    slopes = alibi_slopes(3)
    assert all(row["bias"] == pytest.approx(-float(slopes[row["head"] - 1]) * abs(row["offset"])) for row in rows)
    assert chart.to_dict(validate=False)["layer"][0]["encoding"]["color"]["scale"]["range"] == theme.head_hues(
        3, dark=True
    )


def test_turned_vectors_are_drawn_as_the_cosines_of_their_angles() -> None:
    [rows] = datasets(viz.position_values(LEARNED, positions=range(2, 6), kind="rotary"))
    table = analysis.position_values(LEARNED, positions=range(2, 6), kind="rotary")
    assert [row["value"] for row in rows] == table["cos"].tolist()


def test_each_head_has_a_cell_and_the_chosen_one_a_frame() -> None:
    for n_heads, layers in ((3, 3), (25, 2)):  # few heads have their numbers
        run = ran(random_model("encoder", n_heads=n_heads))
        spec = spec_of(viz.attention_moved(run, before=run, chosen=(1, 0), title="Moved"))
        cells = [(row["cell"], row["row"], row["column"]) for row in max(spec["datasets"].values(), key=len)]
        assert cells[::n_heads] == [("1.1", "layer 1", 1), ("2.1", "layer 2", 1)]
        assert len(spec["layer"]) == layers
        assert spec["layer"][-1]["transform"] == [{"filter": {"equal": "2.1", "field": "cell"}}]


def test_a_guess_is_made_in_an_empty_grid_without_the_masked_cells() -> None:
    decoder = ran(random_model("decoder"))
    chart = attention_guess(decoder, layer=1, head=2, query=3, height=190, dark=True).to_dict(validate=False)
    [rows] = chart["datasets"].values()
    assert len(rows) == 5 * 6 / 2
    names = analysis.attention(decoder, layer=1, head=2)["key"].unique().tolist()
    assert chart["layer"][1]["transform"][0]["filter"]["equal"] == names[3]
    assert chart["params"][0]["select"]["fields"] == ["query", "key"]
    for layer in chart["layer"]:
        assert "weight" not in str(layer["encoding"])
        assert [layer["encoding"][axis]["scale"]["domain"] for axis in ("x", "y")] == [names, names]
    assert chart["view"]["fill"] == theme.MASKED[True]
