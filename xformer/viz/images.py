"""Draw images: attention over the pixels, patch filters, position maps, and class probabilities.

A tile is a rectangle coloured by a value (attention, cosine). Dots on it show the ink of the pixels by their size, so that the
colour of the tile stays readable.
"""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Int
from torch import Tensor

from xformer.adapters.inputs import PatchedImage
from xformer.analysis.images import classes as classes_table
from xformer.analysis.images import filter_components as components_table
from xformer.analysis.images import over_image as overlay_table
from xformer.analysis.images import patch_cosines as places_table
from xformer.analysis.images import patch_filters as filters_table
from xformer.analysis.images import patch_grid
from xformer.arguments import Size
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import Chart, heat_colour, layered, pixel_axes, tooltips

GAP = 1.6
"""Space between two panels, in units of the frame."""
_OWN_SIZE = alt.AutoSizeParams(type="pad", contains="padding")  # a legend must not shrink the cells
MAX_WIDTH = 740.0
"""Largest width of a chart, in pixels."""
ABOVE = 3.2
"""Space above an image for its title and the class token, in units of the frame."""
HEAT = ("rgba(255, 90, 0, 0)", "rgba(255, 90, 0, 0.8)")
"""Colours over a grey photograph, from a weight of 0 to the largest."""


def overlay_frame(
    table: pd.DataFrame, grid: tuple[int, int], patch: float, ink: Int[np.ndarray, " pixel"] | None = None
) -> pd.DataFrame:
    """Lay out panels in lines, each with the weights of the special tokens and patches of one image.

    Args:
        table: The table of `analysis.over_image`; the patches come last in each panel.
        grid: The rows and columns of patches.
        patch: The side of a patch, in units of the frame.
        ink: The ink of each pixel, for images small enough to draw pixel by pixel, one unit each.

    Returns:
        One row per tile (kind "special" or "patch") and per dot (kind "ink"): panel, kind, where, value (of tiles), ink (of
        dots), and the rectangle x, x2, y, y2; left, top and right are those of the image.
    """
    across, width = grid[1], grid[1] * patch
    panels = table[["row", "panel"]].drop_duplicates(ignore_index=True)
    beside = panels.groupby("row").cumcount() % IN_A_LINE
    line = (beside == 0).cumsum() - 1
    panels = panels.assign(left=beside * (width + GAP), top=line * (grid[0] * patch + ABOVE + GAP) + ABOVE)
    panels["right"] = panels["left"] + width
    tiles = panels.merge(table).rename(columns={"place": "where", "weight": "value"})
    number = tiles.groupby(["row", "panel"]).cumcount()
    n_special = number.max() + 1 - grid[0] * across
    is_patch, wide = number >= n_special, width * 0.55 / max(1, n_special)
    row, column = divmod(number - n_special, across)
    x = tiles["left"] + np.where(is_patch, column * patch, number * wide)
    y = tiles["top"] + np.where(is_patch, row * patch, -1.6)
    ends = {"x2": x + np.where(is_patch, patch, wide), "y2": y + np.where(is_patch, patch, 1.2)}
    tiles = tiles.assign(kind=np.where(is_patch, "patch", "special"), x=x, y=y, **ends)
    if ink is None:
        return tiles
    down, right = np.divmod(np.flatnonzero(ink), round(width))
    named = tiles["where"].to_numpy()[n_special + (down // patch * across + right // patch).astype(int)]
    dots = pd.DataFrame({"kind": "ink", "where": named, "ink": ink[ink > 0], "right_of": right, "below": down})
    dots = panels.merge(dots, how="cross")
    x, y = dots["left"] + dots["right_of"] + 0.5, dots["top"] + dots["below"] + 0.5
    return pd.concat([tiles, dots.drop(columns=["right_of", "below"]).assign(x=x, y=y)])


def overlay_chart(
    frame: pd.DataFrame, *, what: str, query: str = "", photograph: str | None = None, top: float | None = None
) -> Chart:
    """Draw an `overlay_frame`.

    Tiles have a fixed scale from 0 to 1 with colours spaced by the square root, so that small weights show. Over a
    `photograph` (a data URL), larger values are more opaque, up to `top` or the largest value of a patch. The tile `query` is
    outlined. The chart is at most `MAX_WIDTH` pixels wide.
    """
    tiles, dots = frame.loc[frame["kind"] != "ink"], frame.loc[frame["kind"] == "ink"]
    ink, halo = theme.TEXT, theme.BACKGROUND
    titles = tiles.drop_duplicates(["panel", "left", "top"]).assign(title_y=lambda table: table["top"] - 2.1)
    width, height = frame["right"].to_numpy().max().item(), tiles["y2"].to_numpy().max().item()
    unit = min(20.0, MAX_WIDTH / width)
    x, y = pixel_axes(width, height)
    if photograph is None:
        stops, edge = theme.SEQUENTIAL, {"stroke": halo, "strokeWidth": 0.5}
        domain, layers = [(index / (len(stops) - 1)) ** 2 for index in range(len(stops))], []
        legend = _legend(height * unit, format=".0%", values=[0, 0.1, 0.3, 0.6, 1])
    else:
        top = top or tiles.loc[tiles["kind"] == "patch", "value"].to_numpy().max().item() or 1.0
        stops, edge, domain = list(HEAT), {}, [0.0, top]
        tall = height - tiles["top"].max()
        whole = titles.assign(x=titles["left"], y=titles["top"], bottom=titles["top"] + tall)
        layers = [alt.Chart(whole).mark_image(url=photograph, aspect=False).encode(x=x, x2="right", y=y, y2="bottom")]
        legend = alt.Legend(gradientLength=200, format=".2~p", orient="bottom", tickCount=3)
    scale = alt.Scale(type="linear", domain=domain, range=stops, clamp=True, interpolate="rgb")
    colour = alt.Color("value:Q", scale=scale, title=what, legend=legend)
    hover, place = tooltips("panel:N", ("where:N", "patch")), {"x": x, "x2": "x2", "y": y, "y2": "y2"}
    shares = alt.Chart(tiles).mark_rect(**edge)
    layers.append(shares.encode(**place, color=colour, tooltip=[*hover, *tooltips(("value:Q", what, ".6f"))]))
    if len(dots):
        size = alt.Size("ink:Q", scale=alt.Scale(domain=[0, 16], range=[0, (0.62 * unit) ** 2]), legend=None)
        spots = alt.Chart(dots).mark_square(color=ink, opacity=1, stroke=halo, strokeWidth=0.8)
        layers.append(spots.encode(x=x, y=y, size=size, tooltip=[*hover, *tooltips("ink:Q")]))
    chosen = tiles.loc[tiles["where"] == query]
    if query and len(chosen):
        hue = theme.WRONG.colour if photograph is None else theme.PRIMARY
        layers.append(alt.Chart(chosen).mark_rect(fill=None, stroke=hue, strokeWidth=2.5).encode(**place))
    text: dict[str, Any] = {"align": "left", "baseline": "middle", "color": ink}
    names = alt.Chart(titles).mark_text(fontSize=12, fontWeight="bold", **text)
    layers.append(names.encode(x="left:Q", y="title_y:Q", text="panel:N"))
    special = tiles.loc[tiles["kind"] != "patch"]
    if len(special):
        words = alt.Chart(_special_words(special)).mark_text(fontSize=11, **text)
        layers.append(words.encode(x="x_name:Q", y="class_y:Q", text="text:N"))
    return layered(*layers, width=width * unit, height=height * unit, autosize=_OWN_SIZE)


def _special_words(special: pd.DataFrame) -> pd.DataFrame:
    """Return the weight on the special tokens of each panel as text next to their tiles, one row per panel."""
    rows = []
    for _, tiles in special.groupby(["panel", "left", "top"], sort=False):
        name = str(tiles["where"].iloc[0]) if len(tiles) == 1 else f"{len(tiles)} special"
        place = {"x_name": tiles["x2"].max() + 0.25, "class_y": tiles["top"].iloc[0] - 1.0}
        rows.append({"text": f"{name} {percent(sum(tiles['value'].tolist()), 0)}"} | place)
    return pd.DataFrame(rows)


def picture(pixels: Int[np.ndarray, " pixel"], *, dark: bool, scale: int = 8) -> Int[np.ndarray, "y x rgb"]:
    """Convert an image to RGB, each pixel enlarged `scale` times: paper in the background colour, ink in the text colour."""
    side = round(len(pixels) ** 0.5)
    ends = (theme.pick(theme.BACKGROUND, dark), theme.pick(theme.TEXT, dark))
    paper, ink = (np.array([int(end[i : i + 2], 16) for i in (1, 3, 5)]) for end in ends)
    share = (np.asarray(pixels).reshape(side, side, 1) / 16).repeat(scale, 0).repeat(scale, 1)  # [y, x, 1]
    return np.rint(paper + (ink - paper) * share).astype(np.uint8)


def tile_map(frame: pd.DataFrame, name: str, limit: float, tooltip: list, unit: float) -> Chart:
    """Draw signed tiles; those that are `itself` are framed."""
    width, height = frame["x2"].to_numpy().max().item(), frame["y2"].to_numpy().max().item()
    x, y = pixel_axes(width, height)
    colour = heat_colour(f"{name}:Q", theme.DIVERGING, -limit, limit, title=name, legend=_legend(height * unit))
    base = alt.Chart(frame).encode(x=x, x2="x2", y=y, y2="y2")
    own = base.transform_filter(alt.datum.itself)
    own = own.mark_rect(fill=None, stroke=theme.TEXT, strokeWidth=1.5)
    tiles = base.mark_rect().encode(color=colour, tooltip=tooltip)
    return layered(tiles, own, width=width * unit, height=height * unit, autosize=_OWN_SIZE)


def _legend(height: float, **more: Any) -> alt.Legend:
    """Return a legend that fits next to a chart of this height."""
    return alt.Legend(gradientLength=int(min(200.0, 0.7 * height)), **more)


IN_A_LINE = 5
"""Number of panels in a line."""

SMALL, LARGE = 8.0, 14.0
"""Height of an image in units of the frame: one of several, and a single one."""


def over_image(
    reading: Reading,
    *,
    query: int = 0,
    what: str = "heads",
    layer: int | None = None,
    head: int | None = None,
    limit: Size | None = None,
) -> Chart:
    """Draw the attention of one query over the image (`analysis.over_image`); the query's own patch is outlined.

    Digits are drawn as ink on tiles with a scale from 0 to 1. A photograph is drawn in grey under tiles that are more opaque
    for larger weights.

    Further arguments are those of `analysis.over_image`.

    Args:
        limit: The weight at the end of the scale over a photograph; the largest weight of a patch by default.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> digit = xformer.read("checkpoints/digits", "test 3")
        >>> chart = xformer.viz.over_image(digit, query=0)
    """
    table = overlay_table(reading, query=query, what=what, layer=layer, head=head)
    rows, columns = patch_grid(reading)
    several = table.loc[table["row"] == table["row"].iloc[0], "panel"].nunique() > 1
    height = SMALL if several or reading.adapter.shape.image else LARGE
    ink = reading.example.input_ids[0].numpy(force=True) if reading.adapter.shape.image else None  # [pixel]
    frame = overlay_frame(table, (rows, columns), height / rows, ink)
    value = "share" if what == "rollout" else "attention"
    photograph = None if ink is not None else photograph_url(reading)
    return overlay_chart(frame, what=value, query=reading.tokens[query], photograph=photograph, top=limit)


def photograph_url(reading: Reading) -> str:
    """Return the image that a vision model received, in grey, as a data URL."""
    from PIL import Image

    image = reading.adapter.input
    assert isinstance(image, PatchedImage)
    pixels = (reading.example.arguments or {})["pixel_values"]
    assert isinstance(pixels, Tensor)
    file = io.BytesIO()
    Image.fromarray(image.shown(pixels[0])).convert("L").save(file, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


ACROSS, PIXELS_A_WEIGHT = 16, 10.5
"""Filters in a row and pixels per weight: sixteen filters of 2 × 2 fit a typical window."""

COMPONENTS_ACROSS, PIXELS_A_COMPONENTS_WEIGHT = 2, 30.0

APART = 0.8
"""Space between two filters, in weights."""


def patch_filters(reading: Reading) -> Chart:
    """Draw the filters of `analysis.patch_filters`, orange below zero and blue above.

    The arguments are those of `analysis.patch_filters`.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> digit = xformer.read("checkpoints/digits", "test 3")
        >>> chart = xformer.viz.patch_filters(digit)
    """
    return _in_rows(filters_table(reading), ACROSS, PIXELS_A_WEIGHT)


def filter_components(reading: Reading) -> Chart:
    """Draw the principal components of the filters (`analysis.filter_components`), as `patch_filters` but larger.

    The arguments are those of `analysis.filter_components`.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> digit = xformer.read("checkpoints/digits", "test 3")
        >>> chart = xformer.viz.filter_components(digit)
    """
    return _in_rows(components_table(reading), COMPONENTS_ACROSS, PIXELS_A_COMPONENTS_WEIGHT)


def _in_rows(table: pd.DataFrame, across: int, unit: float) -> Chart:
    number = pd.factorize(table["filter"])[0]
    size = table["pixel_x"].max() + 1 + APART
    x, y = number % across * size + table["pixel_x"], number // across * size + table["pixel_y"]
    frame = table.assign(x=x, x2=x + 1, y=y, y2=y + 1, itself=False)
    tooltip = tooltips("filter:N", ("pixel_y:Q", "pixel y"), ("pixel_x:Q", "pixel x"), ("weight:Q", "", ".6f"))
    return tile_map(frame, "weight", theme.signed_limit(table["weight"].to_numpy()), tooltip, unit)


PLACE_MAPS_GAP = 0.6
"""Space between two maps, in tiles."""


def patch_cosines(reading: Reading, *, unit: Size = 20.0) -> Chart:
    """Draw `analysis.patch_cosines`, one map per patch, on a fixed scale from −1 to 1; the patch itself is framed.

    Further arguments are those of `analysis.patch_cosines`.

    Args:
        unit: The side of a tile, in pixels.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> digit = xformer.read("checkpoints/digits", "test 3")
        >>> chart = xformer.viz.patch_cosines(digit)
    """
    table = places_table(reading)
    side = math.isqrt(math.isqrt(len(table)))
    row, column, y, x = np.unravel_index(np.arange(len(table)), (side,) * 4)
    x, y = column * (side + PLACE_MAPS_GAP) + x, row * (side + PLACE_MAPS_GAP) + y
    frame = table.assign(x=x, x2=x + 1, y=y, y2=y + 1)
    return tile_map(frame, "cosine", 1.0, tooltips("patch:N", "other:N", ("cosine:Q", "", ".6f")), unit)


def classes(reading: Reading, *, before: Reading | None = None) -> Chart:
    """Draw the probabilities of `analysis.classes` as bars from 0 to 1, those of the run `before` as outlines.

    The right digit is marked; if there is no right answer, the likeliest one is emphasised.

    Further arguments are those of `analysis.classes`.

    Args:
        before: The original run, to compare with.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> digit = xformer.read("checkpoints/digits", "test 3")
        >>> chart = xformer.viz.classes(digit)
    """
    runs = {"original": reading} if before is None else {"original": before, "changed": reading}
    table = pd.concat([classes_table(run).assign(run=name) for name, run in runs.items()])
    likeliest = table["digit"] == reading.adapter.token_labels[reading.predicted[0]]
    base = alt.Chart(table.assign(strong=table["right"] if reading.has_right_answer else likeliest)).encode(
        x=alt.X("digit:N", sort=None, title="digit", axis=alt.Axis(labelAngle=0, labelFontSize=15)),
        y=alt.Y("probability:Q", scale=alt.Scale(domain=[0, 1]), title="probability", axis=alt.Axis(format=".0%")),
        tooltip=tooltips("run:N", ("digit:N", "class"), ("probability:Q", "", ".6f")),
    )
    last = base.transform_filter(alt.datum.run == list(runs)[-1])
    opacity = alt.condition(alt.datum.strong, alt.value(1.0), alt.value(0.55))
    right: dict[str, Any] = {"text": f"{theme.RIGHT.mark} right", "color": theme.RIGHT.colour}
    layers = [
        last.mark_bar(color=theme.PRIMARY).encode(opacity=opacity),
        last.transform_filter(alt.datum.right).mark_text(dy=-9, fontSize=12, **right),
    ]
    if before is not None:
        frames = base.transform_filter(alt.datum.run == "original")
        layers.append(frames.mark_bar(filled=False, stroke=theme.TEXT, strokeWidth=1.5))
    return layered(*layers, height=220)
