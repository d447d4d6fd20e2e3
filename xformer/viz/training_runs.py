"""Draw many training runs: all curves as a fan chart, and the outcome of a sweep as a map of its settings.

viz.training_fan(rows, metric="loss")
viz.sweep_outcome(outcomes, x="peak_lr", y="weight_decay", measure="share_solved")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import UInt8

from xformer.analysis.training_runs import curves_of_all, quantiles
from xformer.analysis.training_runs import sweep_outcome as outcome_table
from xformer.arguments import Count
from xformer.formatting import check_option
from xformer.pooling import max_pool_masked
from xformer.viz import theme
from xformer.viz.charts import (
    ROWS,
    Chart,
    cell_colours,
    heat_colour,
    layered,
    numbers,
    pixel_axes,
    small_maps,
    tooltips,
)
from xformer.viz.packing import LEVELS, NAN
from xformer.viz.residual import row_height
from xformer.viz.training_curves import SCORES, axis_scale, domain_of, every_nth, hovered

Measure = Literal["share_solved", "steps_to_solve"]
METRICS = {
    "held_out_exact_match": "exact match, held out",
    "held_out_token_accuracy": "token accuracy, held out",
    "loss": "loss, nats per token",
    "held_out_loss": "held-out loss, nats per token",
    "gradient_norm": "gradient norm",
}
MAX_WRITTEN = 16
"""Largest number of columns of a map whose cells show their numbers instead of a legend."""
DRAWN = 120
"""Largest number of points per line; with sixteen lines, more would be finer than a pixel."""


def training_fan(
    rows: pd.DataFrame,
    *,
    metric: str = "held_out_exact_match",
    steps: int | None = None,
    log: bool = False,
    height: Count = 260,
) -> Chart:
    """Draw `analysis.training_fan`: the median of all members as a thick line, and each member as a thin one.

    The dark band holds the middle half of the members, the light one the middle four fifths.

    Further arguments are those of `analysis.training_fan`.

    Args:
        steps: The end of the step axis.
        log: Whether the vertical axis is logarithmic.
        height: The height of the chart, in pixels.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> import pandas as pd
        >>> rows = pd.DataFrame({"member": [0, 1], "step": [20, 20], "held_out_exact_match": [0.5, 0.25]})
        >>> chart = xformer.viz.training_fan(rows)
    """
    wide = curves_of_all(rows, metric=metric)
    fan = every_nth(quantiles(wide), DRAWN)
    wide = wide.loc[wide.index.isin(fan["step"].tolist())]
    each = wide.melt(ignore_index=False, var_name="member", value_name="value").dropna().reset_index()
    share, title = metric in SCORES, METRICS.get(metric, metric)
    log = log and not share
    if log:
        each, fan = each[each["value"] > 0], fan[fan["low"] > 0]
    scale = axis_scale((0.0, 1.0) if share else domain_of(each, ["value"], log), log, clamp=True)
    last = steps or int(max([1, *fan["step"]]))
    x = alt.X("step:Q", title="step", scale=alt.Scale(domain=[0, last], nice=False), axis=alt.Axis(format=",d"))
    look = {"title": title, "scale": scale, "axis": alt.Axis(format=".0%" if share else ".3~g", tickCount=5)}
    low, lower, value, median = (alt.Y(f"{name}:Q", **look) for name in ("low", "lower", "value", "median"))
    hue, ink, shown = theme.head_hue(0), theme.TEXT, ".2%" if share else ".4g"
    names = {"high": "90%", "upper": "75%", "median": "median", "lower": "25%", "low": "10%"}
    quantile_tips = ((f"{name}:Q", quantile, shown) for name, quantile in names.items())
    base = alt.Chart(fan).encode(x)
    member_tips = tooltips("member:N", ("step:Q", "", ","), ("value:Q", title, shown))
    members = alt.Chart(each).mark_line(strokeWidth=1, opacity=0.45, color=ink)
    return layered(
        base.mark_area(opacity=0.13, color=hue).encode(low, alt.Y2("high:Q")),
        base.mark_area(opacity=0.22, color=hue).encode(lower, alt.Y2("upper:Q")),
        members.encode(x, value, alt.Detail("member:N"), tooltip=member_tips),
        base.mark_line(strokeWidth=3, color=hue).encode(median),
        hovered(base, ink, tooltips(("step:Q", "", ","), ("members:Q", "members"), *quantile_tips)),
        height=height,
    )


def sweep_outcome(
    outcomes: pd.DataFrame,
    *,
    x: str,
    y: str | None = None,
    measure: Measure = "share_solved",
    x_title: str | None = None,
    y_title: str | None = None,
    chosen: int | None = None,
) -> Chart:
    """Draw `analysis.sweep_outcome` as a map with one cell per pair of settings.

    A cell shows the share of members that solved the task, or the median number of steps that those needed. It is grey if no
    member has finished, or none has solved the task.

    Further arguments are those of `analysis.sweep_outcome`.

    Args:
        x: The setting on the x axis.
        y: The setting on the y axis.
        measure: "share_solved" or "steps_to_solve".
        x_title: The title of the x axis.
        y_title: The title of the y axis.
        chosen: The member whose cell is framed, from 0.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> import pandas as pd
        >>> outcomes = pd.DataFrame({"rate": [0.001, 0.003], "solved": [True, False], "steps_to_solve": [80, None]})
        >>> chart = xformer.viz.sweep_outcome(outcomes, x="rate", measure="steps_to_solve")
    """
    check_option("measure", measure, ("share_solved", "steps_to_solve"))
    table = outcome_table(outcomes, x=x, y=y)
    values = table[measure].to_numpy(dtype=float)
    known = np.isfinite(values)
    stops, is_share = theme.SEQUENTIAL, measure == "share_solved"
    high = 1.0 if is_share else float(max([1.0, *values[known]]))
    data = table.assign(
        column=table[x].map(setting_words),
        row=table[y].map(setting_words) if y else "",
        known=known,
        words=[_words(cell, measure) for cell in table.to_dict("records")],
        cell_colour=np.where(known, cell_colours(stops, values, 0, high), theme.MASKED),
    )
    columns, rows = (list(dict.fromkeys(data[name])) for name in ("column", "row"))
    click = alt.selection_point(name="cell", fields=[x, y] if y else [x], on="click", clear=False)
    look = {"gradientLength": 120, "tickCount": 3, "format": ".0%" if is_share else ",d"}
    is_written = len(columns) <= MAX_WRITTEN
    legend = None if is_written else alt.Legend(title="solved" if is_share else "steps", **look)
    hidden = {"test": "!datum.known", "value": theme.MASKED}
    colour = heat_colour(f"{measure}:Q", stops, 0.0, high, legend=legend, condition=hidden)
    above = alt.Axis(labelAngle=0 if len(columns) <= 8 else -50, orient="top")
    beside = alt.Axis(labelOverlap=False, labelLimit=160, titlePadding=14) if y else None
    base = alt.Chart(data).encode(
        alt.X("column:N", sort=columns, title=x_title or x, axis=above),
        alt.Y("row:N", sort=rows, title=(y_title or y) if y else None, axis=beside),
    )
    hover = tooltips(("column:N", x_title or x), *([("row:N", y_title or y)] if y else []))
    hover += tooltips(
        "solved:Q", ("decided:Q", "finished"), "members:Q", ("steps_to_solve:Q", "steps to solve", ",.0f")
    )
    cells = base.mark_rect(stroke=theme.BACKGROUND, strokeWidth=1, cursor="pointer", invalid=None)
    layers: list[Any] = [cells.encode(colour, tooltip=hover).add_params(click)]
    layers += numbers(base, "words:N", shown=is_written, size=12)
    if chosen is not None:
        column, row = setting_words(outcomes[x].iloc[chosen]), setting_words(outcomes[y].iloc[chosen]) if y else ""
        there = base.transform_filter((alt.datum.column == column) & (alt.datum.row == row))
        layers.append(there.mark_rect(fillOpacity=0, stroke=theme.TEXT, strokeWidth=3))
    return layered(*layers, height=max(44, row_height(len(rows))) * len(rows), autosize=ROWS)


def setting_words(value: Any) -> str:
    """Format the value of a setting for the axes of a map."""
    return f"{value:g}" if isinstance(value, int | float | np.number) else str(value)


def _words(cell: dict[Any, Any], column: str) -> str:
    """Return the text of a cell: how many members solved the task, or after how many steps."""
    if column == "share_solved":
        return f"{cell['solved']} of {cell['decided']}" if cell["decided"] else "…"
    return f"{cell['steps_to_solve']:,.0f}" if np.isfinite(cell["steps_to_solve"]) else "—"


THUMBNAIL, THUMBNAIL_WIDE, SHADES = 158, 338, 24
"""The side of the pattern and the whole width of a thumbnail, in CSS pixels, and its number of colours."""


def thumbnail(codes: UInt8[np.ndarray, "row col"], loss: Sequence[tuple[float, float]], *, dark: bool = False) -> str:
    """Draw the thumbnail of a run as SVG: the pattern of one head, next to the loss over the steps.

    Args:
        codes: The pattern as bytes, see `xformer.viz.packing.plane`.
        loss: The (step, loss) pairs; may be empty.
        dark: Whether to draw on a dark background.
    """
    rows, cols = codes.shape
    tall, wide = THUMBNAIL / rows, THUMBNAIL / cols
    beyond = codes.astype(int) - LEVELS + SHADES - 1
    shades = np.where(codes <= LEVELS, np.rint(codes * ((SHADES - 1) / LEVELS)), beyond)
    shades_of = theme.resample(theme.in_both_themes(theme.SEQUENTIAL)[dark], SHADES)
    colours = [*shades_of, theme.BROKEN, theme.pick(theme.MASKED, dark)]
    paths: dict[str, str] = {}
    for (row, col), shade in np.ndenumerate(shades.astype(int)):
        ink = colours[shade]
        paths[ink] = paths.get(ink, "") + f"M{col * wide:.1f} {row * tall:.1f}h{wide:.1f}v{tall:.1f}h-{wide:.1f}z"
    drawn = "".join(f'<path fill="{ink}" d="{path}"/>' for ink, path in paths.items())
    rule, hue, edge = theme.pick(theme.MASKED, dark), theme.pick(theme.HEAD_HUES[1], dark), THUMBNAIL - 1
    fine = 'vector-effect="non-scaling-stroke"'  # an enlarged thumbnail keeps thin lines
    drawn += f'<rect x="0.5" y="0.5" width="{edge}" height="{edge}" fill="none" stroke="{rule}" {fine}/>'
    left, top, room = THUMBNAIL + 16, 4, THUMBNAIL_WIDE - THUMBNAIL - 18
    if finite := [point for point in loss if np.isfinite(point).all()]:
        far, high = (max(max(values), 1e-9) for values in zip(*finite, strict=True))
        points = (f"{left + room * x / far:.1f},{edge - (edge - top) * y / high:.1f}" for x, y in finite)
        drawn += f'<path d="M{left} {top}V{edge + 0.5}h{room}" fill="none" stroke="{rule}" {fine}/>'
        drawn += f'<polyline points="{" ".join(points)}" fill="none" stroke="{hue}" stroke-width="2.5" {fine}/>'
    size = f'width="{THUMBNAIL_WIDE}" height="{THUMBNAIL}" viewBox="0 0 {THUMBNAIL_WIDE} {THUMBNAIL}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{drawn}</svg>'


WIDE, GAP, TITLE = 1100, 14, 18
"""CSS pixels: the width of a row of maps, the gap between maps, and the space for a map's name."""

