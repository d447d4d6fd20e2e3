"""Draw what several models generate, step by step: tokens, probabilities, entropy and divergence.

Models keep their order and hue in every chart. The line of the first is widest and that of the last thinnest, so that lines
that coincide stay visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, Literal

import altair as alt
import pandas as pd

from xformer.analysis.comparison import joint_labels
from xformer.analysis.generation import DecodedSteps, first_divergence
from xformer.analysis.generation import divergence_by_step as divergence_table
from xformer.analysis.generation import likeliest_tokens as tokens_table
from xformer.analysis.generation import predictions_by_step as predictions_table
from xformer.errors import InputError
from xformer.viz import theme
from xformer.viz.charts import WIDE, Sheet, layered, mix
from xformer.viz.packing import visible
from xformer.viz.theme import HEAD_HUES, MODEL_HUES

SAYS = "◀ says"
LEAST = 0.001
"""Tokens of lower probability in all models have no bars, unless they are right or predicted."""
WIDTHS = (9.0, 5.5, 3.0, 1.5)
_SIZES = (260, 160, 90, 45)
_LINE = 30
"""Pixels of a line of a legend, which has two entries."""
_DASHES: tuple[list[int], ...] = ([1, 0], [8, 3], [3, 3], [8, 3, 2, 3], [2, 2], [12, 4])
STEPS: dict[str, str] = {
    "probability": "probability of what it says",
    "answer_probability": "probability of the right token",
    "drawn": "chance that it was drawn",
    "entropy": "entropy (bits)",
}
PAIRS: dict[str, str] = {
    "kl": "KL(first ‖ second), nats",
    "kl_back": "KL(second ‖ first), nats",
    "total_variation": "total variation",
}
Drawing = alt.LayerChart | alt.FacetChart


def likeliest_tokens(
    runs: Sequence[DecodedSteps], step: int, k: int = 5, *, drawn: bool = False, title: str = "", dark: bool = False
) -> Drawing:
    """Bars of the tokens at one step, all models on one scale from 0 to 1.

    The right token carries ✓, and each model's own choice is pointed at. `drawn` shows what was drawn from, after
    temperature and the like, instead of what the model believes.

    Args:
        runs: The answers of the variants to one input, from `decode_steps`.
        step: The step, from 0.
        k: The number of likeliest tokens.
        drawn: Draw the distribution that the token was drawn from.
        title: The title of the chart.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", changes="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> chart = xformer.viz.likeliest_tokens(runs, 1)
    """
    frame = tokens_table(runs, step, k)
    models = list(dict.fromkeys(frame["model"]))
    what = "drawn" if drawn else "probability"
    rows = frame.to_dict("records")
    right = {row["token"] for row in rows if row["right"]}
    kept = right | {row["token"] for row in rows if row["predicted"] or row[what] >= LEAST}
    data = pd.DataFrame(
        [
            row
            | {
                "place": f"{row['token']} {theme.RIGHT.mark}" if row["token"] in right else row["token"],
                "shown": _shown(row[what], row["predicted"]),
                "verdict": theme.RIGHT.word if row["right"] else theme.WRONG.word,
            }
            for row in rows
            if row["token"] in kept
        ]
    )
    order = list(dict.fromkeys(data["place"]))
    base = alt.Chart(data).encode(
        alt.X(
            f"{what}:Q",
            title="chance to be drawn" if drawn else "probability",
            scale=alt.Scale(domain=[0, 1.3]),  # beyond 1 there is room for the text
            axis=alt.Axis(values=[0, 0.5, 1], format=".1f"),
        ),
        alt.Y("place:N", sort=order, title=f"token ({theme.RIGHT.mark} right)", axis=alt.Axis(labelFontSize=14)),
        alt.YOffset("model:N", sort=models),
        tooltip=[
            "model:N",
            "token:N",
            alt.Tooltip("verdict:N", title="which is"),
            alt.Tooltip("probability:Q", title="model's probability", format=".6f"),
            alt.Tooltip("drawn:Q", title="chance to be drawn", format=".6f"),
            alt.Tooltip("predicted:N", title="predicted"),
        ],
    )
    bars = base.mark_bar().encode(model_hues(models, dark))
    text = base.mark_text(align="left", dx=4, fontSize=12, color=theme.pick(theme.TEXT, dark)).encode(text="shown:N")
    return layered(
        bars, text, height=(10 + 17 * len(models)) * len(order) + 70 + _LINE * (len(models) + 1) // 2, title=title
    )


def predictions_by_step(
    runs: Sequence[DecodedSteps],
    what: Literal["probability", "answer_probability", "drawn", "entropy"] = "probability",
    *,
    height: int = 290,
    dark: bool = False,
) -> Drawing:
    """One line per model; each point is right (●) or wrong (✚).

    A rule marks where they part first; steps are grey where the models no longer read the same.

    Args:
        runs: The answers of the variants to one input, from `decode_steps`.
        what: "probability", "answer_probability", "drawn" or "entropy".
        height: The height of the chart, in pixels.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", changes="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> chart = xformer.viz.predictions_by_step(runs)
    """
    frame = predictions_table(runs)
    models = list(dict.fromkeys(frame["model"]))
    places = _step_labels(frame)
    data = frame.assign(
        place=[places[step] for step in frame["step"].tolist()],
        verdict=[theme.RIGHT.word if right else theme.WRONG.word for right in frame["right"]],
        context=["the same" if same else "something else" for same in frame["same_context"]],
        width=[WIDTHS[models.index(name) % len(WIDTHS)] for name in frame["model"]],
        size=[_SIZES[models.index(name) % len(_SIZES)] for name in frame["model"]],
    )
    top = 1.0 if what != "entropy" else max(0.1, 1.05 * max(frame[what].tolist()))
    base = alt.Chart(data).encode(
        _steps(places, f"step · right token   (● {theme.RIGHT.word}, ✚ {theme.WRONG.word})"),
        alt.Y(f"{what}:Q", title=STEPS[what], scale=alt.Scale(domain=[0, top])),
    )
    hover = [
        "step:O",
        "model:N",
        alt.Tooltip("token:N", title="says"),
        alt.Tooltip("verdict:N", title="which is"),
        alt.Tooltip("probability:Q", title="with probability", format=".6f"),
        alt.Tooltip("drawn:Q", title="chance to be drawn", format=".6f"),
        alt.Tooltip("answer:N", title="right token"),
        alt.Tooltip("answer_probability:Q", title="probability of that", format=".6f"),
        alt.Tooltip("entropy:Q", title="entropy (bits)", format=".6f"),
        alt.Tooltip("context:N", title="read, against the others"),
    ]
    verdicts = alt.Scale(domain=[theme.RIGHT.word, theme.WRONG.word], range=[theme.RIGHT.vega, theme.WRONG.vega])
    shape = alt.Shape("verdict:N", legend=None, scale=verdicts)
    width = alt.StrokeWidth("width:Q", scale=None, legend=None)
    points = base.mark_point(filled=True, opacity=1, strokeWidth=1, stroke=theme.pick(theme.BACKGROUND, dark))
    return layered(
        *_backdrop(frame, places, first_divergence(runs), dark),
        base.mark_line(opacity=0.9).encode(model_hues(models, dark), width),
        points.encode(model_hues(models, dark), shape, alt.Size("size:Q", scale=None, legend=None), tooltip=hover),
        height=height + _LINE * (len(models) + 1) // 2,
    )


def divergence_by_step(
    runs: Sequence[DecodedSteps],
    what: Literal["kl", "kl_back", "total_variation"] = "kl",
    *,
    height: int = 290,
    dark: bool = False,
) -> Drawing:
    """How far apart the beliefs of each pair are at every step. An infinite divergence leaves a gap.

    Args:
        runs: The answers of the variants to one input, from `decode_steps`.
        what: "kl", "kl_back" or "total_variation".
        height: The height of the chart, in pixels.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", changes="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> chart = xformer.viz.divergence_by_step(runs)
    """
    frame = divergence_table(runs)
    pairs = list(dict.fromkeys(frame["pair"]))
    places = {step: str(step) for step in sorted(set(frame["step"].tolist()))}
    data = frame.assign(
        place=[places[step] for step in frame["step"].tolist()],
        shown=[None if value == float("inf") else value for value in frame[what].tolist()],
        tokens=["the same token" if same else "different tokens" for same in frame["same_token"]],
        context=["the same" if same else "different tokens" for same in frame["same_context"]],
    )
    is_bounded = what == "total_variation"
    limit = 180 if len(pairs) > 1 else 400
    legend = alt.Legend(orient="top", columns=2, labelLimit=limit, symbolType="stroke", symbolSize=500)
    look = {"sort": pairs, "title": "first | second", "legend": legend}
    hues = [theme.head_hue(4 + index, dark) for index in range(len(pairs))]
    base = alt.Chart(data).encode(
        _steps(places, "step"),
        alt.Y("shown:Q", title=PAIRS[what], scale=alt.Scale(domain=[0, 1]) if is_bounded else alt.Scale(zero=True)),
        alt.Color("pair:N", scale=alt.Scale(domain=pairs, range=hues), **look),
    )
    hover = [
        "step:O",
        alt.Tooltip("pair:N", title="first | second"),
        *(alt.Tooltip(f"{name}:Q", title=title, format=".6~g") for name, title in PAIRS.items()),
        alt.Tooltip("tokens:N", title="say"),
        alt.Tooltip("context:N", title="have read"),
    ]
    dash = alt.StrokeDash("pair:N", scale=alt.Scale(domain=pairs, range=list(_DASHES)), **look)
    return layered(
        *_backdrop(frame, places, first_divergence(runs), dark),
        base.mark_line(strokeWidth=2.5).encode(dash),
        base.mark_point(size=80, filled=True, opacity=1).encode(tooltip=hover),
        height=height + _LINE * (1 + (len(pairs) + 1) // 2),
    )


def _step_labels(frame: pd.DataFrame) -> dict[int, str]:
    """Each step with its right token, "3 · 12"; without it where the models' right answers differ."""
    answers: dict[int, set[str]] = {}
    for step, answer in zip(frame["step"].tolist(), frame["answer"].tolist(), strict=True):
        answers.setdefault(step, set()).add(answer)
    return {step: " · ".join([str(step), *(found if len(found) == 1 else ())]) for step, found in answers.items()}


