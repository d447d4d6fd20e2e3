"""Draw what several models generate, step by step: tokens, probabilities, entropy and divergence.

Models keep their order and hue in every chart. The first model's line is widest and the last one's thinnest, so that lines
that coincide stay visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Literal

import altair as alt
import pandas as pd

from xformer.analysis.comparison import joint_labels
from xformer.analysis.generation import DecodedSteps, first_divergence
from xformer.analysis.generation import divergence_by_step as divergence_table
from xformer.analysis.generation import likeliest_tokens as tokens_table
from xformer.analysis.generation import next_tokens as next_table
from xformer.analysis.generation import predictions_by_step as predictions_table
from xformer.analysis.generation import steering_by_scale as steering_table
from xformer.arguments import Count
from xformer.errors import InputError
from xformer.formatting import check_option, percent
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import ROWS, Chart, category_colours, layered, token_lanes, tooltips
from xformer.viz.packing import visible

SAYS = "◀ predicted"
LEAST = 0.001
"""Tokens below this probability in all models have no bars, unless they are right or predicted."""
WIDTHS = (9.0, 5.5, 3.0, 1.5)
_SIZES = (260, 160, 90, 45)
_LINE = 30
"""Pixels of a line of a legend, which holds two entries."""
_DASHES: tuple[list[int], ...] = ([1, 0], [8, 3], [3, 3], [8, 3, 2, 3], [2, 2], [12, 4])
STEPS = {
    "probability": "probability of the predicted token", "answer_probability": "probability of the right token",
    "drawn": "sampling probability of the predicted token", "entropy": "entropy (bits)",
}  # fmt: skip
DRAWN = ("drawn:Q", "sampling probability", ".6f")
RIGHT_SHARE = ("answer_probability:Q", "probability of the answer", ".6f")
"""The tooltip line that follows the right token."""
DIVERGENCES = {"kl": "KL(first ‖ second), nats", "kl_back": "KL(second ‖ first), nats"}
PAIRS = {**DIVERGENCES, "total_variation": "total variation"}


def likeliest_tokens(runs: Sequence[DecodedSteps], step: int, k: Count = 5, *, drawn: bool = False) -> Chart:
    """Draw the probabilities of the likeliest tokens at one step as bars, all models on one scale from 0 to 1.

    ✓ marks the right token, and ◀ the token that each model predicted.

    Further arguments are those of `analysis.likeliest_tokens`.

    Args:
        drawn: Whether to draw the sampling distribution (after temperature and truncation) instead of the model's own.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> chart = xformer.viz.likeliest_tokens(runs, 1)
    """
    frame: Any = tokens_table(runs, step, k)
    models = list(dict.fromkeys(frame["model"]))
    what = "drawn" if drawn else "probability"
    right = set(frame.loc[frame["right"].eq(True), "token"])
    kept = right | set(frame.loc[frame["predicted"] | (frame[what] >= LEAST), "token"])
    data = frame[frame["token"].isin(kept)]
    data = data.assign(
        place=[f"{token} {theme.RIGHT.mark}" if token in right else token for token in data["token"]],
        shown=[_shown(p, is_predicted) for p, is_predicted in zip(data[what], data["predicted"], strict=True)],
        verdict=verdicts(data["right"]),
    )
    order = list(dict.fromkeys(data["place"]))
    # The space beyond 1 is for the text.
    scale, axis = alt.Scale(domain=[0, 1.3]), alt.Axis(values=[0, 0.5, 1], format=".1f")
    hover = tooltips("model:N", "token:N", ("verdict:N", "token is"), ("probability:Q", "model's probability", ".6f"))
    hover += tooltips(DRAWN, ("predicted:N", "predicted"))
    base = alt.Chart(data).encode(
        alt.X(f"{what}:Q", title="sampling probability" if drawn else "probability", scale=scale, axis=axis),
        alt.Y("place:N", sort=order, title=f"token ({theme.RIGHT.mark} right)", axis=alt.Axis(labelFontSize=14)),
        alt.YOffset("model:N", sort=models),
        tooltip=hover,
    )
    bars = base.mark_bar().encode(model_hues(models))
    text = base.mark_text(align="left", dx=4, fontSize=12, color=theme.TEXT).encode(text="shown:N")
    return layered(bars, text, height=(10 + 17 * len(models)) * len(order), autosize=ROWS)


def next_tokens(reading: Reading, *, temperature: float = 1.0, k: Count = 10, before: Reading | None = None) -> Chart:
    """Draw the likeliest tokens after a text as bars from 0 to 1, those of the run `before` as outlines.

    Further arguments are those of `analysis.next_tokens`.

    Args:
        before: The original run, to compare with.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> story = xformer.read("checkpoints/characters", "To be")
        >>> chart = xformer.viz.next_tokens(story)
    """
    table = next_table(reading, temperature=temperature, k=k)
    data = table.assign(
        place=[f"{rank}  {visible(token)}" for rank, token in zip(table["rank"], table["token"], strict=True)]
    )
    data["shown"] = [percent(p, 1) for p in data["probability"]]
    if before is not None:
        known = next_table(before, temperature=temperature, k=before.logits.shape[-1]).set_index("id")["probability"]
        data["before"] = known.loc[data["id"]].to_numpy()
    base = alt.Chart(data).encode(
        alt.X(
            "probability:Q",
            title="probability",
            scale=alt.Scale(domain=[0, 1.1]),
            axis=alt.Axis(values=[0, 0.5, 1], format=".0%"),
        ),
        alt.Y("place:N", sort=None, title=None, axis=alt.Axis(labelFontSize=14, labelLimit=260)),
        tooltip=tooltips(
            "token:N",
            ("probability:Q", "", ".6f"),
            ("logit:Q", "", ".3f"),
            *[("before:Q", "original", ".6f")][: before is not None],
        ),
    )
    layers = [
        base.mark_bar(color=theme.PRIMARY),
        base.mark_text(align="left", dx=4, fontSize=12, color=theme.TEXT).encode(text="shown:N"),
    ]
    if before is not None:
        layers.append(base.mark_bar(filled=False, stroke=theme.TEXT, strokeWidth=1.5).encode(alt.X("before:Q")))
    return layered(*layers, height=22 * len(data), autosize=ROWS)


def verdicts(right: Sequence[bool | None]) -> list[str]:
    """Return the word for each prediction, right or wrong."""
    return [theme.RIGHT.word if is_right else theme.WRONG.word for is_right in right]


def predictions_by_step(
    runs: Sequence[DecodedSteps],
    what: Literal["probability", "answer_probability", "drawn", "entropy"] = "probability",
    *,
    height: Count = 290,
) -> Chart:
    """Draw a quantity of `analysis.predictions_by_step`, one line per model; points are right (●) or wrong (✚).

    A rule marks the first difference between the models; steps are grey where their contexts differ.

    Further arguments are those of `analysis.predictions_by_step`.

    Args:
        what: "probability", "answer_probability", "drawn" or "entropy".
        height: The height of the chart, in pixels.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> chart = xformer.viz.predictions_by_step(runs)
    """
    check_option("what", what, STEPS)
    frame: Any = predictions_table(runs)
    models = list(dict.fromkeys(frame["model"]))
    places = _step_labels(frame)
    data = frame.assign(
        place=frame["step"].map(places),
        verdict=verdicts(frame["right"]),
        context=frame["same_context"].map({True: "the same", False: "different"}),
        width=[WIDTHS[models.index(name) % len(WIDTHS)] for name in frame["model"]],
        size=[_SIZES[models.index(name) % len(_SIZES)] for name in frame["model"]],
    )
    top = 1.0 if what != "entropy" else max(0.1, 1.05 * max(frame[what].tolist()))
    base = alt.Chart(data).encode(
        _steps(places, f"step · right token   (● {theme.RIGHT.word}, ✚ {theme.WRONG.word})"),
        alt.Y(f"{what}:Q", title=STEPS[what], scale=alt.Scale(domain=[0, top])),
    )
    hover = tooltips("step:O", "model:N", ("token:N", "predicted token"), ("verdict:N", "prediction is"))
    hover += tooltips(("probability:Q", "predicted with probability", ".6f"), DRAWN)
    hover += tooltips(("answer:N", "right token"), RIGHT_SHARE)
    hover += tooltips(("entropy:Q", "entropy (bits)", ".6f"), ("context:N", "context of the models"))
    shapes = alt.Scale(domain=[theme.RIGHT.word, theme.WRONG.word], range=[theme.RIGHT.vega, theme.WRONG.vega])
    shape = alt.Shape("verdict:N", legend=None, scale=shapes)
    points = base.mark_point(filled=True, opacity=1, strokeWidth=1, stroke=theme.BACKGROUND)
    return layered(
        *_backdrop(frame, places, first_divergence(runs)),
        base.mark_line(opacity=0.9).encode(model_hues(models), alt.StrokeWidth("width:Q", scale=None, legend=None)),
        points.encode(model_hues(models), shape, alt.Size("size:Q", scale=None, legend=None), tooltip=hover),
        height=height + _LINE * (len(models) + 1) // 2,
    )


def divergence_by_step(
    runs: Sequence[DecodedSteps], what: Literal["kl", "kl_back", "total_variation"] = "kl", *, height: Count = 290
) -> Chart:
    """Draw the divergence between the predictions of each pair of models at every step; infinite values leave a gap.

    Further arguments are those of `analysis.divergence_by_step`.

    Args:
        what: "kl", "kl_back" or "total_variation".
        height: The height of the chart, in pixels.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> chart = xformer.viz.divergence_by_step(runs)
    """
    check_option("what", what, PAIRS)
    frame: Any = divergence_table(runs)
    pairs = list(dict.fromkeys(frame["pair"]))
    places = {step: str(step) for step in sorted(set(frame["step"].tolist()))}
    data = frame.assign(
        place=frame["step"].map(places),
        shown=frame[what].where(frame[what] < float("inf")),
        tokens=frame["same_token"].map({True: "the same token", False: "different tokens"}),
        context=frame["same_context"].map({True: "the same", False: "different"}),
    )
    is_bounded = what == "total_variation"
    limit = 180 if len(pairs) > 1 else 400
    legend = alt.Legend(orient="top", columns=2, labelLimit=limit, symbolType="stroke", symbolSize=500)
    look = {"sort": pairs, "title": "first | second", "legend": legend}
    base = alt.Chart(data).encode(
        _steps(places, "step"),
        alt.Y("shown:Q", title=PAIRS[what], scale=alt.Scale(domain=[0, 1]) if is_bounded else alt.Scale(zero=True)),
        category_colours("pair:N", pairs, [theme.head_hue(4 + index) for index in range(len(pairs))], **look),
    )
    hover = tooltips("step:O", ("pair:N", "first | second"))
    hover += tooltips(*((f"{name}:Q", title, ".6~g") for name, title in PAIRS.items()))
    hover += tooltips(("tokens:N", "predictions"), ("context:N", "contexts"))
    dash = alt.StrokeDash("pair:N", scale=alt.Scale(domain=pairs, range=list(_DASHES)), **look)
    return layered(
        *_backdrop(frame, places, first_divergence(runs)),
        base.mark_line(strokeWidth=2.5).encode(dash),
        base.mark_point(size=80, filled=True, opacity=1).encode(tooltip=hover),
        height=height + _LINE * (1 + (len(pairs) + 1) // 2),
    )


def _step_labels(frame: Any) -> dict[int, str]:
    """Label each step with its right token, "3 · 12", or without it if the models' right answers differ."""
    answers = frame.groupby("step")["answer"].unique()
    return {step: f"{step} · {found[0]}" if len(found) == 1 else str(step) for step, found in answers.items()}


