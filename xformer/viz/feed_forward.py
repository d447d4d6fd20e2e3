"""Draw neurons: maps of their activations, how many fire, which tokens they promote, and single neurons.

viz.activations(reading, layer=2)
viz.firing(reading)
viz.promotion(reading, layer=2, position=3)
viz.neuron(reading, layer=2, neuron=17)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from xformer.analysis.feed_forward import activations as activations_table
from xformer.analysis.feed_forward import activity
from xformer.analysis.feed_forward import expert_weights as weights_table
from xformer.analysis.feed_forward import neuron as neuron_table
from xformer.analysis.feed_forward import promotion as promotion_table
from xformer.analysis.neuron_survey import Survey
from xformer.analysis.neuron_survey import firing as firing_table
from xformer.analysis.neuron_survey import neurons as neurons_table
from xformer.arguments import Count, Size
from xformer.formatting import check_indices, check_option
from xformer.layer_path import layer_title
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import (
    ROWS,
    Chart,
    category_colours,
    cell_colours,
    heat_colour,
    layered,
    numbered,
    numbers,
    tooltips,
    top_title,
)
from xformer.viz.embeddings import rows_height
from xformer.viz.residual import flat_axis, with_places

ROWS_HEIGHT = 380
"""Pixels of the rows of a chart, so that it fits on a screen with its controls."""
MAX_NEURONS_DRAWN, MAX_TOKENS_DRAWN = 512, 40
"""Largest number of neurons in a map of activations, and of tokens in a map of promotions."""
PROMOTES_WIDTH = 150
"""Pixels for the promoted tokens to the right of a row."""
DWARFS = 20
"""An activation that exceeds the 99th percentile by this factor would leave no contrast to the others."""
RESTING_HUE = theme.paired("#d8bfe4", "#4b3d5b")
"""A third of the way from the background to the hue of feed-forward networks."""
FIRES, RESTS, DEAD = "fires at an average position", "fires only at other positions", "dead: never fires"


def clear_limit(values: Float[np.ndarray, "*shape"]) -> float:
    """Return the end of the colour scale of activations: the largest, or twice the 99th percentile if that is dwarfed.

    Some models have neurons that are hundreds of times stronger at their first token (Sun et al. 2024, arXiv:2402.17762).
    """
    largest = theme.signed_limit(values)
    magnitudes = np.abs(values[np.isfinite(values)])
    usual = float(np.quantile(magnitudes, 0.99)) if magnitudes.size else 0.0
    return largest if usual == 0 or largest <= DWARFS * usual else 2 * usual


def activations(
    reading: Reading,
    *,
    layer: int,
    stage: str = "post",
    order: str = "sorted",
    before: Reading | None = None,
    positions: Sequence[int] | None = None,
    columns: Sequence[int] | None = None,
    neuron: int | None = None,
    limit: Size | None = None,
    title: str = "",
) -> Chart:
    """Draw `analysis.activations` as a map, one row per position and one column per neuron.

    With `before`, the order of neurons is that of the original run, and the scale covers both runs. Ctrl + wheel zooms into a
    range of neurons, dragging moves it, and a double click resets it.

    Further arguments are those of `analysis.activations`.

    Args:
        order: "sorted" (by mean activity, see `analysis.neurons`, the most active first) or "plain" (by index).
        before: The original run, to compare with.
        columns: The ranks in that order to draw; the first `MAX_NEURONS_DRAWN` by default.
        neuron: The neuron to mark with a triangle.
        limit: The end of the colour scale; see `clear_limit` for the default.
        title: The title of the chart.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.activations(reading, layer=1)
    """
    check_option("order", order, ("sorted", "plain"))
    path = reading.feed_forward_path(layer).path
    frame = activations_table(reading, layer=layer, stage=stage, positions=positions)
    values = frame.drop(columns=["position", "token"]).to_numpy(dtype=np.float32)  # [pos, neuron]
    runs = [run for run in (before, reading) if run is not None]
    whole = np.concatenate([run[f"{path}.{stage}"][0].numpy(force=True) for run in runs])
    limit = clear_limit(whole) if limit is None else limit
    signed = stage != "post" or bool((whole < 0).any())
    ranking = ranking_of(runs[0], layer=layer, order=order)
    shown = list(range(len(ranking)))[:MAX_NEURONS_DRAWN] if columns is None else list(columns)
    check_indices("columns", shown, len(ranking))
    neurons, places = ranking[shown].tolist(), numbered(frame)
    height = min(ROWS_HEIGHT, max(150, 24 * len(places)))
    ends = [shown[0] - 0.5, shown[-1] + 0.5]
    ticks = [shown[index] for index in np.unique(np.linspace(0, len(shown) - 1, 9).round().astype(int))]
    names = {tick: f"#{ranking[tick]}" if order == "sorted" else str(tick) for tick in ticks}
    below = "neurons, most active on average first" if before is None else "neurons, in the order of the original"
    label = f"{json.dumps(names)}[datum.value]"
    axis = alt.Axis(values=ticks, labelExpr=label, labelPadding=14, ticks=False, grid=False)
    scale = alt.Scale(domain=ends, nice=False, zero=False)
    x = alt.X("left:Q", scale=scale, axis=axis, title=below if order == "sorted" else "neuron")
    low, stops = (-limit, theme.DIVERGING) if signed else (0.0, theme.SEQUENTIAL)
    legend = alt.Legend(title="activation", format=".2~f", gradientLength=min(200, height - 20))
    colour = heat_colour("activation:Q", stops, low, limit, legend=legend)
    beside = alt.Axis(labelOverlap=True, grid=False, labelFlush=False)
    y = alt.Y("place:N", sort=places, title="position · token", axis=beside)
    hover = tooltips(("neuron:Q", "", "d"), ("place:N", "position"), ("activation:Q", "", ".5f"))
    # The wheel alone scrolls the page; a pinch on a touch pad is reported as Ctrl + wheel.
    zoom = alt.selection_interval(name="zoom", bind="scales", encodings=["x"], zoom="wheel![event.ctrlKey]")
    # One row per position, flattened in the browser, so that labels are sent only once. Its numbers are one string, because
    # Streamlit sends tables as Arrow, from which Vega cannot read lists.
    rows = [
        (place, " ".join(f"{value:.6g}" for value in line))
        for place, line in zip(places, values[:, neurons], strict=True)
    ]
    cells = (
        alt.Chart(pd.DataFrame(rows, columns=["place", "activations"]))
        .transform_calculate(activations="split(datum.activations, ' ')", columns=f"sequence({len(neurons)})")
        .transform_flatten(["activations", "columns"], ["activation", "column"])
        .transform_calculate(
            activation="toNumber(datum.activation)",
            neuron=f"{neurons}[datum.column]",
            left=f"{shown}[datum.column] - 0.5",
            right="datum.left + 1",
        )
        .mark_rect(strokeWidth=0)
        .encode(x, alt.X2("right:Q"), y, colour, tooltip=hover)
        .add_params(zoom)
    )
    marked = [place for place, index in zip(shown, neurons, strict=True) if index == neuron]
    hue = theme.PART_HUES["feed_forward"]
    mark = alt.Chart(pd.DataFrame({"left": marked}))
    mark = mark.mark_text(text="▲", fontSize=13, color=hue, baseline="top", dy=2, clip=False)  # below the zoomed rows
    layers = [cells, *([mark.encode(x, y=alt.value("height"))] if marked else [])]
    fast = {"embedOptions": {"renderer": "canvas"}}  # faster for ten thousand cells, on an HTML page
    return layered(*layers, height=height, autosize=ROWS, usermeta=fast, **top_title(title))


def ranking_of(reading: Reading, *, layer: int, order: str = "sorted") -> Int[np.ndarray, " neuron"]:
    """Return the neurons of a layer in the order of the columns of `activations`."""
    values = activity(reading, layer=layer).numpy(force=True)  # [pos, neuron]
    return np.argsort(-values.mean(axis=0), kind="stable") if order == "sorted" else np.arange(values.shape[1])


def firing(of: Reading | Survey, *, before: Reading | None = None) -> Chart:
    """Draw `analysis.firing`: a bar for each layer, divided into active, inactive and dead neurons.

    Further arguments are those of `analysis.firing`.

    Args:
        before: The original run, to compare with.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.firing(reading)
    """
    runs = {"": of} if before is None else {"original": before, "changed": of}
    tables = [firing_table(run).assign(run=name) for name, run in runs.items()]
    is_encoder_decoder = of.adapter.shape.is_encoder_decoder
    rows = []
    for row in (row for same in zip(*(table.to_dict("records") for table in tables), strict=True) for row in same):
        where = f"{layer_title(row['layer'], is_encoder_decoder=is_encoder_decoder)} · {row['run'] or row['over']}"
        shares = {FIRES: row["share_at_once"], RESTS: row["share_ever"] - row["share_at_once"], DEAD: row["share_dead"]}
        known = {"where": where, "dead": row["dead"], "of": row["neurons"]}
        for order, (state, share) in enumerate(shares.items()):
            rows.append({**known, "state": state, "share": share, "order": order})
    data = pd.DataFrame(rows)
    sort = list(dict.fromkeys(data["where"]))
    ink, paper = theme.TEXT, theme.BACKGROUND
    strong = theme.PART_HUES["feed_forward"]
    legend = alt.Legend(title=None, orient="top", labelLimit=320)
    colour = category_colours("state:N", [FIRES, RESTS, DEAD], [strong, RESTING_HUE, ink], legend=legend)
    scale, axis = alt.Scale(domain=[0, 1]), alt.Axis(format="%")
    x = alt.X("share:Q", scale=scale, title="share of the layer's neurons", axis=axis)
    y = alt.Y("where:N", sort=sort, title=None, axis=alt.Axis(labelLimit=320, labelOverlap=False))
    hover = tooltips("where:N", "state:N", ("share:Q", "", ".3%"), "dead:Q", ("of:Q", "neurons"))
    bars = alt.Chart(data).mark_bar(stroke=paper).encode(x, y, colour, alt.Order("order:Q"), tooltip=hover)
    counts = data[data["order"] == 2].assign(text=lambda d: [f"{dead} dead" for dead in d["dead"]])
    names = alt.Chart(counts).mark_text(align="left", dx=6, fontSize=12, color=ink)
    height = max(16, min(30, ROWS_HEIGHT // len(sort))) * len(sort)
    padding = {"left": 12, "right": 5, "top": 5, "bottom": 5}
    return layered(bars, names.encode(alt.XDatum(1.0), y, text="text:N"), height=height, autosize=ROWS, padding=padding)


def trigger_words(trigger: str, on: Sequence[str | int]) -> str:
    """Describe what a neuron of `analysis.triggers` fires on."""
    if trigger == "none":
        return "no clear trigger"
    *first, last = map(str, on)
    values = f"{', '.join(first)} or {last}" if first else last
    if trigger == "from_end":
        return "fires at the last position" if values == "0" else f"fires {values} before the end"
    return {"reads": "fires on ", "says": "fires to say ", "position": "fires at position "}[trigger] + values


def neurons(
    reading: Reading,
    *,
    layer: int,
    n: Count = 14,
    distinct: bool = True,
    survey: Survey | None = None,
    positions: Sequence[int] | None = None,
    title: str = "",
) -> Chart:
    """Draw `analysis.neurons`: one row per neuron, named by its trigger, one column per position, and the promoted tokens.

    Each row has its own colour scale, up to its largest activation. Clicking a row selects its `neuron`.

    Further arguments are those of `analysis.neurons`.

    Args:
        positions: The positions, from 0; all of them by default.
        title: The title of the chart.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.neurons(reading, layer=3, survey=xformer.analysis.survey("checkpoints/reverse", 50))
    """
    table = neurons_table(reading, layer=layer, n=n, distinct=distinct, survey=survey)
    table = table.sort_values(["peak", "activity"], ascending=[True, False], kind="stable")
    rows = [f"{trigger_words(row['trigger'], row['on'])} · #{row['neuron']}" for row in table.to_dict("records")]
    cells = activations_table(reading, layer=layer, positions=positions)
    places = numbered(cells)
    values = cells[table["neuron"].tolist()].to_numpy(dtype=np.float64)  # [pos, neuron]
    share = values / np.maximum(np.abs(values).max(axis=0), 1e-12)  # of the largest activation of its row
    low, stops = (-1.0, theme.DIVERGING) if (values < 0).any() else (0.0, theme.SEQUENTIAL)
    wide = len(places) <= 12
    data = {
        "neuron": np.tile(table["neuron"].to_numpy(), len(places)),
        "name": rows * len(places),
        "place": np.repeat(np.array(places, dtype=object), len(rows)),
        "activation": values.flatten(),
        "shown": [f"{value:.1f}" if abs(value) >= 0.05 else "" for value in values.flatten()],
        "share": share.flatten(),
        "cell_colour": cell_colours(stops, share.flatten(), low, 1.0),
    }
    look: dict[str, Any] = {"ticks": False, "labelFlush": False}
    axis = alt.Axis(orient="top", labelAngle=0 if wide else -90, labelOverlap=True, **look)
    x = alt.X("place:N", sort=places, title=None, axis=axis)
    y = alt.Y("name:N", sort=rows, title=None, axis=alt.Axis(labelLimit=280, labelOverlap=False, **look))
    click = alt.selection_point(name="cell", fields=["neuron"], on="click")
    colour = heat_colour("share:Q", stops, low, 1.0, legend=None)
    hover = tooltips("name:N", ("place:N", "position"), ("activation:Q", "", ".4f"))
    base = alt.Chart(pd.DataFrame(data)).encode(x, y)
    paper, ink = theme.BACKGROUND, theme.TEXT
    cells = base.mark_rect(stroke=paper, cursor="pointer").encode(colour, tooltip=hover).add_params(click)
    layers = [cells, *numbers(base, "shown:N", shown=wide)]
    if "promotes" in table:
        promoted = alt.Chart(
            pd.DataFrame({"name": rows, "promotes": [f"→ {text}" if text else "" for text in table["promotes"]]})
        )
        look = {"align": "left", "dx": 8, "fontSize": 12, "color": ink, "limit": PROMOTES_WIDTH - 12}
        layers.append(promoted.mark_text(**look).encode(y, x=alt.value("width"), text="promotes:N"))
    padding = {"left": 5, "right": PROMOTES_WIDTH if "promotes" in table else 5, "top": 5, "bottom": 5}
    height = (28 if wide else 26) * len(rows)
    return layered(*layers, height=height, autosize=ROWS, padding=padding, **top_title(title))


def promotion(
    reading: Reading, *, layer: int, position: int, n: Count = 10, only: Sequence[int] | None = None
) -> Chart:
    """Draw `analysis.promotion`: what each of the most active neurons adds to the logits, one column per token.

    The most promoted token of each row is written out. Of larger vocabularies, the `MAX_TOKENS_DRAWN` tokens are shown whose
    logits change most.

    The arguments are those of `analysis.promotion`.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.promotion(reading, layer=3, position=0, n=6)
    """
    data = promotion_table(reading, layer=layer, position=position, n=n, only=only)
    limit = theme.signed_limit(data["adds"].to_numpy())
    n_tokens = len(data) // len(set(data["neuron"].tolist()))
    labels = data["token"].tolist()[:n_tokens]
    if n_tokens > MAX_TOKENS_DRAWN:
        effect = data["adds"].abs().to_numpy().reshape(-1, n_tokens)  # [neuron, vocab]
        kept = np.sort(np.argsort(-effect.max(axis=0), kind="stable")[:MAX_TOKENS_DRAWN])
        labels = [labels[token] for token in kept]
        data = data.iloc[[row for row in range(len(data)) if row % effect.shape[1] in set(kept)]]
    data = data.assign(neuron=[f"#{neuron}" for neuron in data["neuron"]])
    names = list(dict.fromkeys(data["neuron"]))
    best = data.loc[data.groupby("neuron", sort=False)["adds"].idxmax()]
    hover = tooltips("neuron:N", "token:N", ("adds:Q", "contribution to the logit", "+.5f"))
    x = alt.X("token:N", sort=labels, title="token", axis=alt.Axis(labelAngle=-90, labelOverlap=True))
    y = alt.Y("neuron:N", sort=names, title=None, axis=alt.Axis(labelOverlap=False))
    legend = alt.Legend(title="contribution to the logit", orient="top", gradientLength=160, format="+.2~f")
    colour = heat_colour("adds:Q", theme.DIVERGING, -limit, limit, legend=legend)
    best = best.assign(cell_colour=cell_colours(theme.DIVERGING, best["adds"], -limit, limit))
    cells, top = (alt.Chart(table).encode(x, y, tooltip=hover) for table in (data, best))
    cells = cells.mark_rect().encode(colour)
    return layered(cells, *numbers(top, "token:N", size=12, fontWeight="bold"), height=28 * len(names), autosize=ROWS)


def neuron(
    reading: Reading, *, layer: int, neuron: int, before: Reading | None = None, positions: Sequence[int] | None = None
) -> alt.Chart:
    """Draw `analysis.neuron` as one bar per position; with `before`, both runs side by side.

    Further arguments are those of `analysis.neuron`.

    Args:
        before: The original run, to compare with.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.neuron(reading, layer=1, neuron=7)
    """
    runs = {"this run": reading} if before is None else {"original": before, "changed": reading}
    selection = {"layer": layer, "neuron": neuron, "positions": positions}
    tables = [neuron_table(run, **selection).assign(run=name) for name, run in runs.items()]
    places, two = numbered(tables[-1]), len(runs) > 1
    data = pd.concat([table.assign(place=places) for table in tables])
    colours = [theme.PART_HUES["feed_forward"], theme.HEAD_HUES[1]]
    legend = alt.Legend(title=None, orient="top") if two else None
    axis = alt.Axis(labelAngle=0 if len(places) <= 8 else -90, labelOverlap=True)
    chart = alt.Chart(data).mark_bar().encode(
        alt.X("place:N", sort=places, title="position · token", axis=axis),
        alt.Y("activation:Q", title="activation"),
        category_colours("run:N", list(runs), colours[: len(runs)], legend=legend),
        tooltip=tooltips("place:N", "run:N", ("activation:Q", "", ".5f")),
    )  # fmt: skip
    return (chart.encode(xOffset=alt.XOffset("run:N", sort=list(runs))) if two else chart).properties(height=300)


def expert_weights(reading: Reading, *, layer: int, title: str = "") -> Chart:
    """Draw the routing weights of the experts, one row per expert and one column per position; unselected experts are blank.

    Further arguments are those of `analysis.expert_weights`.

    Args:
        title: The title of the chart.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> from transformers import MixtralConfig, MixtralForCausalLM
        >>> sizes = dict(hidden_size=32, intermediate_size=16, num_attention_heads=4, num_key_value_heads=2)
        >>> model = MixtralForCausalLM(MixtralConfig(vocab_size=99, num_hidden_layers=2, num_local_experts=4, **sizes))
        >>> reading = xformer.read(model, [5, 6, 7])
        >>> chart = xformer.viz.expert_weights(reading, layer=1)
    """
    table = weights_table(reading, layer=layer)
    table, places = with_places(table, reading.tokens_of(reading.feed_forward_path(layer).stack))
    n_experts = max(table["expert"].tolist()) + 1
    colour = heat_colour("weight:Q", theme.SEQUENTIAL, 0, max(1.0, *table["weight"].tolist()), title="weight")
    base = alt.Chart(table).encode(
        alt.X("place:N", sort=places, title="position · input token", axis=flat_axis(len(places))),
        alt.Y("expert:O", title="expert", axis=alt.Axis(labelOverlap=True)),
        tooltip=tooltips(("place:N", "position"), "expert:O", ("weight:Q", "", ".4f")),
    )
    every, taken = base.mark_rect(opacity=0), base.transform_filter("datum.weight != 0").mark_rect()
    height = rows_height(n_experts, most=600)
    return layered(every, taken.encode(color=colour), height=height, autosize=ROWS, **top_title(title))
