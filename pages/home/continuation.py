"""What a model that goes on with a text says next: its likeliest characters as a strip, and a longer story to read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from pages.components.prediction_strip import Lane, prediction_strip
from pages.home.answer import predicted, typed
from pages.shared import resources
from pages.shared.escape_markdown import escape_markdown
from pages.shared.patience import patience
from pages.shared.view import View
from xformer.tasks import texts

LENGTHS = (100, 200, 400, 800)
TEMPERATURES = {0.0: "the likeliest", 0.5: "careful", 0.8: "usual", 1.2: "daring"}


def continuation_panel(view: View) -> None:
    """The strip, what can be said about it, and the story."""
    _strip(view)
    st.fragment(_story)(view)


def _strip(view: View) -> None:
    label, lanes = view.subject.labels, [typed(view)]
    for name, predictions in predicted(view, "It goes on with the text", "it goes on").items():
        lanes.append(Lane(name, tuple(label[t] for t, _ in predictions), probability=tuple(p for _, p in predictions)))
    prediction_strip(lanes, key="prediction")
    halves = "Its encoder read the first half of what you typed, and it goes on from there. " if view.is_pair else ""
    st.caption(
        f"The model ran just now and took its likeliest {view.input.one} each time; a bar shows how sure it was. "
        f"{halves}Nobody knows the right answer: a text may go on in many ways."
        " A dot is a space, ↵ a new line.",
        width="stretch",
    )


def _story(view: View) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.markdown("**How it would go on**", width="content")
        temperature = st.segmented_control(
            "Choice",
            list(TEMPERATURES),
            default=0.8,
            required=True,
            format_func=lambda value: TEMPERATURES[value],
            key="story_temperature",
            label_visibility="collapsed",
            help=f"Temperature 0, 0.5, 0.8 or 1.2: how readily it takes a {view.input.one} that is not the likeliest.",
        )
        n = st.segmented_control(
            view.input.many.capitalize(),
            LENGTHS,
            default=LENGTHS[0],
            required=True,
            format_func=lambda value: f"{value} {view.input.many}" if value == LENGTHS[-1] else str(value),
            key="story_length",
            label_visibility="collapsed",
        )
        wanted = (view.model, view.source)
        if view.task is None and st.session_state.get("story_wanted") != wanted:  # a large model writes for a while
            write = partial(st.session_state.__setitem__, "story_wanted", wanted)
            st.button("Let it write", icon=":material/edit:", key="story_write", on_click=write)
            return
        if st.button("Again", icon=":material/refresh:", key="story_again", help="Another draw."):
            st.session_state["story_seed"] = st.session_state.get("story_seed", 0) + 1
    text = st.empty()

    def show(tokens: Sequence[int]) -> None:
        text.code(view.input.plain([*view.original().ids(), *tokens]), language=None, wrap_lines=True)

    with patience("It writes") as step:
        seed = st.session_state.get("story_seed", 0)
        show(resources.continuation(view.model, view.source, n, temperature, seed, step=step, show=show))
    if view.task is None:
        st.caption(
            f"It reads at most {view.shape.max_len:,} {view.input.many}, its own among them, and stops where there are as many."
        )
        return
    read, trained = (
        view.task.config.max_len,
        f"was trained on {escape_markdown(texts.title(view.task.config.text))} and ",
    )
    st.caption(
        f"It {trained}never sees more than {read} {view.input.many} at once: "
        + (
            f"its encoder reads the last {read}, its decoder says {read} more, and so on."
            if view.is_pair
            else f"once there are {read}, the first one drops out for each that comes, and it reads the rest anew."
        )
    )
