"""What can be done with a step of a run: open it on another screen, fork it, train the same again, take it along."""

from __future__ import annotations

import streamlit as st

from pages.shared import run_commands, run_store, screens
from pages.shared.escape_markdown import escape_markdown
from pages.shared.model_choice import choose_model
from pages.train.form import TRAIN, TRAINING, ask, is_filled, put
from pages.train.form import settings as form_settings
from pages.train.state import start_once, train_state
from xformer import load
from xformer.checkpoints import FILE, to_bytes
from xformer.errors import ConfigError
from xformer.presets import Preset
from xformer.training.entry import ELSEWHERE, Entry


def run_actions(entry: Entry, settings: Preset, step: int | None, probe: str, who: str) -> None:
    """What can be done with the step that is shown: open it elsewhere, fork it, train the same again, download it."""
    with st.container(horizontal=True, gap="small", key="afterwards"):
        if step is not None:
            with (
                st.popover(f"Open step {step:,} on …", icon=":material/open_in_new:", key="open_on"),
                st.container(gap=None),
            ):
                for words, page in screens.of_a_model().items():
                    if st.button(words, type="tertiary", key=f"open_{words}", width="stretch"):
                        choose_model(f"{entry.id}@{step}")
                        st.session_state["input"] = probe
                        st.switch_page(page)
            with st.popover(f"Fork from step {step:,}", icon=":material/fork_right:", key="fork"):
                _fork(entry, settings, step, who)
        if not entry.is_active and entry.state != "queued":
            st.button(
                "Train the same again",
                icon=":material/replay:",
                on_click=_again,
                args=(entry, train_state().next_ticket()),
                disabled=not who or entry.wanted == ELSEWHERE,
                help="The same settings and the same seed: on a CPU the same run, bit for bit.",
                key="run_again",
            )
        folder = run_store.store().folder_of(entry.id)
        if (folder / FILE).exists():
            st.download_button(
                "Model",
                lambda: to_bytes(load(folder)),
                f"{entry.id}.safetensors",
                "application/octet-stream",
                icon=":material/download:",
                on_click="ignore",
                help="Weights, settings, figures and curve in one safetensors file.",
                key="run_model",
            )


def _fork(entry: Entry, settings: Preset, step: int, who: str) -> None:
    form = f"fork_{entry.id}"
    if not is_filled(form):
        put(settings, form, TRAINING)
    st.caption(
        f"A new run that begins with the weights of step {step:,}; its optimiser and data begin anew. "
        "The model stays, its training can be another."
    )
    ask(TRAIN, form)
    problem = None
    try:
        changed = form_settings(settings, form, TRAINING)
    except ConfigError as error:
        changed, problem = settings, str(error)
        st.error(escape_markdown(problem), icon=":material/edit:")
    ticket = train_state().next_ticket()

    def fork() -> None:
        name = f"{entry.name}, from step {step:,}"[:80]
        start_once(ticket, lambda: run_commands.fork(entry.id, step, changed, name))

    st.button(
        "Start the fork", type="primary", on_click=fork, disabled=problem is not None or not who, key="fork_start"
    )


def _again(entry: Entry, ticket: int) -> None:
    start_once(ticket, lambda: run_commands.again(entry.id, f"{entry.name} again"[:80]))
