"""Draw what several players say step by step, as the ruler of Compare shows it: lanes, ruler, and curves below.

viz.step_lanes(rollouts, step=3)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from xformer.analysis.generation import Rollout
from xformer.errors import InputError
from xformer.viz import theme
from xformer.viz.charts import WIDE, Sheet, mix
from xformer.viz.lane_curves import LANE, NAMES, curves, named
from xformer.viz.packing import visible
from xformer.viz.step_ruler import pack_rollouts


def step_lanes(rollouts: Sequence[Rollout], *, step: int = 0, dark: bool = False) -> alt.LayerChart | alt.FacetChart:
    """What each player says at every step, right or wrong and how likely, with the input and the right answer above it.

    Below, over the same columns: how undecided each player is (entropy, bits) and how far apart each pair is (KL, nats).
    `step` is framed; a dashed rule stands where the players part first, and grey is where they have read different tokens.
    """
    data, sheet = pack_rollouts(rollouts, k=1), Sheet(dark)
    players, labels = data["players"], [visible(label) for label in data["labels"]]
    steps = max(len(player["predicted"]) for player in players)
    if not 0 <= step < steps:
        raise InputError(f"The steps are 0 to {steps - 1}, got {step}; for example step=0.")
    has_answer = any(player["answer"] for player in players)
    columns = max(steps, len(data["reads"]) if has_answer else 0)
    cell = max(27.0, min(100.0, (WIDE - NAMES - 4) // columns))
    hues = theme.player_hues(len(players), dark)
    y = 20.0  # above stands where they part
    sheet.words(0, y + 10, "step" if data["is_decoder"] else "position", sheet.muted)
    for at in range(steps):
        sheet.words(NAMES + (at + 0.5) * cell, y + 10, str(at), sheet.muted, align="center")
    y += 20
    for name, kind, tokens in _lanes(data, labels, steps) if has_answer else ():
        named(sheet, y, name)
        for at, token in enumerate(tokens):
            sheet.chip(NAMES + at * cell, y + 2, cell, token, kind)
        y += LANE
    for player, hue in zip(players, hues, strict=True):
        named(sheet, y, player["name"], hue)
        for at, (token, share) in enumerate(zip(player["predicted"], player["probability"], strict=True)):
            is_judged = player["has_right_answer"] and at < len(player["answer"])
            kind = ("right" if player["answer"][at] == token else "wrong") if is_judged else "said"
            sheet.chip(NAMES + at * cell, y + 2, cell, labels[token], kind, hue=hue, share=share)
        y += LANE
    _ruler(sheet, y + 15, steps, step, data["divergence"], cell)
    y = curves(sheet, y + 30, data, hues, steps, cell)
    _behind(sheet, y, data, steps, step, cell)
    return sheet.chart(NAMES + columns * cell, y)


def _lanes(data: dict[str, Any], labels: list[str], steps: int) -> list[tuple[str, str, list[str]]]:
    """The input and the right answer: name, kind of token, tokens. Where players have different right ones it says ≠."""
    right = []
    for at in range(steps):
        found = {player["answer"][at] for player in data["players"] if at < len(player["answer"])}
        right.append(labels[found.pop()] if len(found) == 1 else "≠" if found else " ")
    name = "right answer" if any(player["has_right_answer"] for player in data["players"]) else "the text"
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
        sheet.words(
            x - 6 if is_late else x + 6,
            8,
            "they part here",
            sheet.ink,
            12.5,
            bold=True,
            align="right" if is_late else "left",
            level=3,
        )
