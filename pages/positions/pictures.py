"""What each kind of positions does, and what two positions make of each other by their offset: a picture of either.

A picture is a chart, its table, and the lines of code that draw it; large on its own, small on a card among the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from pages.shared.layout import is_dark
from pages.shared.notebook import footer, heads_from_1
from pages.shared.view import View
from xformer.analysis import positions as analysis
from xformer.analysis.embeddings import vector_table
from xformer.positions import PositionKind
from xformer.viz import positions as viz
from xformer.viz.embeddings import vector_heatmap

_ANALYSIS = "from xformer.analysis import positions as analysis"
_VIZ = "from xformer.viz import positions as viz"
_HEATMAP = ["from xformer.analysis.embeddings import vector_table", "from xformer.viz.embeddings import vector_heatmap"]
MOST_ROWS = 600
"""Of the rows that a line is drawn through, for each head."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A chart, with what `footer` needs."""

    chart: Any
    table: pd.DataFrame
    lines: list[str]

    def show(self, view: View, name: str) -> None:
        """Draw it; `name` is its key and the end of its file's name."""
        st.altair_chart(self.chart, width="stretch", key=name)

    def footer(self, view: View, name: str) -> None:
        footer(view, self.lines, self.table, name, changed=False)


def what_is_done(
    view: View, kind: PositionKind, shown: range, side: str | None, height: int, legend: bool = True
) -> Picture | None:
    """What a kind adds at each of these positions, or by what it turns; None where there is nothing of it to be drawn."""
    dark = is_dark()
    size = f"height={height}, legend={legend}"
    if kind.acts_on == "queries and keys":
        d_head, base = width_of(view), view.checkpoint.config.position_base
        table = analysis.angle_table(shown.stop, d_head, base)
        table = table.loc[table["position"] >= shown.start]
        heat = table.assign(token="", dimension=table["pair"], value=table["cos"])
        words = {"rows": "position", "columns": "pair: cos of its angle"}
        chart = vector_heatmap(heat, dark=dark, limit=1.0, height=height, legend=legend, **words)
        lines = [
            _ANALYSIS,
            _HEATMAP[1],
            f"table = analysis.angle_table({shown.stop}, {d_head}, {base!r})",
            f'table = table[table["position"] >= {shown.start}]',
            'heat = table.assign(token="", dimension=table["pair"], value=table["cos"])',
            f"vector_heatmap(heat, dark={dark}, limit=1.0, **{words}, {size})",
        ]
        return Picture(chart, table, lines)
    if kind.acts_on == "stream":
        found = added(view, kind, shown.stop, side)
        if found is None:
            return None
        vectors, lines = found
        table = vector_table(vectors[shown.start :], [""] * len(shown), shown.start)
        chart = vector_heatmap(table, dark=dark, rows="position", height=height, legend=legend)
        lines = [
            *_HEATMAP,
            *lines,
            f'table = vector_table(vectors[{shown.start}:], [""] * {len(shown)}, {shown.start})',
            f'vector_heatmap(table, dark={dark}, rows="position", {size})',
        ]
        return Picture(chart, table, lines)
    return None


def by_offset(view: View, kind: PositionKind, n: int, side: str | None, height: int) -> Picture | None:
    """What two of the first `n` positions make of each other by how far apart they are; None where nothing can be drawn."""
    dark = is_dark()
    config = view.checkpoint.config
    own = kind is config.position_kind
    if kind.acts_on == "scores":
        if not own and not kind.can_be_drawn(config):
            return None
        most = max(2, MOST_ROWS // max(1, config.n_heads // 8))
        table = analysis.bias_table(view.checkpoint.model, n, side, kind=kind.name, most=most)
        table = table.assign(head=table["head"] + 1)
        chart = viz.curves(table, dark=dark, by="head", x="offset", y="bias", height=height, legend="bottom")
        lines = [
            _ANALYSIS,
            _VIZ,
            f"table = analysis.bias_table(checkpoint.model, {n}, {side!r}, kind={kind.name!r}, most={most})",
            'table = table.assign(head=table["head"] + 1)',
            f'viz.curves(table, dark={dark}, by="head", x="offset", y="bias", height={height}, legend="bottom")',
        ]
        return Picture(chart, heads_from_1(table, 1), lines)
    if kind.acts_on == "queries and keys":
        d_head, base = width_of(view), view.checkpoint.config.position_base
        matrix, title = analysis.rotary_itself(n, d_head, base), "turned q · k"
        lines = [f"matrix = analysis.rotary_itself({n}, {d_head}, {base!r})"]
    elif kind.acts_on == "stream" and (found := added(view, kind, n, side)) is not None:
        matrix, title = analysis.dot_products(found[0]), "P[i] · P[j]"
        lines = [*found[1], "matrix = analysis.dot_products(vectors)"]
    else:
        return None
    table = analysis.by_offset(matrix)
    chart = viz.offset_band(table, dark=dark, title=title, height=height)
    draw = f"viz.offset_band(analysis.by_offset(matrix), dark={dark}, title={title!r}, height={height})"
    return Picture(chart, table, [_ANALYSIS, _VIZ, *dict.fromkeys(lines), draw])


def added(view: View, kind: PositionKind, n: int, side: str | None) -> tuple[Any, list[str]] | None:
    """The vectors that a kind adds at the first `n` positions, [n d_model], and the code for them.

    Fixed ones can be worked out for any model; learned ones are the model's own, or are not there.
    """
    config = view.checkpoint.config
    if kind is config.position_kind:
        vectors = analysis.added_positions(view.checkpoint.model, n, side)
        assert vectors is not None
        return vectors, [_ANALYSIS, f"vectors = analysis.added_positions(checkpoint.model, {n}, {side!r})"]
    if not kind.can_be_drawn(config):
        return None
    line = f"vectors = analysis.fixed_positions(checkpoint.config, {n}, {kind.name!r})"
    return analysis.fixed_positions(config, n, kind.name), [_ANALYSIS, line]


def width_of(view: View) -> int:
    """The head's dimensions, made even: rotary positions turn them in pairs."""
    d_head = view.checkpoint.config.d_head
    return d_head + d_head % 2
