"""Which model a bug is shown on: the chosen one where it shows something there, else one that it does show on, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from pages.bug_lab.choice import choose
from pages.bug_lab.runs import readings, shows_padding
from pages.shared import models, resources
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link_widgets import seed
from pages.shared.view import View
from xformer.bugs import Bug
from xformer.errors import InputError, XformerError
from xformer.reading import Reading

FITTING = {
    "softmax-over-queries": "reverse-seq2seq",
    "softmax-over-heads": "reverse",
    "causal-off-by-one": "reverse-decoder",
    "causal-ignored": "reverse-decoder",
    "causal-upside-down": "reverse-decoder",
    "masked-with-zero": "reverse-decoder",
    "masked-after-softmax": "reverse-decoder",
    "cross-queries-from-memory": "reverse-seq2seq",
    "cross-roles-swapped": "reverse-seq2seq",
    "forgotten-return": "reverse-seq2seq",
    "split-by-view": "reverse",
    "residual-after-norm": "induction",
    "identical-heads": "reverse",
    "init-too-small": "reverse-mirror",
    "cloned-layers": "sort",
    "no-clipping": "reverse-mirror",
    "loss-on-padding": "reverse-mirror",
}
"""The shipped model that shows a bug on its own example; a test holds that it does."""
OWN = "bug_own"
"""Whether the chosen model is shown even where it shows nothing."""
USUAL = "reverse-small"
"""The one for all others."""
WORSE = 0.5
"""Nats by which a loss has to rise for a bug to be seen in it: what is left of a probability is e^-0.5 = 0.61 of it."""
MOVED = 0.05
"""How far the weights of a pattern have to move, on average over its cells, for an untrained model to be seen to differ."""


def shows_something(both: Sequence[Reading], bug: Bug) -> bool:
    """Whether a bug is to be seen on this input: in an answer, in the loss, or, while nothing is learned, in a pattern."""
    right, wrong = both
    if not math.isfinite(wrong.loss):
        return True
    if bug.shows == "when fresh":
        return max(moved(both).values(), default=0.0) >= MOVED
    return wrong.n_right < right.n_right or wrong.loss >= right.loss + WORSE


def moved(both: Sequence[Reading]) -> dict[tuple[str, int], float]:
    """How far each head's weights moved, on average over the cells of its pattern; heads whose axes changed are left out."""
    (right, wrong), found = both, {}
    for path, pattern in right.trace.patterns().items():
        other = wrong[f"{path}.pattern"]
        if other.shape == pattern.shape:
            apart = (other.nan_to_num(nan=2.0) - pattern)[0].abs().flatten(1).mean(dim=1)  # [head]
            found |= {(path, head): value for head, value in enumerate(apart.tolist())}
    return found


def fitting(view: View, bug: Bug) -> tuple[View, str]:
    """What to show the bug on, and the reason where it is not what was chosen."""
    why = why_not(view, bug)
    name = FITTING.get(bug.name, USUAL)
    if not why or name == view.model or name not in models.shipped() or models.usable(name) is not None:
        return view, ""
    other = _view_of(name, view)
    if why_not(other, bug):  # on this input; on the model's own example it does show
        other = replace(other, source=other.input.read(other.input.default))
    return other, why


def ask_fitting(view: View, bug: Bug) -> tuple[View, dict[str, str]]:
    """What the bug is shown on, with a sentence and two buttons where that is not what is chosen; and what the link keeps.

    The choice in the sidebar stays as it is, for the other screens.
    """
    seed("own", (0, 1), 0, key=OWN)
    name = escape_markdown(models.title_of(view.model))
    other, why = fitting(view, bug)
    if st.session_state[OWN] and why:
        with st.container(horizontal=True, vertical_alignment="center", gap="small", key="bug_fit"):
            st.caption(f":material/info: {name} does not show this bug: {why}.", width="content")
            words = f"Show it on {escape_markdown(other.model)}"
            st.button(words, on_click=_set_own, args=(0,), key="bug_fit_other", type="tertiary")
        return view, {"own": "1"}
    if not why:
        return view, {}
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="bug_fit"):
        st.caption(
            f":material/swap_horiz: Shown on **{escape_markdown(other.model)}**; {name} does not show it: {why}.",
            width="content",
        )
        if view.task is not None and bug.applies_to(view.config):
            words = f"Show {name} all the same"
            st.button(words, on_click=_set_own, args=(1,), key="bug_fit_own", type="tertiary")
        words, key = f"Choose {escape_markdown(other.model)}", f"bug_model_{other.model}"
        st.button(words, on_click=choose, args=(other.model,), key=key, type="tertiary")
    return other, {}


def _set_own(value: int) -> None:
    st.session_state[OWN] = value


def why_not(view: View, bug: Bug) -> str:
    """Why a bug is not to be seen on a model and an input, as the end of a sentence; "" where it is."""
    if view.task is None:
        return "it was not trained here"
    if not bug.applies_to(view.config):
        return f"it needs {escape_markdown(bug.rule.partition(':')[0])}"
    if bug.shows == "in training":
        return "" if view.model == FITTING[bug.name] or models.run_and_step(view.model) else "it takes longer to train"
    if not shows_padding(view, bug):
        return "it shows with padding only, and there is none"
    try:
        both = readings(view, bug)
    except (XformerError, RuntimeError):
        return "it does not fit the changes of this run"
    return "" if shows_something(both, bug) else "on this input its answer stays the same"


def _view_of(name: str, view: View) -> View:
    """Another model on the same input where it can read that, else on its own example; as it was trained."""
    subject = models.subject(name)
    source = subject.input.read(subject.input.default)
    if subject.input.name == view.input.name:
        try:
            subject.frame(view.source)
        except InputError:
            pass
        else:
            source = view.source
    return View(name, source, resources.MASKS[0], subject, ())
