"""Bug lab: what does a broken transformer look like? One mistake at a time, beside the right model."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import streamlit as st

from pages.bug_lab.choice import (
    TAB,
    Written,
    ask_bug,
    ask_fitting,
    findings,
    no_such_bug_here,
    readings,
    shows_padding,
    written,
)
from pages.bug_lab.game import game_panel, score
from pages.bug_lab.panels import attention_panel, bug_card, bug_notes, crashes_panel, diagnosis_panel, effect, hints
from pages.bug_lab.training import is_training, lesson_of, training_panel
from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared import frame
from pages.shared.background_job import TICK
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import headline, what_to_notice
from pages.shared.link import asked, carry
from pages.shared.patience import patience
from pages.shared.picture import toolbar
from pages.shared.session import open_page
from pages.shared.view import View
from pages.shared.widgets import choose
from xformer.bugs import Bug
from xformer.errors import XformerError
from xformer.reading import Reading

SHOW = {"attention": "Attention", "answer": "Answer", "diagnosis": "Diagnosis", "training": "Train both"}
TABS = {"find": "Find the bug", "browse": "Browse all bugs"}
QUESTION = "What does a broken transformer look like?"


def page() -> None:
    wanted = asked("bug")
    if wanted is not None or (TAB not in st.session_state and {"show", "own", "model"} & set(st.query_params)):
        st.session_state[TAB] = "browse"
    st.session_state.setdefault(TAB, "find")
    carry(TAB)
    if st.session_state[TAB] == "find":
        st.title(f"Bug lab :small[:gray[{QUESTION}]]", anchor=False)
        _ask_tab()
        game_panel()
    else:
        browse(open_page("Bug lab", QUESTION), wanted)


def _ask_tab() -> None:
    with st.container(horizontal=True, gap="medium", vertical_alignment="center"):
        look: dict[str, Any] = {"required": True, "persist_state": "session", "label_visibility": "collapsed"}
        st.segmented_control("Tab", list(TABS), format_func=TABS.__getitem__, key=TAB, width="content", **look)
        if st.session_state[TAB] == "find" and (named := score()):
            st.markdown(named)


def browse(chosen: View, wanted: str | None) -> None:
    """Any bug beside the right model: patterns, answers, the diagnosis, and training both."""
    _ask_tab()
    with st.container(gap="xsmall"):
        finding = st.container()
        controls = toolbar()
        pictures, fit = st.container(), st.container()
    with controls:
        bug = ask_bug(wanted)
    with fit:
        view, own = ask_fitting(chosen, bug)
    if not bug.applies_to(view.config):
        with pictures:
            no_such_bug_here(view, bug)
        chosen.share(bug=bug.name, **own)
        bug_card(bug)
        crashes_panel()
        what_to_notice(hints(bug))
        return
    with controls:
        show = _ask_show(bug)
    both, alone = _both(view, bug)
    with finding:
        headline(effect(view, bug, both, alone) if both else "")
    with pictures, frame.picture():
        if show == "answer" and both:
            _predictions(view, both, alone)
        elif show == "attention" and both:
            attention_panel(view, bug, both)
        elif show == "diagnosis":
            with st.spinner("Examining both models …"):
                diagnosis_panel(bug, *findings(view.model, bug.name))
    ticks = show == "training" and is_training()

    def rest() -> None:
        with frame.picture("training"):
            link = training_panel(view, bug) if show == "training" else {}
        chosen.share(bug=bug.name, **own, **link)
        bug_card(bug)
        what_to_notice(bug_notes(bug, both, lesson_of(view, bug)))
        if show == "training" and is_training() != ticks:
            st.rerun()  # to begin or end the updates

    st.fragment(rest, run_every=TICK if ticks else None)()
    crashes_panel()


def _ask_show(bug: Bug) -> str:
    """Ask for a panel; a bug of the training loop has no effect on a run."""
    if bug.shows == "in training":
        panels = {name: SHOW[name] for name in ("training", "diagnosis")}
        return choose("loop", panels, "training", "Show", key="bug_loop", label_visibility="collapsed")
    return choose("show", SHOW, "attention", "Show", key="bug_show", label_visibility="collapsed")


def _both(view: View, bug: Bug) -> tuple[list[Reading], Written]:
    """Both readings and the tokens that both models decode; where there are none, a message says why."""
    if bug.shows == "in training":
        return [], []
    if not shows_padding(view, bug):
        st.info("This bug needs padding, and this model’s input has none.", icon=":material/info:")
        return [], []
    try:
        with patience("Both models decode") as step:
            return readings(view, bug), written(view, bug, step)
    except XformerError as error:
        st.error(escape_markdown(f"The changes of this run do not fit the broken model. {error}"))
        return [], []


def _predictions(view: View, both: list[Reading], alone: Written) -> None:
    """Draw the input, the predictions of both models, and what both decode free-running."""
    shown = view.kind.rows(both[0], both[1], "with the bug")
    if math.isnan(both[1].loss):
        shown[-1] = replace(shown[-1], tokens=("NaN",) * len(both[1].answer))
    label, answer = view.subject.labels, both[0].answer
    for name, tokens in zip(("alone, right", "alone, bug"), alone, strict=False):
        if tokens:
            right = tuple(i < len(answer) and token == answer[i] for i, token in enumerate(tokens))
            shown.append(Lane(name, tuple(label[token] for token in tokens), right, offset=shown[-1].offset))
    prediction_strip(shown, key="bug_strip")
    if alone and not alone[1]:
        st.caption("Free-running it decodes nothing: its logits are not finite.")


page()
