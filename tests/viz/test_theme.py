"""Tests of the colours: contrast, distance under colour blindness, and agreement with the Streamlit theme."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xformer
from tests.analysis.duel import SOURCE, random_variant
from xformer.analysis.generation import decode_steps
from xformer.analysis.principles import attention_cell
from xformer.viz import theme, timeline
from xformer.viz.generation import pack_steps
from xformer.viz.packing import header_of, pack, pattern_layers
from xformer.widgets import embedding_sum, matrices_data, scene_data

CONFIG = tomllib.loads((Path(__file__).parents[2] / ".streamlit" / "config.toml").read_text(encoding="utf-8"))
DARK = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])

# Simulated dichromacy in linear RGB: Machado, Oliveira and Fernandes 2009, table 1, severity 1.0.
SEEN = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def as_seen(colour: str, how: str) -> np.ndarray:
    """Return a simulated colour in OKLab, from its definition (Ottosson 2020), not from the library."""
    light = np.clip(np.array(SEEN[how]) @ theme.linear_rgb(colour), 0, 1)
    cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
    cones = np.cbrt(np.array([*cones, [0.0883024619, 0.2817188376, 0.6299787005]]) @ light)
    mix = [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099]]
    return np.array([*mix, [0.0259040371, 0.7827717662, -0.808675766]]) @ cones


def nearest(colours: list[str], how: str) -> float:
    labs = [as_seen(colour, how) for colour in colours]
    return min(float(np.linalg.norm(one - other)) for one, other in itertools.combinations(labs, 2))


def seen(colours: Sequence[str], dark: bool) -> list[str]:
    """Return colours in a theme."""
    return [theme.pick(colour, dark) for colour in colours]


@DARK
def test_hues_are_distinct_with_and_without_colour_blindness(dark: bool) -> None:
    # About 0.02 is the just noticeable difference in OKLab; a projector needs several times that.
    heads, models = seen(theme.head_hues(4), dark), seen(theme.model_hues(4), dark)
    verdicts = [theme.pick(verdict.colour, dark) for verdict in (theme.RIGHT, theme.WRONG)]
    for how in SEEN:
        for n, apart in ((4, 0.11), (8, 0.075), (12, 0.05)):
            assert nearest(seen(theme.head_hues(n), dark), how) >= apart
        assert nearest(models, how) >= 0.12
        assert nearest(verdicts, how) >= 0.1
        apart = [np.linalg.norm(as_seen(model, how) - as_seen(head, how)) for model in models for head in heads]
        assert min(apart) >= 0.075
    assert theme.head_hue(12) == theme.head_hue(0)


@DARK
def test_hues_contrast_with_the_background(dark: bool) -> None:
    ground = theme.pick(theme.BACKGROUND, dark)
    hues = seen(theme.head_hues(12) + theme.model_hues(4), dark)
    assert all(theme.contrast(hue, ground) >= 3 for hue in hues)  # WCAG 2.2, 1.4.11
    parts = [theme.pick(hue, dark) for hue in theme.PART_HUES.values()]
    verdicts = [theme.pick(verdict.colour, dark) for verdict in (theme.RIGHT, theme.WRONG)]
    assert all(theme.contrast(colour, ground) >= 4.5 for colour in parts + verdicts)  # used for text
    assert theme.contrast(theme.pick(theme.TEXT, dark), ground) >= 12


@pytest.mark.parametrize("section", ["light", "dark"])
def test_streamlit_theme_has_the_same_colours(section: str) -> None:
    served, dark = CONFIG["theme"][section], section == "dark"
    expected = {
        "backgroundColor": theme.pick(theme.BACKGROUND, dark), "textColor": theme.pick(theme.TEXT, dark),
        "primaryColor": theme.pick(theme.PRIMARY, dark), "chartCategoricalColors": seen(theme.head_hues(12), dark),
        "chartSequentialColors": theme.resample(seen(theme.SEQUENTIAL, dark), 10),
        "chartDivergingColors": theme.resample(seen(theme.DIVERGING, dark), 10),
    }  # fmt: skip
    assert served.items() >= expected.items()
    white_on_button = theme.contrast(served["primaryColor"], "#ffffff")
    assert min(white_on_button, theme.contrast(served["primaryColor"], served["backgroundColor"])) >= 3.9


def test_streamlit_config_is_private() -> None:
    assert CONFIG["server"]["address"] == "127.0.0.1"
    assert CONFIG["browser"]["gatherUsageStats"] is False
    assert CONFIG["client"].items() >= {"toolbarMode": "viewer", "showErrorDetails": "none"}.items()
    assert "http" not in CONFIG["theme"]["font"] + CONFIG["theme"]["codeFont"]
    assert "fontFaces" not in CONFIG["theme"]


def test_contrast_of_known_pairs() -> None:
    assert theme.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert theme.contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)  # the lightest grey that passes AA


def in_one_theme(data: Any) -> list[str]:
    """Return the colours in the data of a widget that are not as `theme.in_both_themes` makes them."""
    text = json.dumps(data)
    for pair in [*theme.DARK.items(), *map(theme.in_both_themes, (theme.SEQUENTIAL, theme.DIVERGING))]:
        text = text.replace(json.dumps(pair), "")
    return re.findall("#[0-9a-f]{6}", text)


def test_widgets_receive_every_colour_in_both_themes() -> None:
    reading = xformer.read("checkpoints/reverse-small", "3 7 12 9")
    cell = attention_cell(reading, layer=0, head=0, query=0, key=0)
    for data in (
        header_of(pack(pattern_layers(reading)).message("view")),
        header_of(timeline.timeline_of({1: reading}), timeline.MAGIC),
        pack_steps([decode_steps(random_variant(name, "decoder"), SOURCE) for name in "AB"]),
        header_of(scene_data.scene_data(reading), scene_data.MAGIC),
        json.loads(embedding_sum.embedding_sum_data(reading)),
        matrices_data.row_data(cell, query="", key=0, step=""),
    ):
        assert "#" in json.dumps(data)
        assert in_one_theme(data) == []
    assert in_one_theme({"ink": theme.TEXT}) == [theme.TEXT]  # as in a widget that forgets the dark theme