def model_hues(models: Sequence[str], dark: bool) -> alt.Color:
    """The hue of each model, the same in every chart that is given them in the same order."""
    return alt.Color(
        "model:N",
        sort=list(models),
        title=None,
        legend=alt.Legend(orient="top", columns=2, symbolOpacity=1, labelLimit=180),
        scale=alt.Scale(domain=list(models), range=theme.model_hues(len(models), dark)),
    )


def short_names(names: Sequence[str]) -> dict[str, str]:
    """The first word of each name where that tells them apart, "A" of "A · causal mask"; else the whole."""
    short = [name.split(" ")[0] for name in names]
    return dict(zip(names, short if len(set(short)) == len(names) else names, strict=True))


def _shown(p: float, is_predicted: bool) -> str:
    """The number beside a bar; nothing beside one too short to be seen."""
    number = f"{p:.3f}" if p >= LEAST else "< 0.001"
    return f"{number}  {SAYS}" if is_predicted else number if p >= LEAST else ""


def _steps(places: dict[int, str], title: str) -> alt.X:
    axis = alt.Axis(
        labelAngle=-90 if len(places) > 8 and max(map(len, places.values())) > 3 else 0,
        labelOverlap=len(places) > 40,
        labelFontSize=12,
    )
    return alt.X("place:O", sort=list(places.values()), title=title, axis=axis, scale=alt.Scale(type="band"))


