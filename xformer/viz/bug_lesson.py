"""Draw how two models learn, one of them with a bug."""

from __future__ import annotations

import math

import altair as alt
import pandas as pd

from xformer.bugs.lesson import Lesson
from xformer.viz.theme import HEAD_HUES
from xformer.viz.training import Curves, curve_chart

NAMES = {"right": "right", "wrong": "with bug"}
HUES = (HEAD_HUES[0], HEAD_HUES[1])
CURVES = {
    "loss": Curves("Training loss", NAMES, HUES, "nats per token"),
    "tokens": Curves("Right on unseen inputs", NAMES, HUES, "tokens", ".1%", share=True),
    "gradient": Curves("Length of the gradient", NAMES, HUES, "‖g‖ before clipping", ".3g", can_log=True),
}


def lesson_curves(lesson: Lesson, *, what: str, dark: bool = False) -> alt.LayerChart | alt.FacetChart:
    """How two models learn side by side, one of them with a bug.

    `what` is "loss", "tokens", the share of tokens that are right on unseen inputs, or "gradient".
    """
    rows = pd.DataFrame(lesson.rows)
    frame = pd.DataFrame({side: rows.get(f"{what}_{side}", math.nan) for side in NAMES}).assign(step=rows["step"])
    return curve_chart(frame, CURVES[what], steps=lesson.steps, dark=dark, log=what == "gradient", height=260)
