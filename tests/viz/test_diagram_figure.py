"""The picture of a model as a figure says what its description says, and no part lies on another."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

import xformer
from tests.viz.drawn_file import marks, words
from tests.viz.test_diagram import drawn, every_config
from xformer import ModelConfig, viz
from xformer.viz.diagram import described
from xformer.viz.diagram_figure import Places
from xformer.viz.export import svg


@pytest.fixture(scope="module")
def pair() -> xformer.Reading:
    return xformer.read("checkpoints/reverse-seq2seq", "3 7 12 9")


@every_config
def test_no_part_lies_on_another_and_all_are_on_the_sheet(config: ModelConfig) -> None:
    diagram = drawn(config)
    places = Places(diagram)
    boxes = {box.id: places[box.id].box for box in diagram.boxes}
    for x, y, wide, tall in boxes.values():
        assert 0 <= x < x + wide <= places.width
        assert 0 <= y < y + tall <= places.height
    for (one, a), (other, b) in combinations(boxes.items(), 2):
        apart = a[0] + a[2] <= b[0] or b[0] + b[2] <= a[0] or a[1] + a[3] <= b[1] or b[1] + b[3] <= a[1]
        assert apart, (one, other)
    for frame, (x, y, wide, tall) in places.frames:
        for box in diagram.boxes:
            left, top, own_wide, own_tall = boxes[box.id]
            if box.stack == frame.name:
                within = x <= left and left + own_wide <= x + wide and y <= top and top + own_tall <= y + tall
                assert within == (box.sublayer is not None), box.id


@every_config
def test_each_arrow_leads_from_the_edge_of_its_source_to_that_of_its_target(config: ModelConfig) -> None:
    diagram = drawn(config)
    places = Places(diagram)

    def reaches(point: tuple[float, float], box_id: str) -> bool:
        x, y, wide, tall = places[box_id].box
        return x - 0.01 <= point[0] <= x + wide + 0.01 and y - 0.01 <= point[1] <= y + tall + 0.01

    for arrow in diagram.arrows:
        source, target = diagram[arrow.source], diagram[arrow.target]
        points = places.route(arrow, source, target)
        assert reaches(points[-1], target.id), arrow
        forks = arrow.flow == "branch" and source.place == "stream"  # it leaves the stream behind its source
        assert forks or reaches(points[0], source.id), arrow
        assert not forks or (points[0][1] == places[source.id].stream and points[0][0] > places[source.id].x), arrow


def test_every_part_is_there_in_words(pair: xformer.Reading) -> None:
    for reading in (pair, xformer.read("checkpoints/digits", "test 5")):
        parts, texts = described(reading), words(svg([viz.model_diagram(reading, dark=True)], dark=True))
        for box in parts.boxes:
            if box.kind in ("norm", "sum"):
                continue
            assert {box.title, box.shape_text, box.equation} - {""} <= set(texts), box.id
            if box.parameters:
                assert any(one.startswith(f"{box.parameters:,}") for one in texts), box.id
        assert texts.count("+") == sum(box.kind == "sum" for box in parts.boxes)
        assert f"{parts.title} · {parts.n_parameters:,} parameters" in texts
        assert ("keys and values" in texts) == (reading is pair)


def test_the_words_of_a_part_stand_within_it(pair: xformer.Reading) -> None:
    parts = described(pair)
    places, found = Places(parts), marks(svg([viz.model_diagram(pair)]))
    output = places["decoder.output"]  # from which an arrow leads out of the picture
    assert max(x for mark in found for x, _ in mark.points if not mark.text) > output.x + output.wide + 15
    rectangles = [mark.box for mark in found if not mark.text and mark.look.get("stroke", "none") != "none"]
    for box in parts.boxes:
        if box.kind not in ("attention", "feed_forward"):
            continue
        wide, tall = places[box.id].wide, places[box.id].tall
        own = [one for one in rectangles if (one[2] - one[0], one[3] - one[1]) == pytest.approx((wide, tall), abs=2)]
        titles = [mark.middle for mark in found if mark.text == box.title]
        assert any(one[0] < x < one[2] and one[1] < y < one[3] for x, y in titles for one in own), box.id


def test_an_external_model_is_drawn_from_its_recorded_run() -> None:
    layer = torch.nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    reading = xformer.read(module, torch.randn(1, 5, 12, generator=torch.Generator().manual_seed(1)))
    texts = words(svg([viz.model_diagram(reading)]))
    assert "× 2 layers" in texts
    assert described(reading).title in " ".join(texts)
