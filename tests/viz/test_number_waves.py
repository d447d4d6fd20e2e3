"""What is drawn of waves is what the library computes."""

from __future__ import annotations

import xformer
from tests.training.tiny import random_model
from xformer import viz
from xformer.analysis.number_waves import circle_of, number_spectrum, number_vectors
from xformer.viz import theme

READING = xformer.read(random_model("encoder"), [3, 7])  # its eleven tokens are numbers


def test_the_bars_are_the_shares_and_the_line_is_what_chance_does() -> None:
    found = number_spectrum(READING)
    spec = viz.spectrum(READING, chosen=2, dark=True).to_dict()
    bars, line, _, framed = spec["layer"]
    rows = spec["datasets"][bars["data"]["name"] if "data" in bars else spec["data"]["name"]]
    assert [row["share"] for row in rows] == found.shares.tolist()
    [chance] = spec["datasets"][line["data"]["name"]]
    assert chance["chance"] == found.chance
    assert framed["transform"] == [{"filter": "(datum.frequency === 2)"}]


def test_the_plane_is_square_and_holds_every_number() -> None:
    seen = circle_of(number_vectors(READING), 3)
    spec = viz.circle(READING, frequency=3).to_dict()
    [rows] = spec["datasets"].values()
    assert [[row["cosine_axis"], row["sine_axis"]] for row in rows] == seen.points.tolist()
    assert [row["number"] for row in rows] == [str(number) for number in range(11)]
    dots = spec["layer"][0]
    assert dots["mark"]["color"] == theme.pick(theme.PRIMARY, False)
    x, y = (dots["encoding"][axis]["scale"]["domain"] for axis in "xy")
    assert x == y
    assert spec["width"] == spec["height"]
