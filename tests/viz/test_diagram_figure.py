"""The figure of a diagram labels every part, and no parts overlap."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

import xformer
from tests.viz.drawn_file import words
from tests.viz.test_diagram import drawn, every_config
from xformer import ModelConfig, viz
from xformer.viz.diagram import described
from xformer.viz.diagram_figure import Places
from xformer.viz.export import svg


@pytest.fixture(scope="module")
def pair() -> xformer.Reading:
    return xformer.read("checkpoints/reverse-seq2seq", "3 7 12 9")


@every_config
def test_parts_do_not_overlap_and_fit_the_sheet(config: ModelConfig) -> None:
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


def test_every_part_is_labelled(pair: xformer.Reading) -> None:
    layer = torch.nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()  # described from its recorded run
    other = xformer.read(module, torch.randn(1, 5, 12, generator=torch.Generator().manual_seed(1)))
    for reading in (pair, other):
        parts, texts = described(reading), words(svg([viz.model_diagram(reading)], dark=True))
        for box in parts.boxes:
            if box.kind in ("norm", "sum"):
                continue
            assert {box.title, box.shape_text, box.equation} - {""} <= set(texts), box.id
            if box.parameters:
                assert any(one.startswith(f"{box.parameters:,}") for one in texts), box.id
        assert texts.count("+") == sum(box.kind == "sum" for box in parts.boxes)
        assert f"{parts.title} · {parts.n_parameters:,} parameters" in texts
        assert ("keys and values" in texts) == (reading is pair)
