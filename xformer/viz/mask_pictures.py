"""Draw masks: single cells, exact rectangles of cells, or blocks, depending on the number of positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from xformer.arguments import Count
from xformer.errors import InputError
from xformer.masks.checking import MaskCheck
from xformer.masks.mask import Span, checked_span
from xformer.masks.rules import Rule
from xformer.masks.tables import STATES, block_table, cell_table, run_table, sizes_of
from xformer.viz.charts import PADDED, category_colours, layered, matrix_axes, small_squares, tooltips
from xformer.viz.packing import visible
from xformer.viz.theme import BROKEN, HEAD_HUES, MASKED, PRIMARY, SEQUENTIAL, head_hue

MAX_CELLS = 64
"""The most queries or keys that are drawn as single cells, with their tokens."""
MAX_EXACT = 4096
"""The most queries or keys of which each cell is drawn."""
MAX_RECTANGLES = 12_000
"""The most rectangles of equal cells; masks with more are drawn by blocks."""
MAX_BLOCKS = 64
"""The most blocks on a side."""
MAX_BANDS = 400
"""The most coloured bands on a side."""
LOST = HEAD_HUES[1]
"""The colour of a cell that the rule allows and the mask forbids."""
COLOURS = {"forbidden": MASKED, "allowed": PRIMARY, "allowed_but_forbidden": BROKEN, "forbidden_but_allowed": LOST}
LABELS = {
    "forbidden": "forbidden",
    "allowed": "allowed",
    "allowed_but_forbidden": "allowed, but the rule forbids it",
    "forbidden_but_allowed": "forbidden, but the rule allows it",
}
BLOCK_COLOURS = {"empty": MASKED, "partial": SEQUENTIAL[5], "full": PRIMARY}
_WRONG = "a cell breaks the rule"


def mask(
    mask: Any,
    *,
    tokens: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
    rule: Rule | None = None,
    queries: Span | None = None,
    keys: Span | None = None,
    batch: int = 0,
    head: int = 0,
    height: Count | None = None,
    title: str = "",
    legend: bool = True,
    row_labels: bool = True,
    n_query: int | None = None,
    n_key: int | None = None,
    first_query: int | None = None,
) -> alt.TopLevelMixin:
    """Draw a mask, or the result of `masks.check`: which keys each query may attend to.

    Up to `MAX_CELLS` positions, each cell is drawn, and says on hover which parts of the rule hold. Up to `MAX_EXACT`, equal
    cells are drawn as rectangles, exactly. Longer masks are drawn by blocks, with the exact number of allowed cells in each;
    `queries=` and `keys=` zoom to cells.

    Args:
        mask: The result of `masks.check`, whose wrong cells are marked; a mask, or what `masks.as_mask` takes.
        tokens: The tokens at the keys; at the queries too if there are as many.
        groups: The name of the document or modality of each key, which are drawn as coloured bands.
        rule: A rule whose parts explain the cells on hover; None: the mask itself if it is a rule.
        queries: The first query that is drawn, and the one after the last; None: all.
        keys: The first key that is drawn, and the one after the last; None: all.
        batch: The input, from 0.
        head: The head, from 0.
        height: The height of the matrix in pixels; the axes then have short titles.
        title: The title of the chart.
        legend: Whether to draw a legend.
        row_labels: Whether to label single queries; of several matrices beside each other, the first is enough.
        n_query: The number of queries of a rule or function; see `masks.as_mask`.
        n_key: The number of keys of a rule or function; None: as many as queries.
        first_query: The position of the first query among the keys; see `masks.as_mask`.

    Returns:
        The chart; `viz.save` writes it to a file.

    Raises:
        InputError: If there are not as many tokens or groups as keys.

    Example:
        >>> import xformer
        >>> from xformer import masks
        >>> chart = xformer.viz.mask(masks.causal() & masks.window(4), n_query=12)
    """
    rule = mask if rule is None and isinstance(mask, Rule) else rule
    found, n_query, n_key = sizes_of(mask, n_query=n_query, n_key=n_key, first_query=first_query)
    rows, columns = checked_span("queries", queries, n_query), checked_span("keys", keys, n_key)
    for name, values in (("tokens", tokens), ("groups", groups)):
        if values is not None and len(values) != n_key:
            raise InputError(f"{name} must have one entry for each of the {n_key} keys, got {len(values)}.")
    part = {"batch": batch, "head": head, "queries": rows, "keys": columns}
    n = max(rows[1] - rows[0], columns[1] - columns[0])
    look = {"legend": legend, "row_labels": row_labels}
    view = _View(rows, columns, height, groups if n_query == n_key else None, groups, title, **look)
    if n <= MAX_CELLS:
        return view.cells(cell_table(found, rule=rule, **part), tokens, n_query == n_key)
    if n <= MAX_EXACT:
        runs = run_table(found, **part)
        if len(runs) <= MAX_RECTANGLES:
            return view.rectangles(runs, is_check=isinstance(found, MaskCheck))
    block = 128
    while -(-max(n_query, n_key) // block) > MAX_BLOCKS:
        block *= 2
    table = block_table(found, batch=batch, head=head, block=block)
    inside = (table["query_stop"] > rows[0]) & (table["query"] < rows[1])
    inside &= (table["key_stop"] > columns[0]) & (table["key"] < columns[1])
    return view.blocks(table.loc[inside], block)


ACROSS, DOWN = "key: position that may be attended to →", "← query: attending position"


class _View:
    """The axes, colours and bands of a picture of a part of a mask."""

    def __init__(
        self,
        rows: Span,
        columns: Span,
        height: int | None,
        query_groups: Sequence[str] | None,
        key_groups: Sequence[str] | None,
        title: str,
        *,
        legend: bool,
        row_labels: bool,
    ) -> None:
        self.rows, self.columns, self.title = rows, columns, title
        self.query_groups, self.key_groups = query_groups, key_groups
        n_rows, n_columns = rows[1] - rows[0], columns[1] - columns[0]
        self.across, self.down = ("key", "query") if height else (ACROSS, DOWN)
        self.label_limit = 50 if height else 120
        self.has_legend = legend
        self.has_row_labels = row_labels
        most = height or min(420, 30 * max(n_rows, n_columns))
        self.size: dict[str, Any] = dict(small_squares(n_rows, n_columns, most))

    def cells(self, table: pd.DataFrame, tokens: Sequence[str] | None, is_square: bool) -> alt.TopLevelMixin:
        """Draw single cells, with tokens on the axes."""
        queries, keys = (
            [_name(tokens, at) if given else str(at) for at in range(*span)]
            for span, given in ((self.rows, tokens is not None and is_square), (self.columns, tokens is not None))
        )
        table = table.assign(
            query_name=[queries[at - self.rows[0]] for at in table["query"]],
            key_name=[keys[at - self.columns[0]] for at in table["key"]],
            state=[LABELS[one] for one in table["state"]],
        )
        across, down = ("key_name:N", self.across, keys), ("query_name:N", self.down, queries)
        look = {"limit": self.label_limit, "has_row_labels": self.has_row_labels}
        lines = ["query_name:N", "key_name:N", "state:N"]
        if any(table["reason"]):
            lines.append("reason:N")
        titles = {"query_name:N": "query", "key_name:N": "key", "state:N": "mask", "reason:N": "rule"}
        cells = (
            alt.Chart(table, title=self.title, **self.size)
            .mark_rect(stroke="#ffffff", strokeOpacity=0.35, strokeWidth=0.5)
            .encode(
                *matrix_axes(across, down, self.size, **look),
                _colour(
                    [LABELS[one] for one in STATES if LABELS[one] in set(table["state"])], has_legend=self.has_legend
                ),
                tooltip=tooltips(*((line, titles[line]) for line in lines)),
            )
        )
        return self._with_bands(cells)

    def rectangles(self, table: pd.DataFrame, *, is_check: bool) -> alt.TopLevelMixin:
        """Draw rectangles of equal cells on a ground of forbidden ones."""
        ground = {
            "query": self.rows[0],
            "query_stop": self.rows[1],
            "key": self.columns[0],
            "key_stop": self.columns[1],
        }
        table = pd.concat([pd.DataFrame([{**ground, "state": "forbidden"}]), table], ignore_index=True)
        shown = STATES if is_check else STATES[:2]
        table = table.assign(state=[LABELS[one] for one in table["state"]], **_texts(table))
        return self._rectangles(table, {LABELS[one]: COLOURS[one] for one in shown}, None, [("state:N", "mask")])

    def blocks(self, table: pd.DataFrame, block: int) -> alt.TopLevelMixin:
        """Draw blocks; a block with a cell that breaks the rule has the colour of such a cell."""
        table = table.assign(share=table["allowed"] / table["cells"], **_texts(table))
        colours, lines = dict(BLOCK_COLOURS), []
        if "allowed_but_forbidden" in table:
            wrong = table["allowed_but_forbidden"] + table["forbidden_but_allowed"] > 0
            table["state"] = table["state"].mask(wrong, _WRONG)
            colours[_WRONG] = BROKEN
            lines = [("allowed_but_forbidden:Q", LABELS["allowed_but_forbidden"], ",")]
            lines.append(("forbidden_but_allowed:Q", LABELS["forbidden_but_allowed"], ","))
        tips = [("state:N", "block"), ("allowed:Q", "allowed cells", ","), ("share:Q", "share", ".4%"), *lines]
        return self._rectangles(table, colours, f"blocks of {block}", tips)

    def _rectangles(
        self, table: pd.DataFrame, colours: dict[str, str], legend: str | None, lines: list[Any]
    ) -> alt.TopLevelMixin:
        scale = alt.Scale(domain=list(colours), range=list(colours.values()))
        shown = alt.Legend(title=legend, orient="top", labelLimit=260) if self.has_legend else None
        axis: dict[str, Any] = {"tickMinStep": 1, "format": ",d"}
        across = alt.Scale(domain=list(self.columns), nice=False, zero=False)
        down = alt.Scale(domain=list(self.rows)[::-1], nice=False, zero=False)
        chart = alt.Chart(table, title=self.title, **self.size).mark_rect(
            clip=True, strokeWidth=0.6
        )  # without a stroke, seams of thin rows shine through
        above = alt.Axis(orient="top", grid=False, labelOverlap=True, **axis)
        beside = alt.Axis(grid=False, labelOverlap=True, **axis)
        chart = chart.encode(
            alt.X("key:Q", scale=across, title=self.across, axis=above),
            alt.X2("key_stop:Q"),
            alt.Y("query:Q", scale=down, title=self.down, axis=beside),
            alt.Y2("query_stop:Q"),
            alt.Color("state:N", scale=scale, legend=shown),
            stroke=alt.Stroke("state:N", scale=scale, legend=None),
            tooltip=tooltips("queries:N", "keys:N", *lines),
        )
        return self._with_bands(chart)

    def _with_bands(self, chart: Any) -> alt.TopLevelMixin:
        """Add bands of groups below the matrix and beside it."""
        if self.key_groups is None:
            return chart.properties(autosize=PADDED)
        names = list(dict.fromkeys(self.key_groups))
        below = _bands(self.key_groups, self.columns, names, along_x=True, size=self.size["width"])
        if self.query_groups is None:
            both = alt.concat(chart, below, columns=1, spacing=5, bounds="flush")
        else:
            beside = _bands(self.query_groups, self.rows, names, along_x=False, size=self.size["height"])
            both = alt.concat(chart, beside, below, columns=2, spacing=5, bounds="flush")
        return both.resolve_scale(color="independent").properties(autosize=PADDED)


def _colour(states: Sequence[str], *, has_legend: bool) -> alt.Color:
    known = {LABELS[name]: colour for name, colour in COLOURS.items()}
    legend = alt.Legend(title=None, orient="top", labelLimit=260) if has_legend else None
    return category_colours("state:N", states, [known[one] for one in states], legend=legend)


def _texts(table: pd.DataFrame) -> dict[str, list[str]]:
    """Return the queries and keys of rectangles as text: "3" or "3–7"."""
    return {
        name: [
            f"{first:,}" if stop == first + 1 else f"{first:,}–{stop - 1:,}"
            for first, stop in zip(table[one], table[f"{one}_stop"], strict=True)
        ]
        for name, one in (("queries", "query"), ("keys", "key"))
    }


def _name(tokens: Sequence[str] | None, at: int) -> str:
    return str(at) if tokens is None else f"{at} · {visible(tokens[at])}"


def _bands(groups: Sequence[str], span: Span, names: list[str], *, along_x: bool, size: int) -> Any:
    """Draw the runs of equal groups as coloured bands, with their names where they have room."""
    runs: list[list[Any]] = []
    for at in range(*span):
        if runs and runs[-1][2] == groups[at]:
            runs[-1][1] = at + 1
        else:
            runs.append([at, at + 1, groups[at]])
    if len(runs) > MAX_BANDS:
        raise InputError(f"groups must have at most {MAX_BANDS} runs, got {len(runs)}; zoom with queries= and keys=.")
    table = pd.DataFrame(runs, columns=["first", "stop", "group"])
    table["middle"] = (table["first"] + table["stop"]) / 2
    table["hue"] = [head_hue(names.index(one)) for one in table["group"]]
    table["positions"] = [f"{a:,}–{b - 1:,}" for a, b in zip(table["first"], table["stop"], strict=True)]
    scale = alt.Scale(domain=list(span) if along_x else list(span)[::-1], nice=False, zero=False)
    look: dict[str, Any] = {"width": size, "height": 14} if along_x else {"width": 14, "height": size}
    base = alt.Chart(table, **look)
    colour = alt.Color("hue:N", scale=None)
    tip = tooltips("group:N", "positions:N")
    if not along_x:
        return base.mark_rect().encode(alt.Y("first:Q", scale=scale, axis=None), alt.Y2("stop:Q"), colour, tooltip=tip)
    bands = base.mark_rect().encode(alt.X("first:Q", scale=scale, axis=None), alt.X2("stop:Q"), colour, tooltip=tip)
    room = size / (span[1] - span[0])
    fits = [
        7 * len(one) < room * (stop - first)
        for one, first, stop in zip(table["group"], table["first"], table["stop"], strict=True)
    ]
    texts = (
        alt.Chart(table[fits])
        .mark_text(dy=16, fontSize=11)
        .encode(alt.X("middle:Q", scale=scale, axis=None), alt.Y(value=7), colour, text="group:N")
    )
    return layered(bands, texts)
