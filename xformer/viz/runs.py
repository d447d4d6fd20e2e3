"""Draw the curves of several runs over each other: one colour per run, its name at the end of its line.

frame = curves({"baseline": rows}, "held_out_loss", smoothing=0.6)
curves_chart(frame, "held_out_loss", "held-out loss", {"baseline": "#425fe1"}, log=True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float

from xformer.viz import theme
from xformer.viz.charts import layered

POINTS = 500
"""The most points of a run that are drawn."""
HEIGHT = 330
LINE = 17
"""Pixels between two names at the right."""
BELOW = 66
"""Pixels that the horizontal axis takes of a picture's height."""
SHARES = ("held_out_exact_match", "held_out_token_accuracy", "best_head_score")
"""What lies between 0 and 1, whatever the runs are."""


def smoothed(values: Float[np.ndarray, "row"], weight: float) -> Float[np.ndarray, "row"]:
    """The exponential moving average without the pull of its start at zero (Kingma & Ba 2015, §3).

        m_t = w m_(t−1) + (1 − w) y_t        ŷ_t = m_t / (1 − w^t)

    Raises ValueError unless 0 ≤ `weight` < 1; 0 leaves the values as they are.
    """
    if not 0 <= weight < 1:
        raise ValueError(f"A weight of smoothing is at least 0 and below 1, received {weight}; try 0.6.")
    average, result = 0.0, np.empty(len(values))
    for t, value in enumerate(values, start=1):
        average = weight * average + (1 - weight) * value
        result[t - 1] = average / (1 - weight**t)
    return result


def thinned(frame: pd.DataFrame, points: int = POINTS) -> pd.DataFrame:
    """At most so many rows, at equal distances, the first and the last among them."""
    if len(frame) <= points:
        return frame
    return frame.iloc[np.unique(np.linspace(0, len(frame) - 1, points).round().astype(int))]


def curves(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], metric: str, *, x: str = "step", smoothing: float = 0.0
) -> pd.DataFrame:
    """What is drawn, at most `POINTS` rows per run: run, step, seconds, value (smoothed), raw.

    `rows` are the metrics of each run by its name; rows without the metric, or without a finite one, are left out.
    """
    frames = []
    for name, found in rows.items():
        points = [row for row in found if _is_number(row.get(metric)) and _is_number(row.get(x))]
        frame = pd.DataFrame(
            {
                "run": name,
                "step": [row["step"] for row in points],
                "seconds": [float(row.get("seconds", 0.0)) for row in points],
                "raw": [float(row[metric]) for row in points],
            }
        )
        # Smoothed before it is thinned: else the curve would depend on how many points there is room for.
        frame["value"] = smoothed(frame["raw"].to_numpy(dtype=float), smoothing)
        frames.append(thinned(frame))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def curves_chart(
    frame: pd.DataFrame,
    metric: str,
    title: str,
    colours: Mapping[str, str],
    *,
    x: str = "step",
    log: bool = False,
    height: int = HEIGHT,
) -> alt.LayerChart | alt.FacetChart:
    """The `curves` of runs, x being "step" or "seconds". A click on a line or a name brings that run to the front.

    Shares are drawn from 0 to 1. On a logarithmic scale what is not above zero is left out. Where values are smoothed the
    raw ones stay behind, faint.
    """
    log = log and metric not in SHARES
    if log:
        frame = frame.loc[(frame["value"] > 0) & (frame["raw"] > 0)]
    is_smooth = bool((frame["raw"] - frame["value"]).abs().gt(1e-12).any())
    domain = [0.0, 1.0] if metric in SHARES else padded(frame["raw" if is_smooth else "value"].tolist(), log)
    scale = alt.Scale(domain=domain, type="log" if log else "linear", nice=False)
    share = metric in SHARES
    y = alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(format=".0%" if share else "~g", tickCount=5))
    last_x = max(frame[x].tolist()) if len(frame) else 1.0
    across = alt.X(f"{x}:Q", title=x, scale=alt.Scale(domain=[0, last_x], nice=False))
    front = alt.selection_point(fields=["run"], name="front", on="click", clear="dblclick")
    names = [name for name in colours if name in set(frame["run"])]
    colour = alt.Color("run:N", scale=alt.Scale(domain=names, range=[colours[name] for name in names]), legend=None)
    lit = alt.OpacityValue(**alt.condition(front, alt.value(1.0), alt.value(0.12)))
    exact = [
        alt.Tooltip("run:N"),
        alt.Tooltip("step:Q", format=","),
        alt.Tooltip("seconds:Q", format=".2f"),
        alt.Tooltip("value:Q", title=f"{title}, smoothed" if is_smooth else title, format=".6g"),
        *([alt.Tooltip("raw:Q", title=f"{title}, raw", format=".6g")] if is_smooth else []),
    ]
    base = alt.Chart(frame).encode(across, colour)
    layers: list[alt.Chart] = []
    if is_smooth:
        faint = alt.OpacityValue(**alt.condition(front, alt.value(0.38), alt.value(0.06)))
        layers.append(base.mark_line(strokeWidth=1, clip=True).encode(alt.Y("raw:Q", scale=scale), opacity=faint))
    layers.append(base.mark_line(strokeWidth=2.5, clip=True).encode(y, opacity=lit))
    # A wide line that nobody sees is easier to point at than points.
    near = alt.selection_point(name="near", on="pointerover", nearest=True, fields=["run", x], empty=False)
    layers.append(
        base.mark_point(size=70, filled=True, clip=True)
        .encode(y, opacity=alt.OpacityValue(**alt.condition(near, alt.value(1.0), alt.value(0.0))), tooltip=exact)
        .add_params(near, front)
    )
    layers.append(_names(frame, x, last_x, y, domain, log, height - BELOW, names, lit))
    return layered(*layers, height=height)