SMALLEST, LARGEST = 40, 150
"""The side of a map, in CSS pixels."""

SIDE = 24
"""Largest number of cells of a map on either axis; larger patterns are max-pooled."""


def map_grid(
    maps: UInt8[np.ndarray, "member query key"],
    names: Sequence[str],
    solved: Sequence[bool] | None = None,
    *,
    chosen: int | None = None,
) -> Chart:
    """Draw the pattern of each member of a sweep as a map under its name; rows are queries.

    Members that solved the task have a check mark and a frame in the colour of right answers.

    Args:
        maps: The patterns [member, query, key] as bytes: round(253 w) for a weight w, 254 for not a number, 255 for masked.
        names: The name of each map.
        solved: Which members solved the task.
        chosen: The member with a thick frame, from 0.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> import numpy as np
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> maps = np.rint(253 * reading["encoder.2.attn.pattern"][0].numpy()).astype("uint8")  # [head, query, key]
        >>> chart = xformer.viz.map_grid(maps, ["head 1", "head 2", "head 3", "head 4"], [False, True, False, False])
    """
    n_members = len(names)
    won = [False] * n_members if solved is None else list(solved)
    columns = min(8 if n_members <= 16 else 16, n_members)
    side = min(LARGEST, max(SMALLEST, (WIDE - GAP * columns) // columns))
    small = max_pool_masked(np.where(maps < NAN, maps / LEVELS, np.nan), SIDE)
    tall, wide = (size * side / max(small.shape[1:]) for size in small.shape[1:])
    down, across = np.divmod(np.arange(n_members), columns)
    x, y = across * (side + GAP), TITLE + down * (side + GAP + TITLE)
    words = [f"{name} {theme.RIGHT.mark}" if ok else name for name, ok in zip(names, won, strict=True)]
    at = {"x": x, "x2": x + wide, "y": y, "y2": y + tall}
    frames = pd.DataFrame({"member": range(n_members), "name": words, "won": won, **at})
    width, height = columns * (side + GAP), -(-n_members // columns) * (side + GAP + TITLE)
    axes = pixel_axes(width, height)
    click = alt.selection_point(name="member", fields=["member"], on="click", clear=False)
    right, ink = theme.RIGHT.colour, theme.TEXT
    stroke = alt.condition("datum.won", alt.value(right), alt.value(ink))
    thick = alt.condition(f"datum.member == {-1 if chosen is None else chosen}", alt.value(4), alt.value(1.5))
    hover = tooltips(("name:N", "member"), ("won:N", "solved"))
    base = alt.Chart(frames).encode(*axes)
    edges = base.mark_rect(fillOpacity=0, cursor="pointer").add_params(click)
    layers: list[Any] = [
        small_maps(frames.to_dict("records"), list(small), axes),
        edges.encode(alt.X2("x2:Q"), alt.Y2("y2:Q"), stroke=stroke, strokeWidth=thick, tooltip=hover),
        base.mark_text(align="left", baseline="bottom", dy=-3, fontSize=12).encode(text="name:N", color=stroke),
    ]
    return layered(*layers, width=width, height=height).resolve_scale(color="independent")