def model_hues(models: Sequence[str]) -> alt.Color:
    """Encode models as hues, the same in every chart with the same order of models."""
    legend = alt.Legend(orient="top", columns=2, symbolOpacity=1, labelLimit=180)
    return category_colours(
        "model:N", models, theme.model_hues(len(models)), sort=list(models), title=None, legend=legend
    )


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Shorten each name to its first word, "A" for "A · causal mask", if that keeps them distinct."""
    short = [name.split(" ")[0] for name in names]
    return dict(zip(names, short if len(set(short)) == len(names) else names, strict=True))


def _shown(p: float, is_predicted: bool) -> str:
    """Return the text next to a bar; empty for bars too short to be seen."""
    number = f"{p:.3f}" if p >= LEAST else "< 0.001"
    return f"{number}  {SAYS}" if is_predicted else number if p >= LEAST else ""


def _steps(places: dict[int, str], title: str) -> alt.X:
    angle = -90 if len(places) > 8 and max(map(len, places.values())) > 3 else 0
    axis = alt.Axis(labelAngle=angle, labelOverlap=True, labelFontSize=12)
    return alt.X("place:O", sort=list(places.values()), title=title, axis=axis, scale=alt.Scale(type="band"))


def _backdrop(
    frame: pd.DataFrame, places: Mapping[int, Any], divergence: int | None, column: str = "place:O"
) -> list[alt.Chart]:
    """Return the layers that shade steps with different contexts and mark the first divergence."""
    layers: list[Any] = []
    name = column.partition(":")[0]
    x = alt.X(column, sort=list(places.values()))
    others = set(frame.loc[~frame["same_context"], "step"])
    if apart := [place for step, place in places.items() if step in others]:
        grey = alt.Chart(pd.DataFrame({name: apart, "note": "the models have read different tokens"}))
        grey = grey.mark_rect(color=theme.MASKED, opacity=0.45)
        layers.append(grey.encode(x, tooltip=alt.Tooltip("note:N", title="here")))
    if divergence is not None and divergence in places:
        late = list(places).index(divergence) > len(places) / 2  # keeps the note inside the chart
        here = alt.Chart(pd.DataFrame({name: [places[divergence]], "note": ["first difference"]})).encode(x)
        look = {"color": theme.TEXT, "fontSize": 12, "fontWeight": "bold", "baseline": "bottom"}
        text = here.mark_text(align="right" if late else "left", **look).encode(y=alt.value(-4), text="note:N")
        layers += [here.mark_rule(color=theme.TEXT, strokeDash=[5, 3], strokeWidth=1.5), text]
    return layers


def step_lanes(runs: Sequence[DecodedSteps], *, step: int = 0) -> alt.VConcatChart:
    """Draw the predictions of each model at every step, with verdicts and probabilities, below the input and the right answer.

    Below, over the same columns, are the entropy of each model (bits) and the KL divergence of each pair (nats). A dashed rule
    marks the first difference between the models; steps are grey where their contexts differ.

    Args:
        runs: The answers of the variants to one input, from `decode_steps`.
        step: The step to frame, from 0.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> chart = xformer.viz.step_lanes(runs, step=1)
    """
    frame: Any = predictions_table(runs)
    steps = int(frame["step"].max()) + 1
    if not 0 <= step < steps:
        raise InputError(f"The steps are 0 to {steps - 1}, got {step}; for example step=0.")
    table = _lanes(runs, frame)
    columns = max(table["at"]) + 1
    cell = max(27.0, min(100.0, ROW // columns))
    primary, models = theme.PRIMARY, [run.name for run in runs]
    shown = alt.Chart(pd.DataFrame({"at": [step]}))
    shown = shown.mark_rect(color=primary, fillOpacity=0.17, strokeWidth=1.5, stroke=primary)
    of_models = dict(zip(models, theme.model_hues(len(models)), strict=True))
    title = "step" if any(run.variant.writes for run in runs) else "position"
    lanes = layered(
        *_backdrop(frame, {at: at for at in range(steps)}, first_divergence(runs), "at:O"),
        shown.encode(x="at:O"),
        *token_lanes(table, columns=columns, title=title, hues=of_models),
        width=cell * columns,
        height=LANE * table["lane"].nunique(),
    )
    curves = [predictions_by_step(runs, "entropy", height=TRACK)]
    if len(runs) > 1:
        curves.append(divergence_by_step(runs, height=TRACK))
    curves = [curve.properties(width=cell * steps) for curve in curves]
    return alt.vconcat(lanes, *curves).resolve_scale(color="independent", strokeDash="independent", x="independent")


def _lanes(runs: Sequence[DecodedSteps], frame: pd.DataFrame) -> pd.DataFrame:
    """Build the table for `token_lanes`: the input, the right answer (≠ if it differs), and each model's predictions."""
    predicted = frame.rename(columns={"model": "lane", "step": "at"}).assign(
        token=frame["token"].map(visible),
        kind=[{True: "right", False: "wrong"}.get(right, "plain") for right in frame["right"]],
    )
    known = frame[frame["answer"] != ""].groupby("step")["answer"]
    answers = known.agg(lambda same: "≠" if same.nunique() > 1 else same.iloc[0])
    above = []
    if len(answers):
        name = "right answer" if any(run.has_right_answer for run in runs) else "the text"
        reads = pd.Series([runs[0].labels[token] for token in runs[0].example.source])
        for lane, tokens in (("input", reads), (name, answers)):
            row = {"lane": lane, "at": tokens.index, "token": tokens.map(visible), "kind": "plain"}
            above.append(pd.DataFrame(row))
    return pd.concat([*above, predicted]).reindex(columns=["lane", "at", "token", "kind", "probability"])


