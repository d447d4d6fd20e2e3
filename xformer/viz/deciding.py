"""Draw how a step was decided: two patterns and their signed difference, the rows that decided, and the lens of each player.

frame = cells(one, other, path, head)
weight_map(frame, "one", dark=False); difference_map(frame, dark=False); pattern_maps(frame, "A", "B", dark=False)
look_chart(look(one), dark=False)
lens_lanes({one.name: lens_at(one), other.name: lens_at(other)}, lens_parting(…), dark=False)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import altair as alt
import pandas as pd

from xformer.site import Site
from xformer.viz import theme
from xformer.viz.attention import layer_title
from xformer.viz.residual import written

DECIDES = "▶"
_CELL, _AXES, _LEGEND, _TITLE = 22, 130, 95, 34
"""Pixels of a row, and of what is around the rows."""
_CROWDED = 30
"""Up to so many rows or columns each has its label."""


def weight_map(
    frame: pd.DataFrame, which: Literal["one", "other"], *, dark: bool, title: str = "", legend: bool = True
) -> alt.LayerChart | alt.FacetChart:
    """One of the two patterns of a `cells` frame on the fixed scale from 0 to 1; masked cells are grey."""
    scale = alt.Scale(**theme.vega_scale(theme.sequential(dark), 0, 1))
    return _map(frame, which, f"{which}_allowed", "weight", scale, dark, title, legend)


def difference_map(
    frame: pd.DataFrame, *, dark: bool, limit: float = 1.0, title: str = ""
) -> alt.LayerChart | alt.FacetChart:
    """Second less first of a `cells` frame, centred on 0: blue where the second looks more, orange where it looks less.

    Colours run from −`limit` to `limit` (`theme.signed_limit` of the differences stretches them). Cells that neither may
    look at are grey.
    """
    scale = alt.Scale(**theme.vega_scale(theme.diverging(dark), -limit, limit))
    allowed = frame["one_allowed"] | frame["other_allowed"]
    return _map(frame.assign(any_allowed=allowed), "difference", "any_allowed", "difference", scale, dark, title, True)


def pattern_maps(frame: pd.DataFrame, one: str, other: str, *, dark: bool) -> alt.HConcatChart:
    """Both patterns of a `cells` frame and their difference side by side, each on its own scale."""
    difference = f"Difference: {other.split(' ')[0]} − {one.split(' ')[0]}"
    return alt.hconcat(
        weight_map(frame, "one", dark=dark, title=one),
        weight_map(frame, "other", dark=dark, title=other),
        difference_map(frame, dark=dark, title=difference),
    ).resolve_scale(color="independent")


def _map(
    frame: pd.DataFrame,
    field: str,
    allowed: str,
    name: str,
    scale: alt.Scale,
    dark: bool,
    title: str,
    legend: bool,
) -> alt.LayerChart | alt.FacetChart:
    places = _places(frame, "query", "query_token")
    queries = [f"{DECIDES} {at}" if decides else at for at, decides in zip(places, frame["decides"], strict=True)]
    keys = _places(frame, "key", "key_token")
    data = frame.assign(query=queries, key=keys)
    n = len(dict.fromkeys(queries))
    base = alt.Chart(data).encode(
        alt.X(
            "key:N",
            sort=list(dict.fromkeys(keys)),
            title="key: what it looks at",
            axis=_axis(-90, len(dict.fromkeys(keys))),
        ),
        alt.Y(
            "query:N",
            sort=list(dict.fromkeys(queries)),
            title=f"query, {DECIDES} decides" if n > 6 else "query",
            axis=_axis(0, n),
        ),
    )
    hover = [
        "query:N",
        "key:N",
        alt.Tooltip("one:Q", title="first", format=".6f"),
        alt.Tooltip("other:Q", title="second", format=".6f"),
        alt.Tooltip("difference:Q", title="second − first", format="+.6f"),
        alt.Tooltip(f"{allowed}:N", title="may look"),
    ]
    key = (
        alt.Legend(title=name, orient="bottom", gradientLength=140, format="+.1f" if name == "difference" else ".1f")
        if legend
        else None
    )
    seen = (
        base.transform_filter(f"datum.{allowed}")
        .mark_rect()
        .encode(alt.Color(f"{field}:Q", scale=scale, legend=key), tooltip=hover)
    )
    hidden = base.transform_filter(f"!datum.{allowed}").mark_rect(color=theme.pick(theme.MASKED, dark))
    return alt.layer(seen, hidden.encode(tooltip=hover)).properties(height=_height(n, legend, title), title=title)


def look_chart(
    frame: pd.DataFrame,
    *,
    dark: bool,
    field: Literal["weight", "one", "other", "difference"] = "weight",
    limit: float = 1.0,
    title: str = "",
) -> alt.LayerChart | alt.FacetChart:
    """Where the deciding position looked: a row per layer and head, a column per key; of a `look` or `look_difference` frame.

    Layers whose keys are not the same tokens (self- and cross-attention) belong in charts of their own.
    """
    rows = [_row_title(path, head) for path, head in zip(frame["layer"], frame["head"], strict=True)]
    keys = _places(frame, "key", "token")
    order = list(dict.fromkeys(keys))
    if len(order) != frame["key"].nunique():
        raise ValueError("These layers look at different tokens; draw self-attention and cross-attention one by one.")
    data = frame.assign(row=rows, key=keys)
    signed = field == "difference"
    stops = theme.diverging(dark) if signed else theme.sequential(dark)
    scale = alt.Scale(**theme.vega_scale(stops, -limit if signed else 0, limit if signed else 1))
    n = len(dict.fromkeys(rows))
    key = alt.Legend(title="second − first" if signed else "weight", orient="bottom", gradientLength=140)
    base = alt.Chart(data).encode(
        alt.X("key:N", sort=order, title="key: what the deciding position looks at", axis=_axis(-90, len(order))),
        alt.Y("row:N", sort=list(dict.fromkeys(rows)), title="layer · head", axis=_axis(0, n)),
    )
    numbers = ["one", "other", "difference"] if "one" in frame else ["weight"]
    hover: list[Any] = ["row:N", "key:N", *(alt.Tooltip(f"{name}:Q", format=".6f") for name in numbers)]
    seen = (
        base.transform_filter("datum.allowed")
        .mark_rect()
        .encode(
            alt.Color(f"{field}:Q", scale=scale, legend=key),
            tooltip=hover,
        )
    )
    hidden = base.transform_filter("!datum.allowed").mark_rect(color=theme.pick(theme.MASKED, dark))
    return alt.layer(seen, hidden.encode(tooltip=hover)).properties(height=_height(n, True, title), title=title)


def lens_lanes(
    frames: Mapping[str, pd.DataFrame], parting: tuple[int, str] | None, *, dark: bool, title: str = ""
) -> alt.LayerChart | alt.FacetChart:
    """One lane a player of `lens_at` frames, from the embedding down to the output: the likeliest token and its probability.

    A rule stands above the point from which on the tokens differ to the end.
    """
    data = pd.concat([frame.assign(player=name) for name, frame in frames.items()], ignore_index=True)
    points = list(dict.fromkeys(data.sort_values("depth", kind="stable")["point"]))
    stops = theme.sequential(dark)
    is_known = "right" in data
    right = data["right"].fillna(False).astype(bool).tolist() if is_known else [False] * len(data)
    data = data.assign(
        says=[f"{t} {theme.RIGHT.mark}" if ok else t for t, ok in zip(data["token"], right, strict=True)],
        share=[f"{p:.2f}" for p in data["probability"]],
        ink=[theme.ink(stops[round(p * (len(stops) - 1))]) for p in data["probability"]],
        verdict=[theme.RIGHT.word if ok else theme.WRONG.word for ok in right],
    )
    answers = [
        alt.Tooltip("verdict:N", title="which is"),
        alt.Tooltip("answer:N", title="right token"),
        alt.Tooltip("answer_probability:Q", title="probability of that", format=".6f"),
    ]
    y = alt.Y("point:N", sort=points, title="after …", axis=alt.Axis(labelLimit=240, labelOverlap=False))
    names = alt.Axis(labelAngle=0, orient="top", labelFontSize=13, labelLimit=220, labelOverlap=False)
    base = alt.Chart(data).encode(
        alt.X("player:N", sort=list(frames), title="player", axis=names),
        y,
        tooltip=[
            "player:N",
            alt.Tooltip("point:N", title="after"),
            alt.Tooltip("token:N", title="likeliest token"),
            alt.Tooltip("probability:Q", format=".6f"),
            *(answers if is_known else ()),
        ],
    )
    scale = alt.Scale(**theme.vega_scale(stops, 0, 1))
    layers: list[Any] = [
        base.mark_rect(stroke=theme.pick(theme.BACKGROUND, dark), strokeWidth=2).encode(
            alt.Color(
                "probability:Q",
                scale=scale,
                legend=alt.Legend(title="probability", orient="bottom", gradientLength=140, format=".1f"),
            )
        ),
        base.mark_text(fontSize=15, fontWeight="bold", dy=-6).encode(color=written(), text="says:N"),
        base.mark_text(fontSize=11, dy=11).encode(color=written(), text="share:N"),
    ]
    if parting is not None:
        here = alt.Chart(pd.DataFrame({"point": [parting[1]], "note": ["from here on they differ"]}))
        layers.append(
            here.mark_rule(color=theme.pick(theme.WRONG.colour, dark), strokeWidth=4).encode(
                alt.Y("point:N", sort=points, bandPosition=0), tooltip=alt.Tooltip("note:N", title="lens")
            )
        )
    return alt.layer(*layers).properties(height=42 * len(points) + _height(0, True, title) - 50, title=title)


def _places(frame: pd.DataFrame, at: str, token: str) -> list[str]:
    """What a position is called, "3 · 12", or a block of them, "0–10"."""
    ends = frame[f"{at}_end"] if f"{at}_end" in frame else frame[at]
    return [
        f"{first} · {text}" if first == last else f"{first}–{last}"
        for first, last, text in zip(frame[at], ends, frame[token], strict=True)
    ]


def _row_title(path: str, head: int) -> str:
    where = layer_title(path, is_pair=Site.parse(path).kind != "attn")
    return f"{where} · mean" if head < 0 else f"{where} · head {head + 1}"


def _height(n_rows: int, legend: bool, title: str) -> int:
    """Rows are equally high in charts with and without a legend or a title, so that they can stand side by side."""
    return _CELL * n_rows + _AXES + (_LEGEND if legend else 0) + (_TITLE if title else 0)


def _axis(angle: int, n: int) -> alt.Axis:
    return alt.Axis(labelAngle=angle, labelOverlap=n > _CROWDED, labelFontSize=11, labelLimit=180)
