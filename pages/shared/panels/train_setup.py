"""Before a run: every preset as a card that starts with one press, and a form for settings of one's own."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import streamlit as st

from pages.shared import desk
from pages.shared.panels import train_fields as fields
from pages.shared.panels import train_form as form_of
from pages.shared.panels.text_choice import text_choice
from pages.shared.panels.train_estimate import expected
from pages.shared.panels.train_visit import complain, show_run
from xformer.errors import ConfigError, XformerError
from xformer.presets import PRESETS, Preset
from xformer.training import jobs, queue
from xformer.training.limits import disk_needed, megabytes, memory_needed
from xformer.training.own_text import with_text

FORM = "own"
CARDS, OWN = "Ready to start", "Settings of your own"
FIRST = "reverse-small"
"""The preset with the large button: the quickest to a clean picture."""
FRAMES = 40
"""About so many snapshots a run started here keeps, so that the moment a head appears can be scrubbed to."""


def setup(who: str) -> None:
    """The cards, or the form."""
    ticket = st.session_state["train_ticket"] = st.session_state.get("train_ticket", 0) + 1
    if "train_form" not in st.session_state:
        _fill(FIRST)
        st.session_state["train_way"] = CARDS
    st.session_state.setdefault("train_way", CARDS)
    way = st.segmented_control(
        "How to begin",
        (CARDS, OWN),
        required=True,
        key="train_way",
        persist_state="session",
        label_visibility="collapsed",
    )
    if way == OWN:
        _form(who, ticket)
    else:
        _cards(who, ticket)


def watchable(preset: Preset) -> Preset:
    """A preset with snapshots close enough to watch it learn; what it learns does not depend on them."""
    every = max(1, preset.train.steps // FRAMES)
    every = next((n for n in (10, 20, 25, 50, 100, 200, 500, 1000) if n >= every), every)
    return replace(preset, train=preset.train.replace(snapshot_every=min(every, preset.train.snapshot_every)))


def start(settings: Preset, who: str, device: str, name: str, ticket: int) -> None:
    """Put a run into the queue and show it. A callback: a second click on the same button starts nothing."""
    if st.session_state.get("train_ticket_used") == ticket:
        return
    st.session_state["train_ticket_used"] = ticket
    try:
        run = jobs.submit(desk.book(), settings, owner=who, name=name, device=device, limits=desk.limits())
    except (XformerError, OSError) as error:
        complain(error)
        return
    show_run(run)


def _cards(who: str, ticket: int) -> None:
    with st.container(border=True, key="card_first"):
        words, press = st.columns([2.2, 1], vertical_alignment="center", gap="large")
        words.markdown(f"#### {PRESETS[FIRST].title}")
        words.markdown(PRESETS[FIRST].about)
        words.caption(_size(PRESETS[FIRST]))
        with press:
            _buttons(PRESETS[FIRST], who, ticket)
    others = [preset for preset in PRESETS.values() if preset.name != FIRST]
    for begin in range(0, len(others), 3):
        for place, preset in zip(st.columns(3), others[begin : begin + 3], strict=False):
            with place, st.container(border=True, height="stretch", key=f"card_{preset.name}", gap="xsmall"):
                st.markdown(f"**{preset.title}**")
                st.caption(preset.about)
                st.space("stretch")
                st.caption(_size(preset))
                _buttons(preset, who, ticket)


def _size(preset: Preset) -> str:
    return f"{preset.model.n_parameters():,} parameters · {preset.train.steps:,} steps"


def _buttons(preset: Preset, who: str, ticket: int) -> None:
    is_first = preset.name == FIRST
    with st.container(horizontal=not is_first, gap="xsmall"):
        st.button(
            "Start",
            type="primary" if is_first else "secondary",
            icon=":material/play_arrow:",
            on_click=start,
            args=(watchable(preset), who, "auto", "", ticket),
            disabled=not who,
            width="stretch",
            key=f"start_{preset.name}",
        )
        st.button(
            "Change first",
            type="tertiary",
            icon=":material/tune:",
            on_click=_change,
            args=(preset.name,),
            width="stretch" if is_first else "content",
            key=f"change_{preset.name}",
            help="Put its settings into the form.",
        )


def _change(name: str) -> None:
    _fill(name)
    st.session_state["train_way"] = OWN


def _fill(name: str) -> None:
    st.session_state["train_form"] = name
    st.session_state["train_text"] = ""
    form_of.put(watchable(PRESETS[name]), FORM)


def _take_text(preset: Preset) -> None:
    """Have the form begin from a preset that was made for another text."""
    st.session_state["train_text"] = preset.task.text
    form_of.put(watchable(preset), FORM)


def _base() -> Preset:
    """What the form began from."""
    preset, text = PRESETS[st.session_state["train_form"]], st.session_state.get("train_text", "")
    try:
        return with_text(preset, text) if text else preset
    except XformerError:  # its file was taken away meanwhile
        return preset


def _form(who: str, ticket: int) -> None:
    base = _base()
    form, summary = st.columns([2.4, 1], gap="large")
    with form:
        st.markdown(f"Beginning from **{base.title}**.")
        if base.task.name == "characters":
            text_choice(base, _take_text)
        form_of.ask(fields.TASK, FORM)
        form_of.ask(fields.MODEL, FORM)
        form_of.ask(fields.TRAIN, FORM)
        with st.expander("More about the model"):
            form_of.ask(fields.MODEL_MORE, FORM)
        with st.expander("More about the training"):
            form_of.ask(fields.TRAIN_MORE, FORM)
    with summary:
        name = st.text_input(
            "Name", key="own_name", max_chars=80, placeholder="as the settings say", persist_state="session"
        )
        choices = ["auto", *queue.devices()]
        device = st.selectbox(
            "Device",
            choices,
            format_func=lambda choice: {"auto": "auto", "cpu": "CPU"}.get(
                choice, f"GPU {choice.removeprefix('cuda:')}"
            ),
            key="own_device",
            help="Auto takes a GPU where there is one.",
        )
        settings = _checked(base)
        if settings is not None:
            _summary(settings, device)
        st.button(
            "Start",
            type="primary",
            icon=":material/play_arrow:",
            disabled=settings is None or not who,
            on_click=start,
            args=(settings, who, device, name, ticket),
            width="stretch",
            key="start_own",
        )


def _checked(base: Preset) -> Preset | None:
    """What the form says, or None and a sentence on what is wrong."""
    try:
        settings = form_of.settings(base, FORM)
        desk.limits().check_size(settings)
    except ConfigError as error:
        st.error(str(error), icon=":material/edit:")
    except XformerError as error:
        st.error(str(error), icon=":material/block:")
    else:
        return settings
    return None


def _summary(settings: Preset, device: str) -> None:
    entries = desk.book().entries()
    with st.popover(f"{settings.model.n_parameters():,} parameters", width="stretch", help="Counted part by part."):
        parts = settings.model.parameters_by_part()
        table = pd.DataFrame(
            {"part": [p.name for p in parts], "how": [p.formula for p in parts], "numbers": [p.count for p in parts]}
        )
        st.dataframe(table, hide_index=True)
    gpu = device.startswith("cuda") or (device == "auto" and len(queue.devices()) > 1)
    st.caption(f"**Time:** {expected(settings, entries, gpu)}.")
    st.caption(f"**Memory:** about {megabytes(memory_needed(settings))}. **Disk:** {megabytes(disk_needed(settings))}.")
    waiting = len(queue.in_turn(entries)) + sum(entry.is_active for entry in entries)
    if waiting:
        st.caption(f"**Queue:** {waiting} {'run is' if waiting == 1 else 'runs are'} waiting or in training already.")
