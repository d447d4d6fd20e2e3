"""The arcs of one layer's heads, from queries at the left to keys at the right: the attention view's other picture, as a chart.

viz.attention_arcs(reading, layer=2, heads=[1])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float

from xformer.errors import EditError
from xformer.reading import Reading
from xformer.viz.charts import inline, layered
from xformer.viz.head_grid import share_of
from xformer.viz.packing import AnyLayer, pattern_layers, visible
from xformer.viz.theme import TEXT, head_hue, pick

MOST_ARCS = 600
"""More than so many, the weakest are left out: in a picture of thousands nobody sees one."""
LEAST = 5 / 253
"""A weaker arc, as a share of the scale, is not drawn in the browser either."""
WIDTH, PITCH, TALLEST = 300, 26, 760
"""CSS pixels from side to side, from token to token, and from the first to the last one at most."""
_CURVE = np.linspace(0.0, 1.0, 17)


def attention_arcs(
    reading: Reading,
    *,
    layer: int,
    heads: Sequence[int],
    before: Reading | None = None,
    scale: str = "fixed",
    dark: bool = False,
) -> alt.TopLevelMixin:
    """Each weight of some heads of an attention layer as an arc, the thicker the larger, in the hue of its head.

    `scale` is one of `viz.attention`. With the original run `before`: both side by side on one scale. Of more than `MOST_ARCS`
    the weakest are left out. Raises `EditError` for a head that the layer does not have.
    """
    runs = [pattern_layers(one) for one in (before, reading) if one is not None]
    if not 0 <= layer < len(runs[0]):
        raise EditError(f"The attention layers are 0 to {len(runs[0]) - 1}, got {layer}.")
    layers = [run[layer] for run in runs]
    if wrong := [head for head in heads if not 0 <= head < layers[0].shape[0]]:
        raise EditError(f"{layers[0].name} has heads 0 to {layers[0].shape[0] - 1}, got {wrong[0]}.")
    exact = [{head: np.where(np.isinf(block := one.exact(head)), np.nan, block) for head in heads} for one in layers]
    shares = [
        {head: share_of(weights[head], [run[head] for run in exact], scale) for head in heads} for weights in exact
    ]
    titles = [""] if before is None else ["original", "changed"]
    charts: list[Any] = [
        _one(one, share, title, dark) for one, share, title in zip(layers, shares, titles, strict=True)
    ]
    return charts[0] if len(charts) == 1 else alt.hconcat(*charts, spacing=40)


def _one(
    layer: AnyLayer, shares: dict[int, Float[np.ndarray, "query key"]], title: str, dark: bool
) -> alt.TopLevelMixin:
    _, n_query, n_key = layer.shape
    most = max(n_query, n_key)
    height = min(TALLEST, max(150, PITCH * most))
    curves = _curves(shares, height / most)
    domain = [f"head {head + 1}" for head in shares]
    hues = alt.Scale(domain=domain, range=[head_hue(head, dark) for head in shares])
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, 1], nice=False), axis=None)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[1, 0], nice=False), axis=None)
    arcs = (
        alt.Chart(inline(curves))
        .mark_line(interpolate="monotone", clip=False)
        .encode(
            x=x,
            y=y,
            order=alt.Order("x:Q"),
            detail=alt.Detail("arc:N"),
            color=alt.Color("head:N", scale=hues, title=None, legend=alt.Legend(orient="top")),
            opacity=alt.Opacity("opacity:Q", scale=None, legend=None),
            strokeWidth=alt.StrokeWidth("width:Q", scale=None, legend=None),
        )
    )
    words = [
        _words(names, side, height, x, y, dark)
        for side, names in (("left", layer.query_labels), ("right", layer.key_labels))
    ]
    return layered(arcs, *words, title=f"{layer.title}{', ' * bool(title)}{title}", width=WIDTH, height=height)


def _words(names: Sequence[str], side: str, height: float, x: alt.X, y: alt.Y, dark: bool) -> alt.Chart:
    """The tokens of one side, as many as have room, under the word for what they are."""
    n, every = len(names), max(1, int(np.ceil(13 * len(names) / height)))
    at = 0.0 if side == "left" else 1.0
    rows = [
        {
            "x": at,
            "y": (i + 0.5) / n,
            "text": f"{i} {visible(names[i])}" if side == "left" else f"{visible(names[i])} {i}",
        }
        for i in range(0, n, every)
    ]
    rows.append({"x": at, "y": -14 / height, "text": "query" if side == "left" else "key"})
    align, shift = ("right", -8) if side == "left" else ("left", 8)
    mark = alt.Chart(pd.DataFrame(rows)).mark_text(align=align, dx=shift, color=pick(TEXT, dark), clip=False)
    return mark.encode(x=x, y=y, text=alt.Text("text:N"))


def _curves(shares: dict[int, Float[np.ndarray, "query key"]], pitch: float) -> pd.DataFrame:
    """The points of every arc that is drawn, those of the largest weights last, so that they lie on top."""
    found = [
        (share[query, key], head, (query + 0.5) / share.shape[0], (key + 0.5) / share.shape[1])
        for head, share in shares.items()
        for query, key in zip(*np.nonzero(np.nan_to_num(share) >= LEAST), strict=True)
    ]
    found = sorted(found)[-MOST_ARCS:]
    ease = _CURVE**2 * (3 - 2 * _CURVE)
    return pd.DataFrame(
        {
            "arc": np.repeat(np.arange(len(found)), len(_CURVE)),
            "head": np.repeat([f"head {head + 1}" for _, head, _, _ in found], len(_CURVE)),
            "x": np.tile(_CURVE, len(found)),
            "y": np.concatenate([start + (end - start) * ease for _, _, start, end in found] or [np.empty(0)]),
            "opacity": np.repeat([0.04 + 0.9 * share**0.85 for share, *_ in found], len(_CURVE)),
            "width": np.repeat([0.5 + min(2.7, 0.6 * pitch) * share for share, *_ in found], len(_CURVE)),
        }
    )
