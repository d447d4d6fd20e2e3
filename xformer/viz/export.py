"""A picture as a file for a paper or a slide: SVG and PDF whose text stays text, PNG at twice its size, with a caption.

    xformer.viz.save(xformer.viz.lens(r), "lens.svg", caption="SmolLM2 reads “France is”")

Charts of Altair can all be had so, alone or below each other. Plotly's pictures in space are pages that can be turned.
"""

from __future__ import annotations

import builtins
import json
import re
import sys
import tempfile
import textwrap
import webbrowser
import zlib
from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from xformer.errors import InputError
from xformer.files import write_atomically
from xformer.viz.theme import BACKGROUND, TEXT, pick

SUFFIXES = (".svg", ".pdf", ".png", ".html")
WIDTH = 760
"""CSS pixels of a chart that takes what room there is, as on a screen."""
FONT = "Roboto, DejaVu Sans, Helvetica, Arial, sans-serif"
SIZE, LINE, MARGIN = 12, 17, 12
"""CSS pixels: of the letters of a caption, from line to line, and around everything."""
PNG_SCALE = 2.0
_COUNTED = re.compile(r'(?:(?<= id=")|(?<=url\(#))(?:gradient_|clip)\d+\b')


def save(pictures: Any, path: str | Path, *, caption: str = "", dark: bool = False) -> None:
    """Write a chart, or several below each other, into a file of one of `SUFFIXES`; `caption` stands below them.

    `dark` is the theme that the picture was drawn for. Raises `InputError` for another suffix, and for a picture
    in space that is to be anything but .html.

    Args:
        pictures: A chart, or several to stand below each other.
        path: The file; its ending says the format.
        caption: A line of text below the pictures.
        dark: Whether to draw on a dark background.

    Example:
        >>> import tempfile, xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     xformer.viz.save(xformer.viz.lens(reading), f"{folder}/lens.svg")
    """
    path = Path(path)
    charts = list(pictures) if isinstance(pictures, list | tuple) else [pictures]
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"A picture is saved as one of {', '.join(SUFFIXES)}, got {path.name!r:.80}; for example lens.svg."
        )
    if suffix == ".html":
        if len(charts) != 1:
            raise InputError(
                f"One picture makes one page, got {len(charts)}; save them one by one, or as .svg or .pdf."
            )
        content = _page(charts[0]).encode()
    else:
        whole = svg(charts, caption=caption, dark=dark)
        content = whole.encode() if suffix == ".svg" else pdf_of(whole) if suffix == ".pdf" else png_of(whole)
    write_atomically(path, content)


def svg(charts: Sequence[Any], *, caption: str = "", dark: bool = False) -> str:
    """Charts of Altair, or their Vega-Lite as a dictionary, below each other as one SVG."""
    drawn = [_one_svg(chart, dark) for chart in charts]
    width = max([one[1] for one in drawn], default=0.0) + 2 * MARGIN
    lines = [line for text in caption.splitlines() for line in textwrap.wrap(text, max(20, int(width / 6.2)))]
    parts, top = [], float(MARGIN)
    for text, wide, tall in drawn:
        parts.append(re.sub(r"<svg\b", f'<svg x="{MARGIN}" y="{top:g}"', text, count=1))
        top += tall + MARGIN
        width = max(width, wide + 2 * MARGIN)
    ink, ground = pick(TEXT, dark), pick(BACKGROUND, dark)
    for line in lines:
        top += LINE
        style = f'font-family="{FONT}" font-size="{SIZE}" fill="{ink}"'
        parts.append(f'<text x="{MARGIN}" y="{top:g}" {style}>{escape(line)}</text>')
    height = top + MARGIN
    box = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box}>'
        f'<rect width="100%" height="100%" fill="{ground}"/>{"".join(parts)}</svg>\n'
    )


def draw_as_images() -> None:
    """Have a notebook show charts as SVG, as `save` writes them: they stay where it is exported or read on the web.

    Example:
        >>> import xformer
        >>> xformer.viz.draw_as_images()  # doctest: +SKIP
    """
    alt.renderers.register("xformer", lambda spec, **_: {"image/svg+xml": svg([spec])})
    alt.renderers.enable("xformer")