ROW, LANE, TRACK = 760, 34, 100
"""CSS pixels: the width of the lanes, and the heights of a lane and of a curve."""


MAX_TOKENS = 8


def pack_steps(runs: Sequence[DecodedSteps]) -> dict[str, Any]:
    """Pack all steps of all models as plain JSON, with the likeliest tokens of each step.

    Tokens are indices into `labels`, numbers are rounded to 6 decimals, and an infinite KL is null.
    """
    steps, pairs = predictions_table(runs), divergence_table(runs)
    labels = joint_labels([run.variant for run in runs])
    place = {label: index for index, label in enumerate(labels)}
    models = []
    for run in runs:
        own = steps.loc[steps["model"] == run.name]
        tops = [run.top(step, MAX_TOKENS) for step in range(len(run))]
        model = {
            "name": run.name,
            "has_right_answer": run.has_right_answer,
            "predicted": [place[label] for label in own["token"]],
            "answer": [place[run.labels[token]] for token in run.answer],
            "answer_probability": _round(own["answer_probability"].dropna()),
            "top": [[place[run.labels[token]] for token, _ in top] for top in tops],
            "top_probability": [_round(p for _, p in top) for top in tops],
        }
        models.append(model | {column: _round(own[column]) for column in ("probability", "drawn", "entropy")})
    first = runs[0]
    return {
        "labels": list(labels),
        "reads": [first.labels[token] for token in first.example.source],
        "divergence": first_divergence(runs),
        "models": models,
        "pairs": [
            {
                "one": group["one"].iloc[0],
                "other": group["other"].iloc[0],
                "same_context": group["same_context"].tolist(),
                **{column: _round(group[column]) for column in PAIRS},
            }
            for _, group in pairs.groupby("pair", sort=False)
        ],
        **theme.in_both_themes({"hues": theme.MODEL_HUES, "pair_hues": theme.HEAD_HUES[4:]}),
        "is_sampled": any(run.variant.sampling.temperature for run in runs),
        "is_decoder": any(run.variant.writes for run in runs),
    }


