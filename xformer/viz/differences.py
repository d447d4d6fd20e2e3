"""Draw how two runs differ: their patterns, the attention and logit lens at the deciding position, and their predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import altair as alt
import pandas as pd

from xformer.analysis.differences import MEAN, lens_divergence
from xformer.analysis.differences import decision_lens as lens_table
from xformer.analysis.differences import decision_rows as rows_table
from xformer.analysis.differences import pattern_difference as difference_table
from xformer.analysis.differences import prediction_difference as prediction_table
from xformer.analysis.differences import surprise_by_character as surprise_table
from xformer.arguments import Count
from xformer.errors import InputError
from xformer.formatting import check_index, check_indices, check_option
from xformer.layer_path import LayerPath, layer_title
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import ROWS, Chart, cell_colours, heat_colour, layered, numbered, numbers, tooltips
from xformer.viz.generation import RIGHT_SHARE, model_hues, short_names, verdicts

DECIDES = "▶"
"""Marks the query whose output decides the answer."""
_CELL = 22
"""Pixels of a row."""
_CROWDED = 30
"""Largest number of rows or columns that are all labelled."""


def pattern_difference(
    readings: Sequence[Reading],
    layer: int,
    head: int = MEAN,
    max_blocks: Count | None = None,
    *,
    show: Literal["difference", "one", "other"] = "difference",
    table: pd.DataFrame | None = None,
) -> Chart:
    """Draw the second of two patterns minus the first: blue where the second attends more, orange where it attends less.

    `show` selects one of the two patterns instead, on the fixed scale from 0 to 1. Masked cells are grey; in the difference,
    those masked in both.

    Further arguments are those of `analysis.pattern_difference`.

    Args:
        show: "difference", "one" (the first run) or "other" (the second).
        table: The table of the analysis, if already computed.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> readings = [run[1] for run in runs]  # at the second step
        >>> chart = xformer.viz.pattern_difference(readings, 1, 1)
    """
    check_option("show", show, ("difference", "one", "other"))
    frame = difference_table(readings, layer, head, max_blocks) if table is None else table
    is_signed = show == "difference"
    allowed = frame["one_allowed"] | frame["other_allowed"] if is_signed else frame[f"{show}_allowed"]
    places = _position_labels(frame, "query", "query_token")
    queries = [f"{DECIDES} {at}" if decides else at for at, decides in zip(places, frame["decides"], strict=True)]
    keys = _position_labels(frame, "key", "key_token")
    data = frame[["one", "other", "difference"]].assign(row=queries, key=keys, allowed=allowed)
    hover = tooltips(("row:N", "query"), "key:N", ("one:Q", "first", ".6f"), ("other:Q", "second", ".6f"))
    hover += tooltips(("difference:Q", "second − first", "+.6f"), ("allowed:N", "allowed by the mask"))
    x, y = "key: position attended to →", f"query ({DECIDES} decides)" if len(set(queries)) > 6 else "query"
    return _heatmap(data, "difference" if is_signed else show, (x, y), hover, is_signed)


def decision_rows(
    readings: Sequence[Reading],
    *,
    pair: tuple[int, int] = (0, 1),
    n_heads: Count | None = None,
    max_blocks: Count | None = None,
    show: int = 0,
    kind_label: str | None = None,
    table: pd.DataFrame | None = None,
) -> Chart:
    """Draw the attention of the deciding position: one row per layer and head, one column per key.

    Layers that attend to different tokens need separate charts, such as self-attention and cross-attention; `kind_label`
    selects one kind of layer.

    Further arguments are those of `analysis.decision_rows`.

    Args:
        show: The index of the reading to draw.
        kind_label: The kind of layer to draw, a `LayerPath.kind_label` such as "cross-attention".
        table: The table of the analysis, if already computed.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> readings = [run[1] for run in runs]  # at the second step
        >>> chart = xformer.viz.decision_rows(readings)
    """
    check_index("show", show, len(readings))
    frame = rows_table(readings, pair=pair, n_heads=n_heads, max_blocks=max_blocks) if table is None else table
    frame = frame.loc[frame["model"] == readings[show].adapter.name]
    check_option(
        "kind_label", kind_label, (None, *(LayerPath.parse(path).kind_label for path in frame["layer"].unique()))
    )
    frame = frame.loc[[kind_label in (None, LayerPath.parse(path).kind_label) for path in frame["layer"]]]
    data = frame[["weight", "allowed"]].assign(
        row=[_row_title(path, head) for path, head in zip(frame["layer"], frame["head"], strict=True)],
        key=_position_labels(frame, "key", "token"),
    )
    if data["key"].nunique() != frame["key"].nunique():
        raise InputError("These layers attend to different tokens; draw self-attention and cross-attention one by one.")
    hover = tooltips("row:N", "key:N", ("weight:Q", "", ".6f"))
    return _heatmap(data, "weight", ("key: position attended to →", "layer · head"), hover, False)


def decision_lens(readings: Sequence[Reading], *, pair: tuple[int, int] | None = None) -> Chart:
    """Draw the logit lens at the deciding position, one column per model: the likeliest token and its probability.

    Rows run from the embedding down to the output. With a `pair`, a rule marks the point from which on these two differ.

    Further arguments are those of `analysis.decision_lens`.

    Args:
        pair: The indices of the two readings to compare.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> readings = [run[1] for run in runs]  # at the second step
        >>> chart = xformer.viz.decision_lens(readings)
    """
    data = lens_table(readings)
    check_indices("pair", pair or (), len(readings))
    divergence = None if pair is None else lens_divergence(lens_table([readings[at] for at in pair]))
    names = short_names([reading.adapter.name for reading in readings])
    data["model"] = [names[name] for name in data["model"]]
    points = list(dict.fromkeys(data.sort_values("depth", kind="stable")["point"]))
    is_known = "right" in data
    right = data["right"].fillna(False).astype(bool).tolist() if is_known else [False] * len(data)
    data = data.assign(
        says=[f"{t} {theme.RIGHT.mark}" if ok else t for t, ok in zip(data["token"], right, strict=True)],
        share=data["probability"].map("{:.2f}".format),
        cell_colour=cell_colours(theme.SEQUENTIAL, data["probability"], 0, 1),
        verdict=verdicts(right),
    )
    hover = tooltips("model:N", ("point:N", "after"), ("token:N", "likeliest token"), ("probability:Q", "", ".6f"))
    if is_known:
        hover += tooltips(("verdict:N", "prediction is"), ("answer:N", "right token"), RIGHT_SHARE)
    y = alt.Y("point:N", sort=points, title="after …", axis=alt.Axis(labelLimit=240, labelOverlap=False))
    axis = alt.Axis(labelAngle=0, orient="top", labelFontSize=13, labelLimit=220, labelOverlap=False)
    x = alt.X("model:N", sort=list(names.values()), title="model", axis=axis)
    base = alt.Chart(data).encode(x, y, tooltip=hover)
    legend = alt.Legend(title="probability", orient="bottom", gradientLength=140, format=".1f")
    colour = heat_colour("probability:Q", theme.SEQUENTIAL, 0, 1, legend=legend)
    layers: list[Any] = [
        base.mark_rect(stroke=theme.BACKGROUND, strokeWidth=2).encode(colour),
        *numbers(base, "says:N", size=15, fontWeight="bold", dy=-6),
        *numbers(base, "share:N", dy=11),
    ]
    if divergence is not None:
        here = alt.Chart(pd.DataFrame({"point": [divergence[1]], "note": ["differs from here on"]}))
        here = here.mark_rule(color=theme.WRONG.colour, strokeWidth=4)
        y = alt.Y("point:N", sort=points, bandPosition=0)
        layers.append(here.encode(y, tooltip=alt.Tooltip("note:N", title="logit lens")))
    return layered(*layers, height=42 * len(points), autosize=ROWS)


def _heatmap(data: pd.DataFrame, field: str, titles: tuple[str, str], hover: list[Any], is_signed: bool) -> Chart:
    """Draw cells at the columns `row` and `key` on a fixed scale; cells that are not `allowed` are grey."""
    rows, keys = (list(dict.fromkeys(data[name])) for name in ("row", "key"))
    base = alt.Chart(data).encode(
        alt.X("key:N", sort=keys, title=titles[0], axis=_axis(-90, len(keys))),
        alt.Y("row:N", sort=rows, title=titles[1], axis=_axis(0, len(rows))),
        tooltip=hover,
    )
    stops, low = (theme.DIVERGING, -1) if is_signed else (theme.SEQUENTIAL, 0)
    name, sign = ("difference", "+.1f") if is_signed else ("weight", ".1f")
    legend = alt.Legend(title=name, orient="bottom", gradientLength=140, format=sign)
    seen = (
        base.transform_filter("datum.allowed")
        .mark_rect()
        .encode(heat_colour(f"{field}:Q", stops, low, 1, legend=legend))
    )
    hidden = base.transform_filter("!datum.allowed").mark_rect(aria=False, color=theme.MASKED)
    return layered(seen, hidden, height=_CELL * len(rows), autosize=ROWS)


def _position_labels(frame: pd.DataFrame, at: str, token: str) -> list[str]:
    """Label each position, "3 · 12", or block of positions, "0–10"."""
    cells = zip(frame[at], frame[f"{at}_end"], frame[token], strict=True)
    return [f"{first} · {text}" if first == last else f"{first}–{last}" for first, last, text in cells]


def _row_title(path: str, head: int) -> str:
    where = layer_title(path, is_encoder_decoder=LayerPath.parse(path).kind != "attn")
    return f"{where} · mean" if head < 0 else f"{where} · head {head + 1}"


def _axis(angle: int, n: int) -> alt.Axis:
    return alt.Axis(labelAngle=angle, labelOverlap=n > _CROWDED, labelFontSize=11, labelLimit=180)


def prediction_difference(readings: Sequence[Reading], *, position: int | None = None) -> alt.Chart:
    """Draw KL(first ‖ second) of the next-token distributions of two runs, one bar per position.

    Further arguments are those of `analysis.prediction_difference`.

    Args:
        position: The position to highlight, from 0.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> texts = [
        ...     xformer.read("checkpoints/characters", "import os", edits=edits)
        ...     for edits in ("", "ablate:decoder.0.attn.1")
        ... ]
        >>> chart = xformer.viz.prediction_difference(texts)
    """
    table = prediction_table(readings)
    places = numbered(table)
    table = table.assign(place=places, chosen=table["position"] == position)
    names = [reading.adapter.name for reading in readings]
    x = alt.X("place:N", sort=places, title=None, axis=alt.Axis(labelAngle=-60, labelLimit=110, labelOverlap=True))
    tooltip = tooltips(("place:N", "position"), ("kl:Q", "KL (nats)", ".4g"), ("kl_back:Q", "reverse KL (nats)", ".4g"))
    tooltip += tooltips(("total_variation:Q", "total variation", ".3f"))
    for which, name in zip(("one", "other"), names, strict=True):
        tooltip += tooltips((f"{which}_says:N", f"{name[:24]}: likeliest token"))
        tooltip += tooltips((f"{which}_probability:Q", f"{name[:24]}: its probability", ".3f"))
    strong, usual = theme.PART_HUES["positions"], theme.PRIMARY
    colour = alt.condition("datum.chosen", alt.value(strong), alt.value(usual))
    y = alt.Y("kl:Q", title="KL (nats)")
    return alt.Chart(table, height=220).mark_bar().encode(x=x, y=y, color=colour, tooltip=tooltip)


_MAX_WORDS = 90
"""Beyond this many tokens, only those of several characters are written."""


def surprise_by_character(readings: Sequence[Reading]) -> Chart:
    """Draw the surprisal of one or two models along a text, in bits per character; the second model's bars point down.

    The width of a bar is the length of its token in characters.

    The arguments are those of `analysis.surprise_by_character`.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> chart = xformer.viz.surprise_by_character([xformer.read("checkpoints/characters", "import os")])
    """
    table = surprise_table(readings)
    models = list(dict.fromkeys(table["model"]))
    sign = [1 if name == models[0] else -1 for name in table["model"]]
    has_room = (table["to"] > table["from"] + 1) | (len(table) <= _MAX_WORDS)
    table = table.assign(
        bits_up=table["bits_per_character"] * sign,
        middle=(table["from"] + table["to"]) / 2,
        shown=table["token"].where(has_room, ""),
    )
    axis = alt.Axis(labelExpr="abs(datum.value)", tickCount=6)
    bits = alt.Y("bits_up:Q", title="bits per character", axis=axis, scale=alt.Scale(padding=16))
    x = alt.X("from:Q", title="character position", scale=alt.Scale(nice=False), axis=alt.Axis(tickMinStep=1))
    hover = tooltips("model:N", "token:N", ("bits:Q", "", ".2f"), ("bits_per_character:Q", "", ".2f"))
    base = alt.Chart(table)
    bars = base.mark_bar(stroke=theme.BACKGROUND, strokeWidth=1)
    look = {"fontSize": 12, "color": theme.TEXT}
    up, down = (base.transform_filter(f"datum.bits_up {side} 0") for side in (">=", "<"))
    words = [up.mark_text(dy=-7, **look), down.mark_text(dy=9, **look)]
    words = [text.encode(alt.X("middle:Q"), bits, text="shown:N") for text in words]
    colour = model_hues(models).legend(orient="top", columns=1, labelLimit=300)
    bars = bars.encode(x, bits, colour, x2="to:Q", y2=alt.Y2Datum(0), tooltip=hover)
    return layered(bars, *words, height=320)
