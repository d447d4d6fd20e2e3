"""Save charts for papers and slides: as SVG, PDF (both with selectable text) or PNG, with a title and a caption.

    xformer.viz.save(xformer.viz.lens(r), "lens.pdf", width=3.4, font_size=8, title="SmolLM2 reads “France is”")

Every Altair chart can be saved, alone or stacked; a 3-D Plotly figure only as an HTML page.
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
from html import escape
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from xformer.errors import InputError
from xformer.files import write_atomically
from xformer.viz.theme import BACKGROUND, DIVERGING, MASKED, TEXT, grey_of, pick

_SUFFIXES = (".svg", ".pdf", ".png", ".html")
WIDTH = 760
"""CSS pixels: the width of a chart without a fixed one, as on a screen."""
_PIXELS_AN_INCH, _POINTS_AN_INCH = 96, 72
_PRINTED_PIXELS_AN_INCH = 300
FONT = "Roboto, DejaVu Sans, Helvetica, Arial, sans-serif"
_SIZE, _LINE, _MARGIN = 12, 17, 12
"""CSS pixels: the font size of a caption, its line height, and the margin."""
_LETTER = (0.517, 0.64)
"""Mean width of a letter relative to the font size, in a caption and in the bold title."""
_HEADING = 1.2
"""Font size of the title relative to the caption."""
_LABELS = ("labelFontSize", "titleFontSize", "labelLimit", "titleLimit")
_LABEL_LIMIT = 180
"""CSS pixels: the default of Vega-Lite, https://vega.github.io/vega-lite/docs/axis.html#labels."""
_COLOUR = re.compile(r'(?<==")(?:#[0-9a-f]{6}|rgb\(\d+, ?\d+, ?\d+\))(?=")')
_COUNTED = re.compile(r'(?:(?<= id=")|(?<=url\(#))(?:gradient_|clip)\d+\b')


def save(
    pictures: Any,
    path: str | Path,
    *,
    title: str = "",
    caption: str = "",
    width: float | None = None,
    font_size: float | None = None,
    dark: bool = False,
    grey: bool = False,
) -> None:
    """Save one chart, or several stacked, to a file.

    Args:
        pictures: A chart, or a list of charts to stack.
        path: The file, ending in .svg, .pdf, .png or .html. A page (.html) holds one chart, as on a screen, and no text.
        title: The text above the charts.
        caption: The text below the charts.
        width: The width in inches, such as 3.4 for one column of two; by default, the width on a screen.
        font_size: The size of labels in points; by default, their size on a screen, scaled with the width.
        dark: Whether to draw on a dark background.
        grey: Whether to convert to greyscale: signed data from black (negative) to white, masked cells hatched.

    Raises:
        InputError: The suffix is unknown, there is no chart, a size is not positive, a 3-D figure is saved as anything but
            .html, or several charts as .html.

    Example:
        >>> import tempfile, xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     xformer.viz.save(xformer.viz.lens(reading), f"{folder}/lens.svg")
    """
    path = Path(path)
    charts = list(pictures) if isinstance(pictures, list | tuple) else [pictures]
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise InputError(f"A picture is saved as one of {known}, got {path.name!r:.80}; for example lens.svg.")
    if not charts:
        raise InputError("There is no chart to save; give one, such as viz.lens(reading).")
    for name, value in (("width", width), ("font_size", font_size)):
        if value is not None and not value > 0:
            raise InputError(f"{name} must be above 0, got {value}; for example {name}=8.")
    if suffix == ".html":
        if (n := len(charts)) != 1:
            raise InputError(f"A page holds one picture, got {n}; save each to its own page, or all as .svg or .pdf.")
        content = _page(themed(charts[0], dark)).encode()
    else:
        text = svg(charts, title=title, caption=caption, width=width, font_size=font_size, dark=dark, grey=grey)
        content = text.encode() if suffix == ".svg" else pdf_of(text) if suffix == ".pdf" else png_of(text)
    write_atomically(path, content)


_COLOURED = {"color", "fill", "stroke", "range", "value", "zerolinecolor"}
"""The properties of a chart that hold colours."""
COLOUR_COLUMNS = {"hue", "fill", "edge", "cell_colour"}
"""The columns of tables that hold colours."""


def themed(chart: Any, dark: bool = True) -> Any:
    """Return a chart, a Vega-Lite specification or a Plotly figure in the colours of a theme.

    Args:
        chart: A chart of `xformer.viz`, which is drawn in the colours of the light theme.
        dark: Whether the background is dark.

    Returns:
        A chart of the same type; the given one in the light theme.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.themed(xformer.viz.lens(reading))
    """
    if not dark:
        return chart
    if isinstance(chart, alt.TopLevelMixin):
        return alt.Chart.from_dict(_in_dark(chart.to_dict(validate=False)), validate=False)
    if isinstance(chart, dict):
        return _in_dark(chart)
    return type(chart)(_in_dark(chart.to_plotly_json()))