def _names(
    frame: pd.DataFrame,
    x: str,
    last_x: float,
    y: alt.Y,
    domain: list[float],
    log: bool,
    height: int,
    names: list[str],
    lit: Any,
) -> alt.Chart:
    """Each run's name right of the picture, as high as its line ends, apart enough to be read."""
    ends: dict[str, float] = dict(
        zip(frame["run"].tolist(), frame["value"].tolist(), strict=True)
    )  # the last one stays
    wanted = [height * (1 - share_of(ends[name], domain, log)) for name in names]
    table = pd.DataFrame(
        {
            "run": names,
            "shown": [name if len(name) <= 22 else f"{name[:21]}…" for name in names],
            "value": [value_at(1 - pixel / height, domain, log) for pixel in spread(wanted, LINE, LINE / 2, height)],
            x: last_x,
        }
    )
    return (
        alt.Chart(table)
        .mark_text(align="left", dx=8, fontSize=13, fontWeight=600)
        .encode(
            x=f"{x}:Q",
            y=y,
            text=alt.Text("shown:N"),
            opacity=lit,
            tooltip=alt.Tooltip("run:N"),
            color=alt.Color("run:N", legend=None),
        )
    )


def padded(values: Sequence[float], log: bool) -> list[float]:
    """From a little below the least to a little above the largest; from zero on a linear scale where nothing is below."""
    if not values:
        return [0.1, 1.0] if log else [0.0, 1.0]
    low, high = min(values), max(values)
    if log:
        room = max(1.05, (high / low) ** 0.04)
        return [low / room, high * room]
    room = 0.04 * (high - low) or 0.04 * abs(high) or 1.0
    return [0.0 if low >= 0 else low - room, high + room]


def share_of(value: float, domain: Sequence[float], log: bool) -> float:
    """How high a value is between the ends of an axis: 0 at the bottom, 1 at the top, never outside."""
    low, high = domain
    share = math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
    return min(1.0, max(0.0, share))


def value_at(share: float, domain: Sequence[float], log: bool) -> float:
    """What stands so high on an axis: the inverse of `share_of`, and the same line beyond the ends."""
    low, high = domain
    return low * (high / low) ** share if log else low + share * (high - low)


def spread(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Places as near to those wanted as it goes, at least `apart` from each other; from `low` to `high` where there is room."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    places = [0.0] * len(wanted)
    below = low - apart
    for index in order:
        below = places[index] = max(wanted[index], below + apart)
    above = high + apart
    for index in reversed(order):
        above = places[index] = min(places[index], above - apart)
    if order and (lift := low - places[order[0]]) > 0:  # more names than fit: they run over the lower edge
        places = [place + lift for place in places]
    return places


def dot(colour: str | None) -> str:
    """A small disc of a colour as an image's address, for a column of a table; an empty image for no colour."""
    if colour is None:
        return "data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 20 20'/>"
    return (
        "data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 20 20'>"
        f"<circle cx='10' cy='10' r='7' fill='%23{colour.removeprefix('#')}'/></svg>"
    )


def run_colour(slot: int, dark: bool) -> str:
    """The colour of the run in that place of the choice; they start over after twelve."""
    return theme.pick(theme.HEAD_HUES[slot % len(theme.HEAD_HUES)], dark)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
