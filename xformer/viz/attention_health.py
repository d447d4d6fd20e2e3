"""Draw the records of `AttentionHealth`: a measure as a map of heads over steps, the patterns as a timeline, and a report.

chart = health_map(health.table(), "entropy_p50")
timeline = health_timeline(record.tokens, planes, scores=scores, steps=steps)        # bytes for the training player
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import UInt8

from xformer import notebook_html
from xformer.analysis.attention_health import HEAD_MEASURES
from xformer.errors import InputError
from xformer.layer_path import LayerPath, layer_title
from xformer.viz import theme
from xformer.viz.charts import heat_colour, layered, tooltips
from xformer.viz.timeline import Frame, head_to_enlarge, pack_timeline, timeline_layers
from xformer.viz.training_curves import Curves, curve_chart

MAX_STEPS, MAX_CELLS = 60, 5_000
"""Largest number of columns and of cells of a map; more probes are thinned evenly."""
SHARES = (
    "entropy_p05", "entropy_p50", "entropy_p95", "first_token", "diagonal", "previous", "padding", "future", "induction",
    "twin_distance", "moved",
)  # fmt: skip
"""Measures between 0 and 1."""


def health_map(table: pd.DataFrame, measure: str) -> alt.LayerChart | alt.FacetChart:
    """Draw a measure of every head over the steps: one row per head, one column per probe. Unmeasured cells are grey.

    Args:
        table: From `AttentionHealth.table()` or `HealthRecord.table()`.
        measure: One of `HEAD_MEASURES`.

    Returns:
        The chart.

    Raises:
        InputError: The measure is unknown, or there is no probe yet.

    Example:
        >>> import torch, xformer
        >>> from xformer.integrations import AttentionHealth
        >>> from xformer.viz.attention_health import health_map
        >>> health = AttentionHealth(torch.tensor([[3, 7, 12, 9, 3, 7]]), every=1)
        >>> alarms = health.step(xformer.load("checkpoints/induction").model, 1)
        >>> chart = health_map(health.table(), "entropy_p50")
    """
    _check_measured(table, measure)
    steps = sorted(table["step"].unique())
    most = min(MAX_STEPS, max(1, MAX_CELLS // len(table.drop_duplicates(["layer", "head"]))))
    chosen = [steps[at] for at in np.unique(np.linspace(len(steps) - 1, 0, most).astype(int))]
    shown = table.loc[table["step"].isin(chosen), ["step", "layer", "head", measure]].copy()
    titles = _titles(shown)
    shown["name"] = [f"{titles[layer]} · {head + 1}" for layer, head in zip(shown["layer"], shown["head"], strict=True)]
    names = list(dict.fromkeys(shown["name"]))
    shown = shown.rename(columns={measure: "value"})
    low, high = _scale(shown["value"], measure)
    cells = alt.Chart(shown).mark_rect(invalid="filter")
    cells = cells.encode(
        alt.X("step:O", title="step", axis=alt.Axis(labelOverlap=True)),
        alt.Y("name:N", title="layer · head", sort=names),
        heat_colour("value:Q", theme.SEQUENTIAL, low, high, title=measure),
        tooltip=tooltips("step:Q", "name:N", ("value:Q", ".4g")),
    )
    height = min(600, max(60, 14 * len(names)))
    return layered(cells, title=f"{measure}: {HEAD_MEASURES[measure]}", width=560, height=height)


def head_map(table: pd.DataFrame, measure: str) -> alt.LayerChart | alt.FacetChart:
    """Draw a measure of every head at the last step: one row per layer, one column per head. Unmeasured cells are grey.

    Args:
        table: From `AttentionHealth.table()` or `HealthRecord.table()`.
        measure: One of `HEAD_MEASURES`.

    Returns:
        The chart.

    Raises:
        InputError: The measure is unknown, or there is no probe yet.

    Example:
        >>> import torch, xformer
        >>> from xformer.integrations import AttentionHealth
        >>> from xformer.viz.attention_health import head_map
        >>> health = AttentionHealth(torch.tensor([[3, 7, 12, 9, 3, 7]]), every=1)
        >>> alarms = health.step(xformer.load("checkpoints/induction").model, 1)
        >>> chart = head_map(health.table(), "entropy_p50")
    """
    _check_measured(table, measure)
    last = table["step"].max()
    shown = table.loc[table["step"] == last, ["layer", "head", measure]].rename(columns={measure: "value"})
    shown["head"] += 1
    titles = _titles(shown)
    shown["name"] = shown["layer"].map(titles)
    low, high = _scale(shown["value"], measure)
    cells = alt.Chart(shown).mark_rect(invalid="filter")
    cells = cells.encode(
        alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        alt.Y("name:N", title=None, sort=list(titles.values())),
        heat_colour("value:Q", theme.SEQUENTIAL, low, high, title=measure),
        tooltip=tooltips("name:N", "head:O", ("value:Q", ".4g")),
    )
    width, height = (max(60, 26 * n) for n in (shown["head"].nunique(), len(titles)))
    return layered(cells, title=f"{measure} at step {last:,}", width=width, height=height)


def _check_measured(table: pd.DataFrame, measure: str) -> None:
    if measure not in HEAD_MEASURES:
        raise InputError(f"A measure is one of {', '.join(HEAD_MEASURES)}, got {measure!r}; for example 'entropy_p50'.")
    if not len(table):
        raise InputError("There is no probe to draw yet; call health.step first.")


def _titles(table: pd.DataFrame) -> dict[str, str]:
    """The titles of the layers in a table by their paths, in its order."""
    layers = list(dict.fromkeys(table["layer"]))
    is_encoder_decoder = any(LayerPath.parse(layer).is_cross for layer in layers)
    return {layer: layer_title(layer, is_encoder_decoder=is_encoder_decoder) for layer in layers}


def _scale(values: pd.Series, measure: str) -> tuple[float, float]:
    """The ends of the colour scale: 0 and 1 for shares, else around the finite values."""
    finite = values[np.isfinite(values)]
    if measure in SHARES or not len(finite):
        return 0.0, 1.0
    low = min(0.0, float(finite.min()))
    return low, max(float(finite.max()), low + 1e-9)


Planes = Mapping[str, UInt8[np.ndarray, "head row col"]]


def health_timeline(
    tokens: Sequence[str], planes: Mapping[int, Planes], *, scores: Mapping[int, Mapping[str, Sequence[float]]], steps: int,
    marks: Sequence[tuple[int, str]] = (), live: bool = False, target: tuple[int, int | None] = (1, None),
    target_tokens: Sequence[str] = (),
) -> bytes:  # fmt: skip
    """Pack the patterns of the probe's first input over the steps, for the training player.

    Args:
        tokens: The token labels of the input.
        planes: The patterns by step and layer path; see `HealthRecord.planes`.
        scores: The induction scores of the heads by step and layer path, where known.
        steps: The length of the training run, in steps.
        marks: Annotated steps, such as alarms.
        live: Whether more frames will follow.
        target: The number of the seek command and the step to go to; see `pack_timeline`.
        target_tokens: The labels of the decoder's input, for an encoder-decoder.

    Returns:
        The packed timeline, see `xformer.viz.timeline`.

    Raises:
        InputError: There are no patterns yet, or their size does not match the tokens.
    """
    if not planes:
        raise InputError("A timeline has at least one step, got none; call health.step first.")
    first = planes[max(planes)]  # a training may add layers; frames of another structure are left out
    layers = timeline_layers(first, tuple(tokens), tuple(target_tokens))
    lanes = {"source": tokens, "decoder reads": target_tokens} if target_tokens else {"reads": tokens}
    frames = [
        Frame(step, dict(codes), {path: list(values) for path, values in scores.get(step, {}).items()}, (), (), ())
        for step, codes in sorted(planes.items())
        if {path: plane.shape for path, plane in codes.items()} == {path: plane.shape for path, plane in first.items()}
    ]
    return pack_timeline(
        layers, frames, reads=lanes, offset=0, score="induction", steps=max(steps, max(planes)), exact=(),
        marks=marks, best=head_to_enlarge(layers, frames[-1]), live=live, target=target, judged=False,
    )  # fmt: skip


@dataclass(frozen=True)
class HealthReport:
    """The alarms, the loss and the maps of one training run, displayed by a notebook; `charts` holds the figures."""

    alarms: tuple[Any, ...]
    charts: tuple[Any, ...]
    problems: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        from xformer.viz.export import svg  # only here: it needs vl-convert

        rows = [
            (one.step, one.rule, one.layer, "" if one.head is None else one.head, one.reason) for one in self.alarms
        ]
        words = notebook_html.table(("step", "alarm", "layer", "head", "reason"), rows) if rows else "<p>No alarm.</p>"
        words += "".join(f"<p>{escape(problem)}</p>" for problem in self.problems)
        drawn = "".join(f"<details open>{svg([chart])}</details>" for chart in self.charts)
        return notebook_html.card(escape(f"Attention health: {len(rows)} alarms"), words, drawn)


def report(
    alarms: Sequence[Any],
    table: pd.DataFrame,
    layers: pd.DataFrame,
    losses: pd.DataFrame,
    measures: Sequence[str] = ("entropy_p50", "score_max"),
    problems: Sequence[tuple[int, str]] = (),
) -> HealthReport:
    """Build the report that `AttentionHealth.report()` returns.

    Args:
        alarms: The alarms, in order.
        table: One row per step, layer and head.
        layers: One row per step and layer; not drawn.
        losses: One row per step, with `loss` and `probe_loss` in nats.
        measures: The measures to draw as maps.
        problems: The step and a sentence for each kind of failure to record.

    Returns:
        The report, with the loss first and a map for each measure that was recorded.
    """
    charts: list[Any] = []
    if len(losses):
        curves = Curves("Loss", {"loss": "training", "probe_loss": "probe"}, theme.HEAD_HUES[:2], "nats per token")
        steps = max(1, int(losses["step"].to_numpy().max()))
        charts.append(curve_chart(losses, curves, steps=steps).properties(width=560))
    if len(table):
        charts += [health_map(table, name) for name in measures if table[name].notna().to_numpy().any()]
    return HealthReport(tuple(alarms), tuple(charts), tuple(text for _, text in problems))
