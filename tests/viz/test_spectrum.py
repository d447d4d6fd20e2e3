"""What is drawn of waves is what the library computes."""

from __future__ import annotations

import torch

from xformer.analysis.spectrum import circle, circle_table, spectrum, spectrum_table
from xformer.viz import theme
from xformer.viz.spectrum import circle_chart, spectrum_chart

NUMBERS = torch.randn(11, 6, generator=torch.Generator().manual_seed(0))


def test_the_bars_are_the_shares_and_the_line_is_what_chance_does() -> None:
    found = spectrum(NUMBERS, n_shuffles=20)
    spec = spectrum_chart(spectrum_table(found), dark=True, chosen=2).to_dict()
    bars, line, _, framed = spec["layer"]
    rows = spec["datasets"][bars["data"]["name"] if "data" in bars else spec["data"]["name"]]
    assert [row["share"] for row in rows] == found.shares.tolist()
    [chance] = spec["datasets"][line["data"]["name"]]
    assert chance["chance"] == found.chance
    assert framed["transform"] == [{"filter": "(datum.frequency === 2)"}]


def test_the_plane_is_square_and_holds_every_number() -> None:
    seen = circle(NUMBERS, 3)
    labels = [str(number) for number in range(11)]
    spec = circle_chart(circle_table(seen, labels), dark=False, frequency=3).to_dict()
    [rows] = spec["datasets"].values()
    assert [[row["cosine axis"], row["sine axis"]] for row in rows] == seen.points.tolist()
    dots = spec["layer"][0]
    assert dots["mark"]["color"] == theme.pick(theme.PRIMARY, False)
    x, y = (dots["encoding"][axis]["scale"]["domain"] for axis in "xy")
    assert x == y
    assert spec["width"] == spec["height"]