def _in_dark(part: Any, is_colour: bool = False) -> Any:
    """Replace the colours in a part of a specification; in its tables, only in the columns that hold colours."""
    if isinstance(part, str):
        return pick(part, is_colour)
    if isinstance(part, list | tuple):
        return [_in_dark(one, is_colour) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        name: [_row_in_dark(row) for row in value]
        if name == "values" and isinstance(value, list)
        else {table: [_row_in_dark(row) for row in rows] for table, rows in value.items()}
        if name == "datasets"
        else _in_dark(value, name in _COLOURED)
        for name, value in part.items()
    }


def _row_in_dark(row: Any) -> Any:
    named = COLOUR_COLUMNS.intersection(row) if isinstance(row, dict) else ()
    return {**row, **{name: pick(row[name], True) for name in named}} if named else row


def svg(
    charts: Sequence[Any],
    *,
    title: str = "",
    caption: str = "",
    width: float | None = None,
    font_size: float | None = None,
    dark: bool = False,
    grey: bool = False,
) -> str:
    """Stack Altair charts, or Vega-Lite dictionaries, into one SVG; the options are those of `save`."""
    room = WIDTH if width is None else int(min(WIDTH, width * _PIXELS_AN_INCH))

    def drawn_with(enlarged: float) -> tuple[list[tuple[str, float, float]], float]:
        drawn = [_one_svg(chart, dark, grey, room, enlarged) for chart in charts]
        return drawn, max([one[1] for one in drawn], default=0.0) + 2 * _MARGIN

    enlarged = 1.0
    drawn, wide = drawn_with(enlarged)
    if font_size is not None:
        for _ in range(3):  # larger labels widen the chart, which shrinks the scale
            scale = 1.0 if width is None else width * _PIXELS_AN_INCH / wide
            enlarged = font_size * _PIXELS_AN_INCH / _POINTS_AN_INCH / (_SIZE * scale)
            drawn, wide = drawn_with(enlarged)
    parts, top, ink, weight = [], float(_MARGIN), pick(TEXT, dark), ' font-weight="600"'

    def write(text: str, size: float, *, is_title: bool = False) -> None:
        nonlocal top
        for paragraph in text.splitlines():
            for line in textwrap.wrap(paragraph, max(20, int(wide / (size * _LETTER[is_title])))):
                top += size * _LINE / _SIZE
                style = f'font-family="{FONT}" font-size="{size:g}"{weight if is_title else ""} fill="{ink}"'
                parts.append(f'<text x="{_MARGIN}" y="{top:g}" {style}>{escape(line)}</text>')

    if title:
        write(title, _SIZE * _HEADING * enlarged, is_title=True)
        top += _MARGIN
    for text, _, tall in drawn:
        parts.append(re.sub(r"<svg\b", f'<svg x="{_MARGIN}" y="{top:g}"', text, count=1))
        top += tall + _MARGIN
    write(caption, _SIZE * enlarged)
    height = top + _MARGIN
    sizes = (f"{wide:g}", f"{height:g}") if width is None else (f"{width:g}in", f"{height * width / wide:.4g}in")
    box = f'width="{sizes[0]}" height="{sizes[1]}" viewBox="0 0 {wide:g} {height:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box}>'
        f'<rect width="100%" height="100%" fill="{pick(BACKGROUND, dark)}"/>{"".join(parts)}</svg>\n'
    )


def draw_as_images() -> None:
    """Make notebooks show charts as SVG, as `save` writes them, so that they remain visible in exports and on the web.

    Example:
        >>> import xformer
        >>> xformer.viz.draw_as_images()  # doctest: +SKIP
    """
    alt.renderers.register("xformer", lambda spec, **_: {"image/svg+xml": svg([spec])})
    alt.renderers.enable("xformer")


def pdf_of(drawn: str) -> bytes:
    """Convert an SVG of `svg` to a one-page PDF."""
    import vl_convert  # slow to import

    return vl_convert.svg_to_pdf(drawn)


def png_of(drawn: str) -> bytes:
    """Convert an SVG of `svg` to a PNG: 300 pixels per inch if its width is in inches, else twice its size on a screen."""
    import vl_convert

    is_printed = re.match(r'<svg[^>]*\bwidth="[\d.]+in"', drawn)
    return vl_convert.svg_to_png(drawn, scale=_PRINTED_PIXELS_AN_INCH / _PIXELS_AN_INCH if is_printed else 2.0)