def _backdrop(frame: pd.DataFrame, places: dict[int, str], divergence: int | None, dark: bool) -> list[alt.Chart]:
    """Grey where contexts differ, and the rule at the first divergence."""
    layers: list[Any] = []
    x = alt.X("place:O", sort=list(places.values()))
    others = {step for step, same in zip(frame["step"], frame["same_context"], strict=True) if not same}
    if apart := [place for step, place in places.items() if step in others]:
        layers.append(
            alt.Chart(pd.DataFrame({"place": apart, "note": "they have read different tokens"}))
            .mark_rect(color=theme.pick(theme.MASKED, dark), opacity=0.45)
            .encode(x, tooltip=alt.Tooltip("note:N", title="here"))
        )
    if divergence is not None and divergence in places:
        ink = theme.pick(theme.TEXT, dark)
        late = list(places).index(divergence) > len(places) / 2  # the note stays inside the chart
        here = alt.Chart(pd.DataFrame({"place": [places[divergence]], "note": ["first difference"]})).encode(x)
        text = here.mark_text(
            color=ink, fontSize=12, fontWeight="bold", baseline="bottom", align="right" if late else "left"
        )
        layers += [
            here.mark_rule(color=ink, strokeDash=[5, 3], strokeWidth=1.5),
            text.encode(y=alt.value(-4), text="note:N"),
        ]
    return layers


