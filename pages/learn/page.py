"""Learn: where do I begin? The lessons in the order in which they build on each other, First principles and the Bug lab."""

from __future__ import annotations

import streamlit as st
import torch

from pages.components.elements import lesson_cards
from pages.compute import cached_runs, models
from pages.compute.cached_runs import MASKS
from pages.controls import embed
from pages.server.access import base_path
from pages.state import screens
from pages.state.link import share
from pages.state.view import OFF
from xformer.adapters.on_demand import LEVELS, MASKED
from xformer.live.lesson import Lesson, Show, shipped
from xformer.viz.theme import SEQUENTIAL, in_both_themes

ALSO = {
    "first_principles": (
        "calculate",
        "Attention built up from a plain average, on a sentence that you edit. Predict a number of each matrix, then see it "
        "computed.",
        {"predict": "1"},
    ),
    "bug_lab": (
        "bug_report",
        "A model with one mistake that people really make, next to the correct one. Find it, and name it: eight rounds, each "
        "harder than the one before.",
        {"tab": "find"},
    ),
}
"""The screens that belong to Learn, with a symbol, a sentence, and the parameters of the link."""


def page() -> None:
    st.title("Learn :small[:gray[Where do I begin?]]", anchor=False)
    with embed.picture():
        lesson_cards(
            key="lesson_cards", data={"base": base_path(), "colours": in_both_themes(SEQUENTIAL), "lessons": lessons()}
        )
    with st.container(horizontal=True, gap="small", key="also"):
        for name, (icon, sentence, link) in ALSO.items():
            with st.container(border=True, gap="xxsmall"):
                screens.link(name, f"**{screens.screens()[name].title}**", icon, **link)
                st.caption(sentence)
    share({})


def lessons() -> list[dict[str, object]]:
    """Return the shipped lessons for the browser, which adds the visitor's progress."""
    return [
        {
            "name": name,
            "title": lesson.title,
            "summary": lesson.summary,
            "minutes": lesson.minutes,
            "steps": len(lesson.steps),
            "exercises": lesson.exercise_steps,
            "heads": heads_of(lesson),
        }
        for name, lesson in shipped().items()
    ]


def heads_of(lesson: Lesson) -> list[list[list[list[int]]]]:
    """Return what every head of the lesson's model does with its input, under the mask and the positions that it shows last.

    Returns:
        The weights in codes from 0 to 253, [layer, head, query, key]; 255 is a masked cell.
    """
    name = lesson.checkpoint or lesson.preset
    if name not in models.shipped():
        return []
    state = [part.state for step in lesson.steps for part in step.parts if isinstance(part, Show)][-1]
    mask = state.get("mask")
    source = models.adapter(name).input.read(lesson.input)
    run = cached_runs.run(
        name, source, mask if mask in MASKS else MASKS[0], "" if state.get("positions", True) else OFF
    )
    layers = [(run[f"{site.path}.pattern"][0], run[f"{site.path}.mask"][0]) for site in run.attention]
    return [torch.where(mask, (pattern * LEVELS).round(), float(MASKED)).int().tolist() for pattern, mask in layers]


page()
