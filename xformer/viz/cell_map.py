"""Draw which parts of a model carry the difference of two inputs: a cell a part, 0 as in this run, 1 as in the other.

viz.patching_map(reading, source, part="head")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import altair as alt
import numpy as np
import pandas as pd

from xformer.analysis.activation_patching import GROUPS, PartKind
from xformer.analysis.activation_patching import patching_map as patching_map_table
from xformer.analysis.minimal_pairs import Token
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import layered
from xformer.viz.residual import TIGHT, around, row_height, written

FAINT = 0.1
"""The end of the colour scale where no part carries more: what is next to nothing does not look like much."""
LETTERS = 90
"""So many letters of names stand side by side over the columns; more stand aslant."""
UNWRITTEN = 0.005
"""A share that would be written as 0 is not written."""


def patching_map(
    reading: Reading,
    source: Reading,
    *,
    part: PartKind = "stream",
    answers: Sequence[Token] | None = None,
    position: int | None = None,
    exact: bool | Sequence[int] = False,
    groups: int = GROUPS,
    show: Literal["measured", "estimated"] | None = None,
    chosen: int | None = None,
    table: pd.DataFrame | None = None,
    dark: bool = False,
) -> alt.LayerChart | alt.FacetChart:
    """Draw `analysis.patching_map`: blue is towards the other run; a cell that is not measured is grey.

    Rows are layers from the embedding down, columns positions, heads or groups of neurons.

    Args:
        reading: The run that is patched.
        source: The run of the other input.
        part: What a cell is; see `analysis.patching_map`, as for `answers`, `position`, `exact` and `groups`.
        answers: The two tokens that are compared.
        position: The output at which they are.
        exact: Whether the cells are measured, or the numbers of those that are.
        groups: The number of groups of neurons in a layer.
        show: Which of the two values is drawn; without it the measured ones where there are some.
        chosen: The number of the cell (its row in the table) that has a frame.
        table: That of `analysis.patching_map` where it has been made already.
        dark: Whether it stands on a dark page.
    """
    if table is None:
        table = patching_map_table(
            reading, source, part=part, answers=answers, position=position, exact=exact, groups=groups
        )
    kind = show or ("estimated" if exact is False else "measured")
    values = table[kind].to_numpy(dtype=float)
    limit = max(FAINT, theme.signed_limit(values))
    stops = theme.diverging(dark)
    places = np.clip((np.nan_to_num(values) / limit + 1) / 2, 0, 1) * (len(stops) - 1)
    data = table.assign(
        cell=range(len(table)),
        column=_columns(table, part, is_pair=reading.is_pair),
        value=values,
        share=[f"{value:.2f}".replace("-", "−") if abs(value) >= UNWRITTEN else "" for value in values],
        ink=[theme.ink(stops[round(place)]) for place in places],
    )
    rows, columns = (list(dict.fromkeys(data[name])) for name in ("where", "column"))
    n, high = len(columns), row_height(len(rows))
    title = {"stream": "position · token", "head": "head", "neurons": "neurons"}[part]
    flat = n * max(map(len, columns)) <= LETTERS
    axis = alt.Axis(labelAngle=0 if flat else -60, orient="top", labelOverlap=n > TIGHT, labelLimit=150)
    x = alt.X("column:N", sort=columns, title=title, axis=axis)
    beside = alt.Axis(labelLimit=240, labelOverlap=False, labelFlush=False)
    y = alt.Y("where:N", sort=rows, title=None, axis=beside)
    kinds = [name for name in ("measured", "estimated") if name in table]
    hover = [
        alt.Tooltip("where:N", title="layer"),
        alt.Tooltip("column:N", title=title),
        *(alt.Tooltip(f"{name}:Q", format="+.6f") for name in kinds),
    ]
    colour = alt.Color(
        "value:Q",
        scale=alt.Scale(**theme.vega_scale(stops, -limit, limit)),
        legend=alt.Legend(title=["share", kind], format="+.2f", gradientLength=160),
    )
    shade = alt.condition("isValid(datum.value)", colour, alt.value(theme.pick(theme.MASKED, dark)))
    base = alt.Chart(data).encode(x, y)
    click = alt.selection_point(name="cell", fields=["cell"], on="click", clear=False)
    frame = base.transform_filter(alt.datum.cell == (-1 if chosen is None else chosen))
    layers: list[alt.Chart] = [
        base.mark_rect(stroke=theme.pick(theme.BACKGROUND, dark), strokeWidth=1, cursor="pointer")
        .encode(color=shade, tooltip=hover)
        .add_params(click),
        frame.mark_rect(filled=False, stroke=theme.pick(theme.TEXT, dark), strokeWidth=2.5),
    ]
    if n <= TIGHT:
        layers.append(base.mark_text(fontSize=11).encode(color=written(), text=alt.Text("share:N")))
    return layered(*layers, height=high * len(rows) + around(""))


def _columns(table: pd.DataFrame, part: PartKind, *, is_pair: bool) -> list[str]:
    """What stands above each cell's column."""
    if part == "head":
        return [str(head + 1) for head in table["head"]]
    if part == "neurons":
        groups = table["group"].tolist()
        ranges = [f"{first}–{last}" for first, last in zip(table["first_neuron"], table["last_neuron"], strict=True)]
        are_wide_alike = len(set(ranges)) == len(set(groups))
        return ranges if are_wide_alike else [f"group {group + 1}" for group in groups]
    names = []
    for stack, position, token, other in zip(
        table["stack"], table["position"], table["token"], table["source_token"], strict=True
    ):
        read = token if token == other else f"{token} → {other}"
        names.append(f"{f'{stack} ' if is_pair else ''}{position} · {read}")
    return names