def step_lanes(runs: Sequence[DecodedSteps], *, step: int = 0, dark: bool = False) -> alt.LayerChart | alt.FacetChart:
    """What each model says at every step, right or wrong and how likely, with the input and the right answer above it.

    Below, over the same columns: how undecided each model is (entropy, bits) and how far apart each pair is (KL, nats).
    `step` is framed; a dashed rule stands where the models part first, and grey is where they have read different tokens.

    Args:
        runs: The answers of the variants to one input, from `decode_steps`.
        step: The step with a frame, from 0.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", changes="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> chart = xformer.viz.step_lanes(runs, step=1)
    """
    data, sheet = pack_steps(runs, k=1), Sheet(dark)
    models, labels = data["models"], [visible(label) for label in data["labels"]]
    steps = max(len(model["predicted"]) for model in models)
    if not 0 <= step < steps:
        raise InputError(f"The steps are 0 to {steps - 1}, got {step}; for example step=0.")
    has_answer = any(model["answer"] for model in models)
    columns = max(steps, len(data["reads"]) if has_answer else 0)
    cell = max(27.0, min(100.0, (WIDE - NAMES - 4) // columns))
    hues = theme.model_hues(len(models), dark)
    y = 20.0  # above stands where they part
    sheet.words(0, y + 10, "step" if data["is_decoder"] else "position", sheet.muted)
    for at in range(steps):
        sheet.words(NAMES + (at + 0.5) * cell, y + 10, str(at), sheet.muted, align="center")
    y += 20
    for name, kind, tokens in _lanes(data, labels, steps) if has_answer else ():
        lane_name(sheet, y, name)
        for at, token in enumerate(tokens):
            sheet.chip(NAMES + at * cell, y + 2, cell, token, kind)
        y += LANE
    for model, hue in zip(models, hues, strict=True):
        lane_name(sheet, y, model["name"], hue)
        for at, (token, share) in enumerate(zip(model["predicted"], model["probability"], strict=True)):
            is_judged = model["has_right_answer"] and at < len(model["answer"])
            kind = ("right" if model["answer"][at] == token else "wrong") if is_judged else "said"
            sheet.chip(NAMES + at * cell, y + 2, cell, labels[token], kind, hue=hue, share=share)
        y += LANE
    _ruler(sheet, y + 15, steps, step, data["divergence"], cell)
    y = curves(sheet, y + 30, data, hues, steps, cell)
    _behind(sheet, y, data, steps, step, cell)
    return sheet.chart(NAMES + columns * cell, y)


def _lanes(data: dict[str, Any], labels: list[str], steps: int) -> list[tuple[str, str, list[str]]]:
    """The input and the right answer: name, kind of token, tokens. Where models have different right ones it says ≠."""
    right = []
    for at in range(steps):
        found = {model["answer"][at] for model in data["models"] if at < len(model["answer"])}
        right.append(labels[found.pop()] if len(found) == 1 else "≠" if found else " ")
    name = "right answer" if any(model["has_right_answer"] for model in data["models"]) else "the text"
    return [("input", "read", [visible(token) for token in data["reads"]]), (name, "answer", right)]


def _ruler(sheet: Sheet, y: float, steps: int, step: int, divergence: int | None, cell: float) -> None:
    places = [NAMES + (at + 0.5) * cell for at in range(steps)]
    sheet.line([(places[0], y), (places[-1], y)], sheet.rule, 3)
    for at, x in enumerate(places):
        tall, thick, ink = (9, 4, sheet.ink) if at == divergence else (4.5, 2, sheet.muted)
        sheet.line([(x, y - tall), (x, y + tall)], ink, thick, level=1)
    sheet.dot(places[step], y, 9, sheet.primary, edge=sheet.ground, level=2)


def _behind(sheet: Sheet, bottom: float, data: dict[str, Any], steps: int, step: int, cell: float) -> None:
    """The frame of the step, where they part, and where they have read different tokens."""
    firsts = [pair["same_context"].index(False) for pair in data["pairs"] if False in pair["same_context"]]
    if firsts:
        x = NAMES + min(firsts) * cell
        grey = theme.pick(theme.MASKED, sheet.dark)
        sheet.box(x, 20, (steps - min(firsts)) * cell, bottom - 20, grey, opacity=0.45, level=-2)
    frame = {"edge": sheet.primary, "thick": 1.5, "corner": 8}
    sheet.box(NAMES + step * cell, 19, cell, bottom - 20, mix(sheet.ground, sheet.primary, 0.17), level=-1, **frame)
    if (parting := data["divergence"]) is not None:
        x, is_late = NAMES + parting * cell, parting > steps / 2 and parting * cell > 120
        sheet.line([(x, 4), (x, bottom)], sheet.ink, 2, dash="5 3", level=3)
        shift, align = (-6, "right") if is_late else (6, "left")
        sheet.words(x + shift, 8, "first difference", sheet.ink, 12.5, bold=True, align=align, level=3)


NAMES, LANE, TRACK, PAD = 176, 32, 62, 8
"""CSS pixels: of the column of names, of a lane, of a curve's lane, and above and below the curve in it."""

DASHES = ("", "8 3", "3 3", "8 3 2 3", "2 2", "12 4")


def lane_name(sheet: Sheet, y: float, name: str, hue: str = "", tall: float = LANE) -> None:
    """The name of a lane, on two lines where it is long."""
    if hue:
        sheet.box(0, y + tall / 2 - 6, 12, 12, hue, corner=4)
    most, left = (24 if hue else 26), (19 if hue else 0)
    cut = name.rfind(" ", 0, most + 1) if len(name) > most else -1
    lines = [name] if cut < 0 else [name[:cut], name[cut + 1 :]]
    for number, text in enumerate(lines):
        short = text if len(text) <= most + 2 else f"{text[: most + 1]}…"
        middle = y + tall / 2 + 14 * (number - (len(lines) - 1) / 2)
        sheet.words(left, middle, short, sheet.ink, 13 if len(lines) == 1 else 12)


def curves(sheet: Sheet, y: float, data: dict[str, Any], hues: Sequence[str], steps: int, cell: float) -> float:
    """The curves; what comes back is where they end."""
    pairs = data["pairs"]
    own = [sheet.ink] if len(pairs) == 1 else [theme.pick(hue, sheet.dark) for hue in data["pair_hues"]]
    entropies = [
        (model["entropy"], hue, max(1.0, 5.5 - 1.3 * index), "")
        for index, (model, hue) in enumerate(zip(data["models"], hues, strict=True))
    ]
    apart = [(pair["kl"], own[i % len(own)], 2.5, DASHES[i % len(DASHES)]) for i, pair in enumerate(pairs)]
    for name, lines in (("entropy, bits", entropies), ("KL, nats", apart)):
        lane_name(sheet, y, name, tall=TRACK if name.startswith("e") else TRACK - 22)
        top = max(0.1, *(value for values, *_ in lines for value in values if value is not None), 0.1)
        low, high = y + TRACK - PAD, y + PAD
        for value, place in ((f"{top:.0f}" if top >= 10 else f"{top:.2g}", high), ("0", low)):
            sheet.words(NAMES - 6, place, value, sheet.muted, 11, align="right")
            sheet.line([(NAMES, place), (NAMES + steps * cell, place)], sheet.rule)
        for values, hue, thick, dash in lines:
            piece: list[tuple[float, float]] = []
            for at, value in enumerate([*values, None]):
                x = NAMES + (at + 0.5) * cell
                if value is not None:
                    piece.append((x, low - (low - high) * value / top))
                    sheet.dot(*piece[-1], thick / 2 + 1.2, hue, level=1)
                    continue
                if at < len(values):
                    sheet.words(x, high + 6, "∞", hue, 14, bold=True, align="center", level=1)
                if len(piece) > 1:
                    sheet.line(piece, hue, thick, dash=dash, level=1)
                piece = []
        y += TRACK
    for index, pair in enumerate(pairs):
        words = f"{pair['one'].split(' ')[0]}‖{pair['other'].split(' ')[0]}"
        sheet.words(28 * (index % 5), y - 22 + 13 * (index // 5), words, own[index % len(own)], bold=True)
    return y


def pack_steps(runs: Sequence[DecodedSteps], k: int = 8) -> dict[str, Any]:
    """All steps of all models as plain JSON, with the k likeliest tokens of each step.

    Tokens are indices of `labels`; numbers are rounded to 6 decimals; an infinite KL is null.
    """
    steps, pairs = predictions_table(runs), divergence_table(runs)
    labels = joint_labels([run.variant for run in runs])
    place = {label: index for index, label in enumerate(labels)}
    models = []
    for run in runs:
        own = steps.loc[steps["model"] == run.name]
        tops = [run.top(step, k) for step in range(len(run))]
        models.append(
            {
                "name": run.name,
                "has_right_answer": run.has_right_answer,
                "predicted": [place[label] for label in own["token"]],
                "answer": [place[run.labels[token]] for token in run.answer],
                "answer_probability": _round(own["answer_probability"].dropna()),
                "top": [[place[run.labels[token]] for token, _ in top] for top in tops],
                "top_probability": [_round(p for _, p in top) for top in tops],
                **{column: _round(own[column]) for column in ("probability", "drawn", "entropy")},
            }
        )
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
                **{column: _round(group[column]) for column in ("kl", "kl_back", "total_variation")},
            }
            for _, group in pairs.groupby("pair", sort=False)
        ],
        "hues": MODEL_HUES,
        "pair_hues": HEAD_HUES[4:],
        "is_sampled": any(run.variant.sampling.temperature for run in runs),
        "is_decoder": any(run.variant.writes for run in runs),
    }


def _round(values: Iterable[float]) -> list[float | None]:
    return [round(value, 6) if isfinite(value) else None for value in values]
