"""What stands beside the player of a run and below it: its curves, what can be done with the step that is shown, and what to
notice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from pages.components.training_player import resting
from pages.shared.call import Call
from pages.shared.frame import picture
from pages.shared.layout import what_to_notice
from pages.train.run_actions import run_actions
from pages.train.state import film_key
from pages.train.text import sample_panel
from pages.train.timeline import HEIGHT, TALL, Film, code_and_files, files, head_panel, metric_chart, moments, notes
from xformer import viz
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.training.entry import Entry

HEADS = "Heads"
MORE = {HEADS: "", "Gradient norm": "gradient", "Learning rate": "rate"}


@dataclass(frozen=True)
class Shown:
    """A run as it is shown: its film of one input, and its metrics so far."""

    entry: Entry
    settings: Preset
    task: Task
    example: Example
    film: Film
    frame: pd.DataFrame
    exact: Sequence[tuple[int, float]]
    """Exact matches by step; none of a text."""

    @property
    def step(self) -> int | None:
        """The step where the player rests."""
        return self.film.step_at(resting(film_key(self.entry.id)).step)


def curves(shown: Shown) -> list[Call]:
    """Draw the curves beside the player; what comes back are the calls they have made."""
    look = {
        "steps": shown.settings.train.steps,
        "shown": shown.step,
        "marks": moments(shown.film, shown.exact),
        "height": HEIGHT,
    }
    with picture("curves"), st.container(gap="xsmall", key="train_curves"):
        return [
            metric_chart(Call(viz.metric_curves, (shown.frame,), {"what": what, **look}), switch=what == "loss")
            for what in ("bits" if shown.task.rule.is_open_ended else "accuracy", "loss")
        ]


def below_player(shown: Shown, beside: list[Call], who: str) -> None:
    """Draw the rest of the page."""
    entry, settings, task, example, film = shown.entry, shown.settings, shown.task, shown.example, shown.film
    step, steps = shown.step, settings.train.steps
    if task.rule.is_open_ended:
        with st.container(key="text_sample"):
            sample_panel(entry, settings.task.alphabet, example, step)
    run_actions(entry, settings, step, task.vocabulary.text(list(example.source)), who)
    with st.container(
        horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", key="train_below"
    ):
        more = st.segmented_control(
            "More curves", list(MORE), default=HEADS, required=True, key="train_more", persist_state="session",
            label_visibility="collapsed",
        )  # fmt: skip
        look = {"steps": steps, "shown": step, "marks": None, "height": TALL}
        below = Call(viz.metric_curves, (shown.frame,), {**look, "what": MORE[more]})
        offered = files(entry, task, example, film, shown.exact) if film.frames else None
        code_and_files(entry, beside if more == HEADS else [*beside, below], film, example, step, offered)
    if more == HEADS:
        head_panel(film, task, steps, step, moments(film, shown.exact))
    else:
        metric_chart(below)
    what_to_notice(notes(entry, settings, task, film, shown.frame))
