"""What a model that goes on with a text says next: its likeliest characters as a strip, and a longer story to read."""

from __future__ import annotations

import streamlit as st

from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared import resources
from pages.shared.literal import literal
from pages.shared.patience import patience
from pages.shared.view import View
from xformer.interventions import join
from xformer.tasks import texts

LENGTHS = (100, 200, 400, 800)
TEMPERATURES = {0.0: "the likeliest", 0.5: "careful", 0.8: "usual", 1.2: "daring"}


def going_on_panel(view: View) -> None:
    """The strip, what can be said about it, and the story."""
    _strip(view)
    st.fragment(_story)(view)


def _strip(view: View) -> None:
    label = view.task.vocabulary.labels
    shown = [Lane("you type", tuple(label[token] for token in view.source))]
    with patience("It goes on with the text") as step:
        runs = [("it goes on", resources.decoded(view.model, view.source, step=step))]
        if view.is_changed:
            said = resources.decoded(view.model, view.source, view.mask, join(view.interventions), step=step)
            runs.append((f"it goes on, {view.what_changed()}", said))
    for name, said in runs:
        shown.append(Lane(name, tuple(label[token] for token, _ in said), probability=tuple(p for _, p in said)))
    prediction_strip(shown, key="prediction")
    halves = "Its encoder read the first half of what you typed, and it goes on from there. " if view.is_pair else ""
    st.caption(
        "The model ran just now and took its likeliest character each time; a bar shows how sure it was. "
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
            help="Temperature 0, 0.5, 0.8 or 1.2: how readily it takes a character that is not the likeliest.",
        )
        n = st.segmented_control(
            "Characters",
            LENGTHS,
            default=LENGTHS[0],
            required=True,
            format_func=lambda value: f"{value} characters" if value == LENGTHS[-1] else str(value),
            key="story_length",
            label_visibility="collapsed",
        )
        if st.button("Again", icon=":material/refresh:", key="story_again", help="Another draw."):
            st.session_state["story_seed"] = st.session_state.get("story_seed", 0) + 1
    with patience("It writes") as step:
        said = resources.continuation(
            view.model, view.source, n, temperature, st.session_state.get("story_seed", 0), step=step
        )
    st.code(_plain(view, (*_read(view), *said)), language=None, wrap_lines=True)
    config = view.task.config
    st.caption(
        f"It was trained on {literal(texts.title(config.text))} and never sees more than {config.max_len} characters at once: "
        + (
            f"its encoder reads the last {config.max_len}, its decoder says {config.max_len} more, and so on."
            if view.is_pair
            else f"once there are {config.max_len}, the first one drops out for each that comes, and it reads the rest anew."
        )
    )


def _read(view: View) -> tuple[int, ...]:
    return tuple(resources.run(*view.key("original")).example.stream[0].tolist())


def _plain(view: View, tokens: tuple[int, ...]) -> str:
    """Tokens as the text that they are; what is no character is left out."""
    alphabet = view.task.config.alphabet
    return "".join(alphabet[token - 1] for token in tokens if 1 <= token <= len(alphabet))
