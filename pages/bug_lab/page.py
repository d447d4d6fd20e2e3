"""Bug lab: what does a broken transformer look like? One mistake at a time, beside the right model."""

from __future__ import annotations

import math
from dataclasses import replace

import streamlit as st

from pages.bug_lab.choice import (
    Written,
    ask_bug,
    ask_fitting,
    no_such_bug_here,
    readings,
    shows_padding,
    verdict,
    written,
)
from pages.bug_lab.panels import (
    attention_panel,
    bug_card,
    bug_notes,
    crashes_panel,
    effect,
    look_for,
    seen_in,
    verdict_panel,
)
from pages.bug_lab.training import is_training, lesson_of, tick, training_panel
from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared import frame
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import what_to_notice
from pages.shared.patience import patience
from pages.shared.session import open_page
from pages.shared.view import View
from pages.shared.widgets import choose
from xformer.bugs import Bug
from xformer.errors import XformerError
from xformer.reading import Reading

SHOW = {"answer": "Answer", "attention": "Attention", "diagnosis": "Diagnosis", "training": "Train both"}


def page() -> None:
    chosen = open_page("Bug lab", "What does a broken transformer look like?")
    bug = ask_bug()
    bug_card(bug)
    view, own = ask_fitting(chosen, bug)
    if not bug.applies_to(view.config):
        no_such_bug_here(view, bug)
        chosen.share(bug=bug.name, **own)
        crashes_panel()
        what_to_notice([look_for(bug), seen_in(bug)])
        return
    show = _ask_show(bug)
    both, alone = _both(view, bug)
    with frame.picture():
        if show == "answer" and both:
            _predictions(view, bug, both, alone)
        elif show == "attention" and both:
            attention_panel(view, bug, both)
        elif show == "diagnosis":
            with st.spinner("Examining both models …"):
                verdict_panel(bug, *verdict(view.model, bug.name))
    every = tick() if show == "training" else None

    def rest() -> None:
        with frame.picture("training"):
            link = training_panel(view, bug) if show == "training" else {}
        chosen.share(bug=bug.name, **own, **link)
        what_to_notice(bug_notes(view, bug, both, alone, lesson_of(view, bug)))
        if show == "training" and is_training() != (every is not None):
            st.rerun()  # the page has to begin to run by itself, or to stop

    st.fragment(rest, run_every=every)()
    crashes_panel()


def _ask_show(bug: Bug) -> str:
    """What to look at; a bug of the training loop is not to be seen in a run."""
    if bug.shows == "in training":
        return choose("loop", {name: SHOW[name] for name in ("training", "diagnosis")}, "training", "Show", key="bug_loop",
                      label_visibility="collapsed")  # fmt: skip
    return choose("show", SHOW, "answer", "Show", key="bug_show", label_visibility="collapsed")


def _both(view: View, bug: Bug) -> tuple[list[Reading], Written]:
    """Both readings and what both write alone, or a sentence on why there are none."""
    if bug.shows == "in training":
        return [], []
    if not shows_padding(view, bug):
        st.info("This bug shows with padding only, and this model’s input has none.", icon=":material/info:")
        return [], []
    try:
        with patience("Both models write") as step:
            return readings(view, bug), written(view, bug, step)
    except XformerError as error:
        st.error(escape_markdown(f"The changes of this run do not fit the broken model. {error}"))
        return [], []


def _predictions(view: View, bug: Bug, both: list[Reading], alone: Written) -> None:
    """What it reads and says, right and wrong, and what both write on their own; then the loss in words."""
    shown = view.kind.rows(both[0], both[1], "with the bug")
    if math.isnan(both[1].loss):
        shown[-1] = replace(shown[-1], tokens=("NaN",) * len(both[1].answer))
    lost = ""
    if alone:
        label, answer = view.subject.labels, both[0].answer
        lost = "" if alone[1] else " On its own it writes nothing: there the code with this bug fails."
        for name, tokens in zip(("alone, right", "alone, bug"), alone, strict=True):
            if not tokens:
                continue
            right = tuple(i < len(answer) and token == answer[i] for i, token in enumerate(tokens))
            shown.append(Lane(name, tuple(label[token] for token in tokens), right, offset=shown[-1].offset))
    prediction_strip(shown, key="bug_strip")
    st.caption(effect(view, bug, both, alone) + lost)


page()
