"""Learn: where do I begin? The lessons in the order in which they build on each other, First principles and the Bug lab."""

from __future__ import annotations

import streamlit as st

from pages.components.elements import lesson_cards
from pages.controls import embed
from pages.server.access import base_path
from pages.state import screens
from pages.state.link import share
from xformer.live.lesson import shipped

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
        lesson_cards(key="lesson_cards", data={"base": base_path(), "lessons": lessons()})
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
        }
        for name, lesson in shipped().items()
    ]


page()
