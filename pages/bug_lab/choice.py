"""Choosing a bug: by its kind, then by its name; where the model cannot have it, which model can."""

from __future__ import annotations

import streamlit as st

from pages.shared import models
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link import asked, carry
from pages.shared.link_widgets import not_here
from pages.shared.model_choice import choose_model
from pages.shared.view import View
from xformer.bugs import BUGS, Bug
from xformer.bugs.ends import END_BUGS
from xformer.bugs.masking import MASK_BUGS
from xformer.bugs.residuals import RESIDUAL_BUGS
from xformer.bugs.roles import ROLE_BUGS
from xformer.bugs.softmax import SOFTMAX_BUGS
from xformer.bugs.training_bugs import TRAINING_BUGS
from xformer.bugs.weights import WEIGHT_BUGS

NO_POSITIONS, SOFTMAX_LOSS = END_BUGS
GROUPS: dict[str, tuple[Bug, ...]] = {
    "softmax, scale": SOFTMAX_BUGS,
    "masks": MASK_BUGS,
    "q, k, v, cross": ROLE_BUGS,
    "residual": RESIDUAL_BUGS,
    "positions, weights": (NO_POSITIONS, *WEIGHT_BUGS),
    "training": (SOFTMAX_LOSS, *TRAINING_BUGS),
}
assert {bug.name for bugs in GROUPS.values() for bug in bugs} == set(BUGS)
USUAL = "no-scale"
GROUP, NAME = "bug_group", "bug_name"


def ask_bug() -> Bug:
    """The bug that is switched on, from two rows of buttons."""
    _begin()
    st.segmented_control(
        "Kind", list(GROUPS), required=True, key=GROUP, persist_state="session", label_visibility="collapsed",
        on_change=_first_of_group,
    )  # fmt: skip
    names = [bug.name for bug in GROUPS[st.session_state[GROUP]]]
    if st.session_state[NAME] not in names:
        st.session_state[NAME] = names[0]
    st.pills(
        "Bug",
        names,
        format_func=lambda name: escape_markdown(BUGS[name].title),
        required=True,
        key=NAME,
        persist_state="session",
        label_visibility="collapsed",
    )
    return BUGS[st.session_state[NAME]]


def no_such_bug_here(view: View, bug: Bug) -> None:
    """One sentence on why this model cannot have the bug, and buttons for models that can."""
    st.info(
        f"{escape_markdown(models.title_of(view.model))} cannot have this bug: it needs {escape_markdown(bug.rule)}.",
        icon=":material/bug_report:",
    )
    can = [
        name
        for name in models.shipped()
        if models.usable(name) is None and bug.applies_to(models.checkpoint(name).config)
    ]
    if not can:
        st.caption("No shipped model can have it; one from the Train screen with that setting could.")
        return
    with st.container(horizontal=True, gap="small"):
        for name in can[:4]:
            st.button(f"Choose {escape_markdown(name)}", on_click=choose, args=(name,), key=f"bug_model_{name}")


def choose(name: str) -> None:
    """Have a model be what all screens show."""
    choose_model(name)


def _begin() -> None:
    wanted = asked("bug")
    if wanted is not None and wanted not in BUGS:
        not_here("bug")
    if wanted in BUGS or NAME not in st.session_state:
        name = wanted if wanted in BUGS else USUAL
        st.session_state[GROUP] = next(group for group, bugs in GROUPS.items() if BUGS[name] in bugs)
        st.session_state[NAME] = name
    carry(GROUP)
    carry(NAME)


def _first_of_group() -> None:
    st.session_state[NAME] = GROUPS[st.session_state[GROUP]][0].name
