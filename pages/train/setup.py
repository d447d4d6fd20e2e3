"""Before a run: five presets that start with one press, the others in groups, and settings of one's own."""

from __future__ import annotations

import streamlit as st

from pages.shared import run_store
from pages.train.estimate import expected_at_once, known_runs
from pages.train.many import ONE, Plan, ask_plan
from pages.train.own_settings import change, fill, own, start, watchable
from pages.train.ready_sweeps import ready_sweeps
from pages.train.state import train_state
from xformer.counting import n_parameters
from xformer.presets import PRESETS, Preset
from xformer.sources import credit
from xformer.task_limits import TASK_LIMITS
from xformer.training import queue
from xformer.training.entry import Entry
from xformer.words import duration

FIRST = ("reverse-small", "reverse-mirror", "reverse-seq2seq", "induction", "digits")
"""What a newcomer sees: quick, and each with another picture to watch for. The very first has the large button."""
OTHERS = "Other tasks"
OWN = "train_own"
"""The key of the expander with the form."""


def setup(who: str) -> None:
    """The first presets, the groups, and the form; what is folded is not drawn."""
    ticket = train_state().next_ticket()
    if not train_state().form_preset:
        fill(FIRST[0])
    if not run_store.is_open():
        st.caption(":material/group: Everyone on this server can watch what you train, and look at its weights.")
    plan = ask_plan()
    entries, gpu = known_runs(), len(queue.devices()) > 1
    if plan.way != ONE:
        ready_sweeps(who, ticket)
    with st.container(border=True, gap="small", key="presets_first"):
        for name in FIRST:
            _preset(PRESETS[name], who, ticket, entries, gpu, plan)
    form = st.expander("**Settings of your own**", key=OWN, on_change="rerun", icon=":material/tune:")
    if form.open:
        with form:
            own(who, ticket, plan)
    for title, presets in grouped().items():
        words = f"**{title}** :gray[ · {', '.join(preset.title for preset in presets)}]"
        group = st.expander(words, key=group_key(title), on_change="rerun")
        if group.open:
            with group, st.container(gap="small", key=f"{group_key(title)}_of"):
                for preset in presets:
                    _preset(preset, who, ticket, entries, gpu, plan)
    st.caption(
        "Times are expectations: from an earlier run of the same model here, else from the training of the shipped models, "
        "perhaps on another machine. The form times a few steps on this one."
    )


def group_key(title: str) -> str:
    """The key of the expander of a group."""
    return f"presets_{title.split()[0].rstrip(',').lower()}"


def grouped() -> dict[str, list[Preset]]:
    """The presets that are not among the first, by what they learn."""
    groups: dict[str, list[Preset]] = {}
    for preset in PRESETS.values():
        if preset.name not in FIRST:
            groups.setdefault(_group(preset.task.name), []).append(preset)
    return groups


def _group(task: str) -> str:
    """Under which title a task's presets stand."""
    if task == PRESETS[FIRST[0]].task.name:
        return "Reversing, in other ways"
    limits = TASK_LIMITS[task]
    return "Text" if limits.is_text else "Images" if limits.is_image else OTHERS


def _preset(preset: Preset, who: str, ticket: int, entries: list[Entry], gpu: bool, plan: Plan) -> None:
    """One preset: what it is, how long it takes, and a press to start it."""
    is_first = preset.name == FIRST[0] and plan.way == ONE
    seconds = expected_at_once(watchable(preset), entries, gpu).seconds
    time = "time not known" if seconds is None else f"**about {duration(seconds)}**"
    if plan.way != ONE:  # in a stack a step takes another time
        time = f"**{plan.n} models**"
    with st.container(
        horizontal=True, vertical_alignment="center", gap="small", key=f"card_{preset.name}", width="stretch"
    ):
        with st.container(gap=None, width="stretch"):
            size = f"{n_parameters(preset.model):,} parameters · {preset.train.steps:,} steps · {time}"
            st.markdown(f"**{preset.title}** :small[:gray[{size}]]")
            st.caption(f"{preset.about} {credit(preset.name)}")
        with st.container(horizontal=True, gap="xsmall", width="content", key=f"press_{preset.name}"):
            st.button(
                "Start",
                type="primary" if is_first else "secondary",
                icon=":material/play_arrow:",
                on_click=start,
                args=(watchable(preset), "auto", "", ticket, plan.settings),
                disabled=not who or not plan.is_good,
                key=f"start_{preset.name}",
            )
            st.button(
                "",
                type="tertiary",
                icon=":material/tune:",
                on_click=_change,
                args=(preset.name,),
                key=f"change_{preset.name}",
                help="Change its settings first: puts them into the form below.",
            )


def _change(name: str) -> None:
    change(name)
    st.session_state[OWN] = True