def _round(values: Iterable[float]) -> list[float | None]:
    return [round(value, 6) if isfinite(value) else None for value in values]


def steering_by_scale(
    reading: Reading,
    towards: Reading,
    away: Reading,
    *,
    layer: int,
    scale: float | None = None,
    table: pd.DataFrame | None = None,
) -> Chart:
    """Draw the probabilities of the likeliest next tokens, stacked, over the steering scale.

    Further arguments are those of `analysis.steering_by_scale`.

    Args:
        scale: The scale to mark.
        table: The table of the analysis, if already computed.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/characters", "import os")
        >>> towards, away = (xformer.read("checkpoints/characters", text) for text in ("return x", "import x"))
        >>> chart = xformer.viz.steering_by_scale(reading, towards, away, layer=1, scale=1)
    """
    table = steering_table(reading, towards, away, layer=layer) if table is None else table
    tokens = list(dict.fromkeys(table["token"]))
    table = table.assign(place=[tokens.index(token) for token in table["token"]])
    colours = [*theme.head_hues(len(tokens) - 1), theme.MASKED]
    share = alt.Y("probability:Q", title="probability", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    colour = category_colours("token:N", tokens, colours, legend=alt.Legend(title="next token", labelFontSize=14))
    x = alt.X("scale:Q", title="steering scale", scale=alt.Scale(nice=False))
    hover = tooltips("token:N", "scale:Q", ("probability:Q", "", ".3f"))
    areas = alt.Chart(table).mark_area(interpolate="monotone", opacity=0.9)
    areas = areas.encode(x, share.stack("zero"), colour, alt.Order("place:Q"), tooltip=hover)
    marked = pd.DataFrame({"scale": [] if scale is None else [scale]})
    rule = alt.Chart(marked).mark_rule(strokeWidth=2.5, color=theme.TEXT).encode(x="scale:Q")
    return layered(areas, rule, height=300)
