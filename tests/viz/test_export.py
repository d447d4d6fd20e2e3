"""Saved charts: text stays text, SVG has no raster images, suffixes determine the format, and captions are escaped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import plotly.graph_objects as go
import pytest

import xformer
from tests.viz.drawn_file import SVG, words
from xformer.errors import InputError
from xformer.viz import export
from xformer.viz.export import show
from xformer.viz.theme import BROKEN, HEAD_HUES, MASKED, SEQUENTIAL, TEXT, in_both_themes, pick


@pytest.fixture(scope="module")
def reading() -> xformer.Reading:
    return xformer.read("checkpoints/reverse-small", "3 7 12")


drawn = ET.fromstring
TABLE = pd.DataFrame({"x": [1, 2], "y": [3.5, 4.5]})
SMALL = alt.Chart(TABLE, title="an Altair chart").mark_point().encode(x="x")


def test_svg_is_a_vector_graphic_with_text(reading: xformer.Reading, tmp_path: Path) -> None:
    xformer.viz.save(xformer.viz.lens(reading), tmp_path / "lens.svg", caption="one <b>line</b>\nand another")
    text = (tmp_path / "lens.svg").read_text()
    found = words(text)
    assert {"embedding", "right answer", "probability"} <= set(found)
    assert found[-2:] == ["one <b>line</b>", "and another"]
    assert "<image" not in text, "a raster"


def test_svg_is_deterministic_and_stacked_charts_keep_their_gradients(reading: xformer.Reading) -> None:
    def names(text: str) -> list[str]:
        return [node.attrib["id"] for node in drawn(text).iter() if "id" in node.attrib]

    one = xformer.viz.norms(reading).to_dict(validate=False)
    other = xformer.viz.themed(one)
    first = export.svg([one])
    assert export.svg([one]) == first
    both = export.svg([one, other])
    inner = drawn(both).findall(f"{SVG}svg")  # one below the other
    assert float(inner[1].attrib["y"]) >= float(inner[0].attrib["y"]) + float(inner[0].attrib["height"])
    assert len(names(both)) == len(set(names(both))) == 2 * len(names(first)) > 0
    used = set(re.findall(r"url\(#([^)]+)\)", both))
    assert used == set(names(both))
    assert "url(#clip1)" in words(export.svg([one], caption="url(#clip1)"))


def test_a_theme_replaces_colours_but_not_tokens_or_numbers() -> None:
    frame = pd.DataFrame({"token": [TEXT, MASKED], "hue": [HEAD_HUES[0], BROKEN], "value": [1.0, 2.0]})
    stops = alt.Scale(range=list(SEQUENTIAL))
    chart = (
        alt.Chart(frame).mark_bar(stroke=TEXT).encode(alt.X("token:N", sort=[TEXT]), alt.Color("value:Q", scale=stops))
    )
    assert xformer.viz.themed(chart, dark=False) is chart
    light, dark = (one.to_dict(validate=False) for one in (chart, xformer.viz.themed(chart)))
    [rows] = dark["datasets"].values()
    assert rows == frame.assign(hue=[pick(HEAD_HUES[0], True), BROKEN]).to_dict("records")
    assert dark["encoding"]["x"] == light["encoding"]["x"]
    assert dark["mark"]["stroke"] == pick(TEXT, True) != TEXT
    assert dark["encoding"]["color"]["scale"]["range"] == in_both_themes(SEQUENTIAL)[1]
    [trace] = xformer.viz.themed(go.Figure(go.Scatter(x=[1], y=[2], marker={"color": TEXT}, text=[TEXT]))).data
    assert (trace.marker.color, trace.text) == (pick(TEXT, True), (TEXT,))


def test_file_format_follows_the_suffix(tmp_path: Path) -> None:
    for suffix, start in ((".pdf", b"%PDF"), (".html", b"<!DOCTYPE html>")):
        xformer.viz.save(SMALL, tmp_path / f"small{suffix}")
        assert (tmp_path / f"small{suffix}").read_bytes().lstrip().startswith(start)


def test_unsupported_formats_raise_and_leave_no_file(tmp_path: Path) -> None:
    for what, name, sentence in (
        (alt.Chart(), "lens.jpg", r"saved as one of \.svg, \.pdf, \.png, \.html, got 'lens\.jpg'"),
        (go.Figure(), "lens.svg", "Only Altair charts can be saved as SVG, PDF or PNG, got Figure"),
        (3, "lens.html", "A picture is a chart of xformer.viz, got int"),
        ([alt.Chart(), alt.Chart()], "lens.html", "A page holds one picture, got 2"),
    ):
        with pytest.raises(InputError, match=sentence):
            xformer.viz.save(what, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_size_that_is_not_positive_and_an_empty_list_are_refused(reading: xformer.Reading, tmp_path: Path) -> None:
    for options, reason in (({"width": -1}, "width must be above 0, got -1"), ({"font_size": 0}, "font_size .* got 0")):
        with pytest.raises(InputError, match=reason):
            xformer.viz.save(xformer.viz.lens(reading), tmp_path / "lens.svg", **options)
    with pytest.raises(InputError, match="no chart to save"):
        xformer.viz.save([], tmp_path / "lens.svg")
    assert not list(tmp_path.iterdir())


def test_notebook_output_contains_svg() -> None:
    chart = alt.Chart({"values": [{"a": 1}]}).mark_bar().encode(x="a:Q")
    with alt.renderers.enable("default"):
        export.draw_as_images()
        bundle: Any = chart._repr_mimebundle_()
    assert "<svg" in bundle["image/svg+xml"]
    assert set(bundle) == {"image/svg+xml"}


def test_show_writes_each_chart_to_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    show([SMALL, go.Figure(layout_title_text="a Plotly figure")])
    written = [Path(name) for name in re.findall("^The picture is in (.*)$", capsys.readouterr().out, re.M)]
    altair, plotly = (path.read_text(encoding="utf-8") for path in written)
    for path in written:
        path.unlink()
    assert "an Altair chart" in altair
    assert "a Plotly figure" in plotly


def test_svg_has_the_requested_width_and_font_size() -> None:
    for width, font_size in ((3.4, 8), (13.3, 20)):
        root = drawn(export.svg([SMALL], width=width, font_size=font_size))
        assert root.attrib["width"] == f"{width:g}in"
        units = root.attrib["viewBox"].split()[2]
        label = next(node for node in root.iter(f"{SVG}text") if "".join(node.itertext()) == "1.0")
        points = float(label.attrib["font-size"].removesuffix("px")) * width * 72 / float(units)
        assert points == pytest.approx(font_size, rel=0.05)


def test_png_has_300_pixels_per_inch(tmp_path: Path) -> None:
    for width, pixels in ((3.4, 1020), (None, 2 * round(float(drawn(export.svg([SMALL])).attrib["width"])))):
        xformer.viz.save(SMALL, tmp_path / "small.png", width=width)
        assert (tmp_path / "small.png").read_bytes().startswith(b"\x89PNG")
        assert int.from_bytes((tmp_path / "small.png").read_bytes()[16:20]) == pixels  # the width in its header


def test_greyscale_keeps_signs_and_masks_distinct(reading: xformer.Reading) -> None:
    def fills(root: ET.Element) -> set[str]:
        return {node.attrib[name] for node in root.iter() for name in ("fill", "stop-color") if name in node.attrib}

    causal = xformer.read("checkpoints/reverse-small", "3 7 12", edits=[xformer.edits.set_causal(True)])
    masked = fills(drawn(export.svg([xformer.viz.attention(causal, layer=0, head=0)], grey=True)))
    assert "url(#masked)" in masked
    signed = fills(drawn(export.svg([xformer.viz.cosines(reading)], grey=True)))
    for colour in masked | signed:
        parts = set(re.findall(r"\w\w", colour)) if colour.startswith("#") else set()
        assert len(parts) <= 1, colour
    stops = re.findall(r'stop-color="#(\w\w)', export.svg([xformer.viz.cosines(reading)], grey=True))
    assert stops == sorted(stops)  # from black for negative to white for positive
    assert len(set(stops)) > 5
