"""Draw rollouts side by side: the likeliest tokens at a step, and how sure, right and far apart the players are at every step.

    viz.likeliest_tokens(rollouts, 3)
    viz.predictions_by_step(rollouts, "entropy")
    viz.divergence_by_step(rollouts, "kl")

Players keep their order and their hue in every chart. Where players agree their lines lie on one another, so the first is
drawn widest and the last thinnest: all of them stay visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import altair as alt
import pandas as pd

from xformer.analysis.generation import Rollout, first_divergence
from xformer.analysis.generation import divergence_by_step as divergence_table
from xformer.analysis.generation import likeliest_tokens as tokens_table
from xformer.analysis.generation import predictions_by_step as predictions_table
from xformer.viz import theme
from xformer.viz.charts import layered

SAYS = "◀ says"
LEAST = 0.001
"""A token that nobody finds likelier than this has no bars, unless it is right or said."""
WIDTHS = (9.0, 5.5, 3.0, 1.5)
_SIZES = (260, 160, 90, 45)
_LINE = 30
"""Pixels of a line of a legend, which has two entries per line."""
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
    rollouts: Sequence[Rollout], step: int, k: int = 5, *, drawn: bool = False, title: str = "", dark: bool = False
) -> Drawing:
    """Bars of the tokens at one step, all players on one scale from 0 to 1.

    The right token carries ✓, and each player's own choice is pointed at. `drawn` shows what was drawn from, after
    temperature and the like, instead of what the model believes.
    """
    frame = tokens_table(rollouts, step, k)
    players = list(dict.fromkeys(frame["player"]))
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
        alt.YOffset("player:N", sort=players),
        tooltip=[
            alt.Tooltip("player:N"),
            alt.Tooltip("token:N"),
            alt.Tooltip("verdict:N", title="which is"),
            alt.Tooltip("probability:Q", title="model's probability", format=".6f"),
            alt.Tooltip("drawn:Q", title="chance to be drawn", format=".6f"),
            alt.Tooltip("predicted:N", title="said"),
        ],
    )
    bars = base.mark_bar().encode(player_hues(players, dark))
    text = base.mark_text(align="left", dx=4, fontSize=12, color=theme.pick(theme.TEXT, dark)).encode(
        text=alt.Text("shown:N")
    )
    return layered(
        bars, text, height=(10 + 17 * len(players)) * len(order) + 70 + _LINE * (len(players) + 1) // 2, title=title
    )


def predictions_by_step(
    rollouts: Sequence[Rollout],
    what: Literal["probability", "answer_probability", "drawn", "entropy"] = "probability",
    *,
    height: int = 290,
    dark: bool = False,
) -> Drawing:
    """One line per player; each point is right (●) or wrong (✚).

    A rule marks where they part first; steps are grey where the players no longer read the same.
    """
    frame = predictions_table(rollouts)
    players = list(dict.fromkeys(frame["player"]))
    places = _step_labels(frame)
    data = frame.assign(
        place=[places[step] for step in frame["step"].tolist()],
        verdict=[theme.RIGHT.word if right else theme.WRONG.word for right in frame["right"]],
        context=["the same" if same else "something else" for same in frame["same_context"]],
        width=[WIDTHS[players.index(name) % len(WIDTHS)] for name in frame["player"]],
        size=[_SIZES[players.index(name) % len(_SIZES)] for name in frame["player"]],
    )
    top = 1.0 if what != "entropy" else max(0.1, 1.05 * max(frame[what].tolist()))
    base = alt.Chart(data).encode(
        _steps(places, f"step · right token   (● {theme.RIGHT.word}, ✚ {theme.WRONG.word})"),
        alt.Y(f"{what}:Q", title=STEPS[what], scale=alt.Scale(domain=[0, top])),
    )
    hover = [
        alt.Tooltip("step:O"),
        alt.Tooltip("player:N"),
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
        *_backdrop(frame, places, first_divergence(rollouts), dark),
        base.mark_line(opacity=0.9).encode(player_hues(players, dark), width),
        points.encode(player_hues(players, dark), shape, alt.Size("size:Q", scale=None, legend=None), tooltip=hover),
        height=height + _LINE * (len(players) + 1) // 2,
    )


def divergence_by_step(
    rollouts: Sequence[Rollout],
    what: Literal["kl", "kl_back", "total_variation"] = "kl",
    *,
    height: int = 290,
    dark: bool = False,
) -> Drawing:
    """How far apart the beliefs of each pair are at every step. An infinite divergence leaves a gap."""
    frame = divergence_table(rollouts)
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
        alt.Tooltip("step:O"),
        alt.Tooltip("pair:N", title="first | second"),
        *(alt.Tooltip(f"{name}:Q", title=said, format=".6~g") for name, said in PAIRS.items()),
        alt.Tooltip("tokens:N", title="say"),
        alt.Tooltip("context:N", title="have read"),
    ]
    dash = alt.StrokeDash("pair:N", scale=alt.Scale(domain=pairs, range=list(_DASHES)), **look)
    return layered(
        *_backdrop(frame, places, first_divergence(rollouts), dark),
        base.mark_line(strokeWidth=2.5).encode(dash),
        base.mark_point(size=80, filled=True, opacity=1).encode(tooltip=hover),
        height=height + _LINE * (1 + (len(pairs) + 1) // 2),
    )


def _step_labels(frame: pd.DataFrame) -> dict[int, str]:
    """Each step with its right token, "3 · 12"; without it where the players' right answers differ."""
    answers: dict[int, set[str]] = {}
    for step, answer in zip(frame["step"].tolist(), frame["answer"].tolist(), strict=True):
        answers.setdefault(step, set()).add(answer)
    return {step: " · ".join([str(step), *(found if len(found) == 1 else ())]) for step, found in answers.items()}


def player_hues(players: Sequence[str], dark: bool) -> alt.Color:
    """The hue of each player, the same in every chart that is given them in the same order."""
    return alt.Color(
        "player:N",
        sort=list(players),
        title=None,
        legend=alt.Legend(orient="top", columns=2, symbolOpacity=1, labelLimit=180),
        scale=alt.Scale(domain=list(players), range=theme.player_hues(len(players), dark)),
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
        here = alt.Chart(pd.DataFrame({"place": [places[divergence]], "note": ["they part here"]})).encode(x)
        text = here.mark_text(
            color=ink, fontSize=12, fontWeight="bold", baseline="bottom", align="right" if late else "left"
        )
        layers += [
            here.mark_rule(color=ink, strokeDash=[5, 3], strokeWidth=1.5),
            text.encode(y=alt.value(-4), text=alt.Text("note:N")),
        ]
    return layers