def _one_svg(chart: Any, dark: bool, grey: bool, room: int, enlarged: float) -> tuple[str, float, float]:
    """Return a chart as SVG, its width and its height. `room` is the width of charts without a fixed one."""
    import vl_convert

    spec: Any = chart.to_dict(validate=False) if isinstance(chart, alt.TopLevelMixin) else chart
    if not isinstance(spec, dict):
        name = type(chart).__name__
        raise InputError(f"Only Altair charts can be saved as SVG, PDF or PNG, got {name}; save it as .html.")
    if spec.get("width", "container") == "container" and not {"facet", "hconcat", "vconcat", "concat"} & set(spec):
        spec = spec | {"width": room}
    spec = {**themed(spec, dark), "config": _config(dark)}  # replaces the one that Altair adds
    if enlarged != 1.0:
        limits = {"labelLimit": _LABEL_LIMIT, "titleLimit": 2 * _LABEL_LIMIT}
        spec["config"]["axis"] |= limits
        spec["config"]["legend"] |= limits
        spec = _with_labels(spec, enlarged)
        spec["config"]["title"]["fontSize"] *= enlarged
    text = json.dumps(spec)
    if grey:
        ramp = [f"#{level:02x}{level:02x}{level:02x}" for level in range(0, 256, 255 // (len(DIVERGING) - 1))]
        signed = [pick(stop, dark) for stop in DIVERGING]
        text = text.replace(json.dumps(signed)[1:-1], json.dumps(ramp)[1:-1])
    text = _with_unique_ids(vl_convert.vegalite_to_svg(text))
    if grey:
        text = _in_grey(text, dark)
    found = re.match(r'<svg[^>]*?\bwidth="([\d.]+)"[^>]*?\bheight="([\d.]+)"', text)
    assert found is not None, "the SVG has no size"
    return text, float(found[1]), float(found[2])


def _with_labels(spec: Any, enlarged: float) -> Any:
    """Enlarge the labels of axes and legends in a specification; numbers in cells keep their size."""
    if isinstance(spec, list):
        return [_with_labels(one, enlarged) for one in spec]
    if not isinstance(spec, dict):
        return spec
    return {
        name: round(value * enlarged, 2)
        if name in _LABELS and isinstance(value, int | float)
        else value
        if name in ("data", "datasets")
        else _with_labels(value, enlarged)
        for name, value in spec.items()
    }


def _in_grey(text: str, dark: bool) -> str:
    """Convert an SVG to greyscale by luminance; masked cells are hatched, since their grey would look like a weight."""
    masked = pick(MASKED, dark)
    used = {masked, f"rgb({', '.join(str(int(masked[i : i + 2], 16)) for i in (1, 3, 5))})"}
    ink, ground = pick(TEXT, dark), pick(BACKGROUND, dark)
    hatch = (
        '<defs><pattern id="masked" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="5" height="5" fill="{ground}"/><path d="M0 0V5" stroke="{ink}" stroke-width="1"/></pattern></defs>'
    )

    def grey(found: re.Match[str]) -> str:
        colour = found[0]
        if colour in used:
            return "url(#masked)"
        if colour.startswith("rgb"):
            colour = "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", colour))
        return grey_of(colour)

    text = _COLOUR.sub(grey, text)
    return re.sub(r"(<svg[^>]*>)", rf"\1{hatch}", text, count=1) if "url(#masked)" in text else text


def _with_unique_ids(text: str) -> str:
    """Name the gradients and clips of an SVG by its content.

    Vega numbers them: the same chart would give a different file each time, and two charts on one page would share colours.
    """
    own = f"v{zlib.crc32(_COUNTED.sub('', text).encode()):08x}"
    names = {name: f"{own}-{number}" for number, name in enumerate(dict.fromkeys(_COUNTED.findall(text)))}
    return _COUNTED.sub(lambda found: names[found[0]], text)


def _config(dark: bool) -> dict[str, Any]:
    """Return the Vega-Lite config for charts outside the app, which has its own theme."""
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
    """Return a chart as an HTML page that works offline."""
    if isinstance(chart, alt.TopLevelMixin):
        return chart.to_html(inline=True)
    if hasattr(chart, "to_html"):
        return chart.to_html(include_plotlyjs=True)
    raise InputError(f"A picture is a chart of xformer.viz, got {type(chart).__name__}.")


def show(picture: Any) -> None:
    """Show a chart or a table, or each item of a sequence.

    In a notebook it is displayed. In a script, tables are printed, and charts are written to a file, which an interactive
    session opens in the browser.
    """
    if isinstance(picture, list | tuple):
        for one in picture:
            show(one)
    elif _in_notebook():
        from IPython.display import display  # type: ignore[import-not-found]

        display(picture)
    elif not isinstance(picture, alt.TopLevelMixin) and not hasattr(picture, "write_html"):  # Plotly figures have it
        print(picture.to_string() if isinstance(picture, pd.DataFrame | pd.Series) else picture)
    else:
        with tempfile.NamedTemporaryFile(prefix="xformer-", suffix=".html", delete=False) as file:
            file.write(_page(picture).encode())
        print(f"The picture is in {file.name}")
        if sys.stdout.isatty():
            webbrowser.open(Path(file.name).as_uri())


def _in_notebook() -> bool:
    get_ipython = getattr(builtins, "get_ipython", None)  # defined by IPython while it runs a cell
    return get_ipython is not None and getattr(get_ipython(), "kernel", None) is not None
