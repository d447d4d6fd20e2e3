"""The card of one player: its model, its step, and what is changed for it alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from pages.compare.comparison import LETTERS, Choice, show, state, why_not_playable
from pages.compare.settings import settings
from pages.shared import models, run_weights
from pages.shared.escape_markdown import escape_markdown
from xformer.errors import XformerError


def card(index: int, choice: Choice, n: int) -> None:
    """Draw the card of a player, one of n."""
    runs, of_run = run_weights.trained(), models.run_and_step(choice.model)
    chosen = choice.model if of_run is None else of_run[0]
    shipped = [name for name in models.shipped() if why_not_playable(name) is None]
    line: dict[str, Any] = {"horizontal": True, "wrap": False, "gap": "xsmall", "vertical_alignment": "center"}
    # Of two shipped models everything stands in one line; three and four cards are narrow, and a run has its step.
    is_one_line = n < 3 and of_run is None
    with st.container(border=True, key=f"compare_seat_{index}", gap="xsmall"):
        row = st.container(**line)
        row.markdown(f"**{LETTERS[index]}**", width="content")
        show(f"compare_model_{index}", chosen)
        row.selectbox(
            f"Model of player {LETTERS[index]}",
            list(dict.fromkeys([*shipped, *runs, chosen])),
            format_func=lambda name: f"▸ {runs[name]}" if name in runs else name,
            key=f"compare_model_{index}",
            on_change=_choose_model,
            args=(index,),
            label_visibility="collapsed",
        )
        second = row if is_one_line else st.container(**line)
        if of_run is not None:
            with second:
                _ask_step(index, *of_run, narrow=n < 3)
        # What is inside is drawn while it is open: a widget that is not on the screen misses what it is told.
        drawer = second.popover(
            escape_markdown(", ".join(choice.settings())) or "as trained",
            icon=":material/tune:" if is_one_line else None,
            width="stretch",
            key=f"compare_settings_{index}",
            on_change="rerun",
        )
        if drawer.open:
            with drawer:
                settings(index, choice)
        if n > 2:
            row.button(
                "",
                icon=":material/close:",
                key=f"compare_remove_{index}",
                help=f"Player {LETTERS[index]} leaves.",
                on_click=_remove,
                args=(index,),
                type="tertiary",
                width=36,
            )


def _ask_step(index: int, run: str, step: int | None, *, narrow: bool) -> None:
    show(f"compare_step_{index}", step)
    st.selectbox(
        f"Step of player {LETTERS[index]}",
        list(dict.fromkeys([*run_weights.steps_of(run), step])),
        format_func=lambda at: f"step {at:,}",
        key=f"compare_step_{index}",
        on_change=_choose_step,
        args=(index, run),
        label_visibility="collapsed",
        width=116 if narrow else "stretch",
    )


def _choose_model(index: int) -> None:
    """Another model keeps of the changes those that fit it."""
    model = models.resolved(st.session_state[f"compare_model_{index}"])
    if model is None or why_not_playable(model):
        state().refused = why_not_playable(model) or "" if model else "This run has no weights to look at yet."
        return
    choice = replace(state().choices[index], model=model, changes=())
    for text in state().choices[index].changes:
        more = replace(choice, changes=(*choice.changes, text))
        try:
            more.interventions()
        except XformerError:
            continue
        choice = more
    state().put(index, choice)


def _choose_step(index: int, run: str) -> None:
    step = st.session_state[f"compare_step_{index}"]
    state().put(index, replace(state().choices[index], model=f"{run}@{step}"))


def _remove(index: int) -> None:
    del state().choices[index]
    state().is_chosen = True
