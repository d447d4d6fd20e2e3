"""Draw score attribution: what each pair of sources, at the query and at the key, adds to a key's advantage."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from xformer.analysis.score_decomposition import why as why_table
from xformer.reading import Reading
from xformer.viz.theme import diverging, vega_scale

SHOWN = 7
"""So many sources of each side have a row or a column of their own; the others share one."""
RANKED = 10
CELL = 26
OTHERS, HEADS = "all others", "all heads"
_SHORT = {"feed-forward": "ffn"}


def why(
    reading: Reading,
    *,
    layer: int,
    head: int,
    query: int,
    key: int,
    against: int | None = None,
    opened: Sequence[str] | None = None,
    table: pd.DataFrame | None = None,
    dark: bool = False,
) -> alt.HConcatChart:
    """`analysis.why`: the pairs with the largest contributions to a key's advantage in nats, and all pairs as a matrix.

    Of the layers `opened` ("layer 3") the matrix has each head for itself, of the others all heads together; None: each of all.
    `table` is that of `analysis.why` where it has been made already.

    Args:
        reading: The run.
        layer: The layer, from 0.
        head: The head, from 0.
        query: The query's position, from 0.
        key: The key's position, from 0.
        against: A second key or token to compare with.
        opened: The layers whose heads are drawn one by one; all by default.
        table: The table of the analysis, where it exists already.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.why(reading, layer=2, head=1, query=0, key=4)
    """
    if table is None:
        table = why_table(reading, layer=layer, head=head, query=query, key=key, against=against)
    frame = table.replace({"query_source": _SHORT, "key_source": _SHORT}, regex=True)
    ranked = frame.head(RANKED).assign(pair=lambda f: f["query_source"] + "  ×  " + f["key_source"])
    cells, orders = _gathered(frame if opened is None else _closed(frame, opened))
    limit = max(map(abs, [*cells["advantage"].tolist(), *ranked["advantage"].tolist()])) or 1.0
    colour = alt.Color("advantage:Q", scale=alt.Scale(**vega_scale(diverging(dark), -limit, limit)), legend=None)
    hover = [
        alt.Tooltip("query_source", title="at the query"),
        alt.Tooltip("key_source", title="at the key"),
        alt.Tooltip("score:Q", title="adds to the score, nats", format=".4f"),
        alt.Tooltip("advantage:Q", title="adds to the advantage, nats", format=".4f"),
    ]
    bars = (
        alt.Chart(ranked, title="Largest contributions of pairs", width=140, height=24 * len(ranked))
        .mark_bar()
        .encode(
            x=alt.X("advantage:Q", title="nats of advantage"),
            y=alt.Y("pair:N", sort=ranked["pair"].tolist(), title=None, axis=alt.Axis(labelLimit=260)),
            color=colour,
            tooltip=hover,
        )
    )
    rows, columns = orders
    matrix = (
        alt.Chart(cells, title="At the query × at the key", width=CELL * len(columns), height=CELL * len(rows))
        .mark_rect()
        .encode(
            x=alt.X(
                "key_source:N",
                sort=columns,
                title=None,
                axis=alt.Axis(labelAngle=-45, labelLimit=140, labelOverlap=False),
            ),
            y=alt.Y("query_source:N", sort=rows, title=None, axis=alt.Axis(labelLimit=140, labelOverlap=False)),
            color=colour,
            tooltip=hover,
        )
    )
    return alt.hconcat(bars, matrix, spacing=24)


def _closed(frame: pd.DataFrame, opened: Sequence[str]) -> pd.DataFrame:
    """The heads of a layer as one source, but for those layers that are opened."""

    def of_layer(source: str) -> str:
        layer, is_head, _ = source.rpartition(" · head ")
        return f"{layer} · {HEADS}" if is_head and layer not in opened else source

    sources = {side: [of_layer(source) for source in frame[side].tolist()] for side in ("query_source", "key_source")}
    summed = frame.assign(**sources).groupby([*sources], as_index=False)
    return pd.DataFrame(summed[["score", "advantage"]].sum())


def _gathered(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[list[str]]]:
    """The strongest sources, and what all others add as one row and one column, so that it sums to the same; both orders."""
    columns, orders = {}, []
    for side in ("query_source", "key_source"):
        sizes: dict[str, float] = {}
        for source, advantage in zip(frame[side].tolist(), frame["advantage"].tolist(), strict=True):
            sizes[source] = sizes.get(source, 0.0) + abs(advantage)
        order = sorted(sizes, key=lambda source: -sizes[source])
        if len(order) > SHOWN + 1:
            order = [*order[:SHOWN], OTHERS]
        columns[side] = [source if source in order else OTHERS for source in frame[side].tolist()]
        orders.append(order)
    summed = frame.assign(**columns).groupby(["query_source", "key_source"], as_index=False)
    return pd.DataFrame(summed[["score", "advantage"]].sum()), orders
