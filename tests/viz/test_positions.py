"""What is drawn of positions is what the library computes; numbers read back from the charts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.training.tiny import random_model
from tests.viz.drawn_file import ends_of, spec_of
from xformer import analysis, viz
from xformer.analysis.positions import added_positions, dot_products
from xformer.edits import zero_positions
from xformer.model import Transformer
from xformer.positions.alibi import alibi_slopes
from xformer.reading import Reading, from_trace
from xformer.trace import record
from xformer.viz import theme
from xformer.viz.positions import attention_guess


def ran(model: Transformer, **options: Any) -> Reading:
    return from_trace(model, record(model, torch.tensor([[3, 7, 1, 7, 2]]), **options))


LEARNED = ran(random_model("encoder", positions="learned"))


def datasets(chart: Any) -> list[list[dict]]:
    return list(chart.to_dict(validate=False)["datasets"].values())


def test_curves_are_the_positions_of_the_model() -> None:
    chart = viz.position_curves(LEARNED, dimensions=[5, 0, 12], positions=range(11))
    [rows] = datasets(chart)
    assert len(rows) == 33
    vectors = added_positions(LEARNED, 11)
    for row in rows:
        assert row["value"] == vectors[row["position"], row["dimension"]].item()
    spec = chart.to_dict(validate=False)
    [picked] = spec["params"]
    assert (picked["bind"], picked["select"]["fields"]) == ("legend", ["dimension"])
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    assert (scale["domain"], scale["range"]) == ([5, 0, 12], theme.head_hues(3, dark=False))


def test_only_positions_that_training_never_showed_are_shaded() -> None:
    for trained, shade in ((None, []), (7, [[{"from": 6.5, "to": 10}]]), (11, [])):
        drawn = datasets(viz.position_curves(LEARNED, dimensions=[0], positions=range(11), trained=trained, dark=True))
        assert [rows for rows in drawn if "from" in rows[0]] == shade


@pytest.mark.parametrize(("kind", "column"), [(None, "value"), ("rotary", "cos")])
def test_what_is_done_at_each_position_is_a_row(kind: str | None, column: str) -> None:
    [rows] = datasets(viz.position_values(LEARNED, positions=range(2, 6), kind=kind))
    table = analysis.position_values(LEARNED, positions=range(2, 6), kind=kind)
    assert [row["value"] for row in rows] == table[column].tolist()
    assert [row["row"] for row in rows] == [str(position) for position in table["position"]]


@pytest.mark.parametrize("kind", [None, "rotary"])
def test_the_band_runs_from_the_lowest_to_the_highest_pair(kind: str | None) -> None:
    chart = viz.position_offsets(LEARNED, n=7, kind=kind)
    [rows] = datasets(chart)
    if kind is None:
        matrix = dot_products(added_positions(LEARNED, 7))
        for row in rows:
            along = matrix.diagonal(row["offset"])
            assert (row["low"], row["high"]) == (along.min().item(), along.max().item())
            assert row["mean"] == pytest.approx(along.mean().item(), abs=1e-12)
    band, line, dots = chart.to_dict(validate=False)["layer"]
    assert (band["encoding"]["y"]["field"], band["encoding"]["y2"]["field"]) == ("low", "high")
    assert band["encoding"]["y"]["title"] == ("P[i] · P[j]" if kind is None else "turned q · k")
    assert line["encoding"]["y"]["field"] == dots["encoding"]["y"]["field"] == "mean"


def test_alibi_has_one_line_a_head_in_the_heads_hues() -> None:
    chart = viz.position_offsets(ran(random_model("encoder", positions="alibi", n_heads=3)), n=5, dark=True)
    [rows] = datasets(chart)
    assert {row["head"] for row in rows} == {1, 2, 3}
    slopes = alibi_slopes(3)
    assert all(row["bias"] == pytest.approx(-float(slopes[row["head"] - 1]) * abs(row["offset"])) for row in rows)
    assert chart.to_dict(validate=False)["layer"][0]["encoding"]["color"]["scale"]["range"] == theme.head_hues(
        3, dark=True
    )


def test_each_head_has_a_cell_with_the_share_that_moved() -> None:
    for n_heads, with_numbers in ((3, True), (25, False)):
        model = random_model("encoder", n_heads=n_heads)
        before, after = ran(model), ran(model, edits=[zero_positions()])
        chart = viz.attention_moved(after, before=before)
        rows = datasets(chart)[0]
        assert [row["moved"] for row in rows] == analysis.attention_moved(after, before=before)["moved"].tolist()
        assert [(row["row"], row["column"]) for row in rows][::n_heads] == [("layer 1", 1), ("layer 2", 1)]
        spec = chart.to_dict(validate=False)
        assert ends_of(chart) == (0, 1)
        assert (len(spec["layer"]) == 2) == with_numbers
        assert [row["cell"] for row in rows][::n_heads] == ["1.1", "2.1"]
        assert [(one["name"], one["select"]["fields"]) for one in spec["params"]] == [("head", ["cell"])]


def test_the_chosen_head_is_framed_in_the_grid() -> None:
    chart = spec_of(viz.attention_moved(LEARNED, before=LEARNED, chosen=(1, 0), title="Moved"))
    assert chart["layer"][-1]["transform"] == [{"filter": {"equal": "2.1", "field": "cell"}}]
    assert chart["title"] == "Moved"


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