def pdf_of(drawn: str) -> bytes:
    """An SVG of `svg` as a PDF of one page."""
    import vl_convert  # only now: it takes a while

    return vl_convert.svg_to_pdf(drawn)


def png_of(drawn: str) -> bytes:
    """An SVG of `svg` as a PNG, at twice its size."""
    import vl_convert

    return vl_convert.svg_to_png(drawn, scale=PNG_SCALE)


def _one_svg(chart: Any, dark: bool) -> tuple[str, float, float]:
    """One chart, its width and its height."""
    import vl_convert

    spec: Any = chart.to_dict(validate=False) if isinstance(chart, alt.TopLevelMixin) else chart
    if not isinstance(spec, dict):
        raise InputError(
            f"Only a chart of Altair can be drawn as SVG, PDF or PNG, got {type(chart).__name__}; save it as .html."
        )
    if spec.get("width", "container") == "container" and not {"facet", "hconcat", "vconcat", "concat"} & set(spec):
        spec = spec | {"width": WIDTH}
    spec = {**spec, "config": _house(dark)}  # its own is the size of an empty chart
    text = _named_for_what_it_shows(vl_convert.vegalite_to_svg(json.dumps(spec)))
    found = re.match(r'<svg[^>]*?\bwidth="([\d.]+)"[^>]*?\bheight="([\d.]+)"', text)
    assert found is not None, "an SVG says how large it is"
    return text, float(found[1]), float(found[2])


def _named_for_what_it_shows(text: str) -> str:
    """An SVG whose gradients and clips have names of its own: Vega counts them, so that the same chart would be another file
    each time, and of two charts on one page the second would take the colours of the first."""
    own = f"v{zlib.crc32(_COUNTED.sub('', text).encode()):08x}"
    names = {name: f"{own}-{number}" for number, name in enumerate(dict.fromkeys(_COUNTED.findall(text)))}
    return _COUNTED.sub(lambda found: names[found[0]], text)


def _house(dark: bool) -> dict[str, Any]:
    """How a chart looks outside the app, which has a theme of its own."""
    ink, ground = pick(TEXT, dark), pick(BACKGROUND, dark)
    words = {"labelColor": ink, "titleColor": ink, "labelFontSize": 12, "titleFontSize": 12.5, "titleFontWeight": 500}
    return {
        "background": ground,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {**words, "gridColor": f"{ink}22", "domainColor": f"{ink}55", "tickColor": f"{ink}55"},
        "legend": words,
        "header": words,
        "title": {"color": ink, "fontSize": 14, "anchor": "start"},
        "text": {"color": ink},
    }


def _page(chart: Any) -> str:
    """A page that needs no network."""
    if isinstance(chart, alt.TopLevelMixin):
        return chart.to_html(inline=True)
    if hasattr(chart, "to_html"):
        return chart.to_html(include_plotlyjs=True)
    raise InputError(f"A picture is what xformer.viz returns, got {type(chart).__name__}.")


def show(picture: Any) -> None:
    """Show a picture or a table, or each of a sequence.

    A notebook displays it. A script prints a table, and writes a picture to a file, which it opens in an interactive session.
    """
    if isinstance(picture, list | tuple):
        for one in picture:
            show(one)
    elif _in_notebook():
        from IPython.display import display  # type: ignore[import-not-found]

        display(picture)
    elif isinstance(picture, pd.DataFrame | pd.Series) or not (save := _saver(picture)):
        print(picture.to_string() if isinstance(picture, pd.DataFrame | pd.Series) else picture)
    else:
        with tempfile.NamedTemporaryFile(prefix="xformer-", suffix=".html", delete=False) as file:
            save(file.name)
        print(f"The picture is in {file.name}")
        if sys.stdout.isatty():
            webbrowser.open(Path(file.name).as_uri())


def _saver(picture: Any) -> Any:
    """How it is written as a page that needs no network: Plotly's figures and Altair's charts know."""
    if isinstance(picture, alt.TopLevelMixin):
        return partial(picture.save, inline=True)
    return getattr(picture, "write_html", None)


def _in_notebook() -> bool:
    get_ipython = getattr(builtins, "get_ipython", None)  # IPython puts it there while it runs a cell
    return get_ipython is not None and getattr(get_ipython(), "kernel", None) is not None
