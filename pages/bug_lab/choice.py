"""The bug and the model that it is shown on, and the runs of the right and the broken model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import streamlit as st

from pages.shared import models, resources
from pages.shared.background_job import Job
from pages.shared.byte_cache import kept, shared
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link import carry
from pages.shared.models import shown_path
from pages.shared.patience import Step
from pages.shared.session import choose_model
from pages.shared.view import View
from pages.shared.widgets import not_here, seed
from xformer.adapters import own_model
from xformer.bugs import BUGS, WHOLE_RUNS, Bug
from xformer.bugs.attention import MASK_BUGS, ROLE_BUGS, SOFTMAX_BUGS
from xformer.bugs.lab import Lesson, read_both, right_and_wrong
from xformer.bugs.network import END_BUGS, RESIDUAL_BUGS, TRAINING_BUGS, WEIGHT_BUGS
from xformer.decoding import decode
from xformer.diagnosis.case import Finding
from xformer.diagnosis.diagnose import examine
from xformer.edits import AnyEdit
from xformer.errors import InputError, XformerError
from xformer.interventions import join
from xformer.model import Transformer
from xformer.reading import Reading

NO_POSITIONS, SOFTMAX_LOSS = END_BUGS
GROUPS: dict[str, tuple[Bug, ...]] = {
    "softmax": SOFTMAX_BUGS,
    "masks": MASK_BUGS,
    "roles": ROLE_BUGS,
    "residual": RESIDUAL_BUGS,
    "weights": (NO_POSITIONS, *WEIGHT_BUGS),
    "training": (SOFTMAX_LOSS, *TRAINING_BUGS),
}
GROUPS["components"] = tuple(bug for bug in BUGS.values() if not any(bug in bugs for bugs in GROUPS.values()))
"""Every other bug, so that a new one has a place."""
GROUP_TITLES = {
    "softmax": "softmax, scale",
    "masks": "masks",
    "roles": "q, k, v, cross",
    "residual": "residual",
    "weights": "positions, weights",
    "training": "training",
    "components": "components",
}
FIRST_BUG = "no-scale"
NAME, OWN, TAB = "bug_name", "bug_own", "bug_tab"
"""The session keys of the bug, of whether a model is shown on which it has no effect, and of the tab."""
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
    "gate-and-up-swapped": "reverse-modern",
    "kv-heads-tiled": "reverse-modern",
}
"""The shipped model on which a bug has an effect; a test checks each of them."""
FITTING_OTHERS = "reverse-small"
WORSE = 0.5
"""The rise of the loss in nats from which a bug has an effect: a factor of e^-0.5 = 0.61 in the probabilities."""
MOVED = 0.05
"""The mean change of a pattern's weights from which a bug has an effect on an untrained model."""
MOST_WRITTEN = 32
"""Maximum tokens that each model decodes: the broken model runs anew for each."""
Written = list[tuple[int, ...]]
"""The tokens that the right and the broken model decode."""


@dataclass
class State:
    """The Bug lab's state that is private to a visit."""

    lessons: dict[str, Job[Lesson]] = field(default_factory=dict)
    """The trainings of both models, by model, bug, rate and steps."""
    guesses: dict[int, Any] = field(default_factory=dict)
    """The answers of the visitor, by the round of the game."""
    attention_of: tuple[str, str] | None = None
    """The model and the bug for which the head that changed most was enlarged last."""


def state() -> State:
    """The state of this visit."""
    return st.session_state.setdefault("bug_lab", State())


def ask_bug(wanted: str | None) -> Bug:
    """Ask for a bug, by groups; `wanted` is the one of the link."""
    if wanted is not None and wanted not in BUGS:
        not_here("bug")
    if wanted in BUGS or st.session_state.get(NAME) not in BUGS:
        st.session_state[NAME] = wanted if wanted in BUGS else FIRST_BUG
    carry(NAME)
    groups = {bug.name: GROUP_TITLES[group] for group, bugs in GROUPS.items() for bug in bugs}
    st.selectbox(
        "Bug",
        list(groups),
        format_func=lambda name: f"{groups[name]}: {BUGS[name].title}",
        key=NAME,
        persist_state="session",
        label_visibility="collapsed",
        width=380,
    )
    return BUGS[st.session_state[NAME]]


def no_such_bug_here(view: View, bug: Bug) -> None:
    """Say why this model cannot have the bug, and offer models that can."""
    st.info(
        f"{escape_markdown(models.title_of(view.model))} cannot have this bug: it needs {escape_markdown(bug.rule)}.",
        icon=":material/bug_report:",
    )
    usable = [name for name in models.shipped() if models.usable(name) is None]
    can = [name for name in usable if bug.applies_to(models.checkpoint(name).config)]
    if not can:
        st.caption("No shipped model can have it; one from the Train screen with that setting could.")
        return
    with st.container(horizontal=True, gap="small"):
        for name in can[:4]:
            _choose_button(name)


def ask_fitting(view: View, bug: Bug) -> tuple[View, dict[str, str]]:
    """The model and input on which the bug is shown, and what the link keeps.

    Where the bug has no effect on the chosen model, another one is shown, with the reason and buttons to choose. The model of
    the other screens stays the same.
    """
    seed("own", (0, 1), 0, key=OWN)
    name = escape_markdown(models.title_of(view.model))
    other, reason = fitting(view, bug)
    if not reason:
        return view, {}
    is_own, other_name = bool(st.session_state[OWN]), escape_markdown(other.model)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="bug_fit"):
        if is_own:
            st.caption(f":material/info: This bug has no effect on {name}: {reason}.", width="content")
            _own_button(f"Show it on {other_name}", 0, "bug_fit_other")
            return view, {"own": "1"}
        words = f":material/swap_horiz: Shown on **{other_name}**; the bug has no effect on {name}: {reason}."
        st.caption(words, width="content")
        if view.task is not None and bug.applies_to(view.config):
            _own_button(f"Show {name} anyway", 1, "bug_fit_own")
        _choose_button(other.model)
    return other, {}


def _choose_button(model: str) -> None:
    """A button that shows a model on all screens."""
    choose: dict[str, Any] = {"on_click": choose_model, "args": (model,)}
    st.button(f"Choose {escape_markdown(model)}", key=f"bug_model_{model}", **choose)


def _own_button(words: str, value: int, key: str) -> None:
    st.button(words, on_click=st.session_state.__setitem__, args=(OWN, value), key=key, type="tertiary")


def fitting(view: View, bug: Bug) -> tuple[View, str]:
    """What to show the bug on, and why that is not the chosen model; "" where it is."""
    reason, name = no_effect_reason(view, bug), FITTING.get(bug.name, FITTING_OTHERS)
    if not reason or name == view.model or name not in models.shipped() or models.usable(name) is not None:
        return view, ""
    other = _view_of(name, view)
    return example_of(name) if no_effect_reason(other, bug) else other, reason


def _view_of(name: str, view: View) -> View:
    """Another model as trained, on the same input where it can read that, else on its example."""
    other = example_of(name)
    if other.input.name == view.input.name:
        try:
            other.subject.frame(view.source)
        except InputError:
            return other
        return replace(other, source=view.source)
    return other


def example_of(name: str) -> View:
    """A model as trained, on its example."""
    subject = models.subject(name)
    return View(name, subject.input.read(subject.input.default), resources.MASKS[0], subject, ())


def no_effect_reason(view: View, bug: Bug) -> str:
    """Why a bug has no effect on a model and an input, as the end of a sentence; "" where it has."""
    if view.task is None:
        return "it was not trained here"
    if not bug.applies_to(view.config):
        return f"it needs {escape_markdown(bug.rule.partition(':')[0])}"
    if bug.shows == "in training":
        return "" if view.model == FITTING[bug.name] or models.run_and_step(view.model) else "it takes longer to train"
    if not shows_padding(view, bug):
        return "the bug needs padding, and there is none"
    try:
        both = readings(view, bug)
    except (XformerError, RuntimeError):
        return "it does not fit the changes of this run"
    return "" if has_effect(both, bug) else "on this input its answer stays the same"


def has_effect(both: Sequence[Reading], bug: Bug) -> bool:
    """Whether a bug changes an answer, the loss or, on an untrained model, a pattern."""
    right, wrong = both
    if not math.isfinite(wrong.loss):
        return True
    if bug.shows == "when fresh":
        return max(moved(both).values(), default=0.0) >= MOVED
    return wrong.n_correct < right.n_correct or wrong.loss >= right.loss + WORSE


def moved(both: Sequence[Reading]) -> dict[tuple[str, int], float]:
    """By layer path and head, the mean absolute change of the pattern's weights; heads with another shape are left out."""
    (right, wrong), found = both, {}
    for path, pattern in right.trace.patterns().items():
        other = wrong[f"{path}.pattern"]
        if other.shape == pattern.shape:
            apart = (other.nan_to_num(nan=2.0) - pattern)[0].abs().flatten(1).mean(dim=1)  # [head]
            found |= {(path, head): value for head, value in enumerate(apart.tolist())}
    return found


def readings(view: View, bug: Bug) -> list[Reading]:
    """The readings of the right and the broken model. Raises `XformerError` where the changes do not fit the broken model."""

    def make() -> list[Reading]:
        causal = None if view.mask == resources.MASKS[0] else view.mask == "causal"
        how: dict[str, Any] = {"causal": causal, "changes": join(view.interventions)}
        both = read_both(view.own, view.source, bug.name, models=_models(view.model, bug.name), **how)
        more = "".join(f", {name}={value!r}" for name, value in how.items() if value not in (None, ""))
        call = f"read_both({shown_path(view.model)!r}, {view.input.text(view.source)!r}, {bug.name!r}{more})"
        return [replace(reading, recipe=f"{call}[{index}]") for index, reading in enumerate(both)]

    return shared.get(("bug", *_key(view, bug)), make)


def written(view: View, bug: Bug, step: Step | None = None) -> Written:
    """The first `MOST_WRITTEN` tokens that each model decodes; none where the model is an encoder.

    Args:
        view: The model and its input.
        bug: The bug.
        step: Called with the number of decoded tokens and their total.
    """
    if not view.own.task.is_decoded or bug.shows != "at once":
        return []
    return shared.get(("bug alone", *_key(view, bug)), partial(_written, readings(view, bug), step))


def n_padding(reading: Reading) -> int:
    """The number of padded positions."""
    return 0 if reading.trace.valid is None else int((~reading.trace.valid).sum())


def shows_padding(view: View, bug: Bug) -> bool:
    """Whether a bug of padding can have an effect: images and inputs of full length are not padded."""
    free = view.shape.max_len - view.original().example.stream.shape[1]
    return bug.shows != "with padding" or (not view.shape.image and free > 0)


@st.cache_data(max_entries=64, show_spinner=False)
def findings(name: str, bug: str) -> tuple[list[Finding], list[Finding]]:
    """The findings of the diagnosis for the right and for the broken model."""
    right, wrong = _models(name, bug)
    task = models.checkpoint(name).task
    return examine(right, task), examine(wrong, task)


def _key(view: View, bug: Bug) -> tuple[str, tuple[int, ...], str, str, str]:
    return view.model, view.source, view.mask, join(view.interventions), bug.name


@kept
def _models(name: str, bug: str) -> tuple[Transformer, Transformer]:
    return right_and_wrong(models.checkpoint(name).model, bug)


def _written(both: Sequence[Reading], step: Step | None) -> Written:
    n = min(MOST_WRITTEN, len(both[0].example.answer) + 1)  # with the end token
    edits = (both[0].edits, [*both[1].edits, WHOLE_RUNS])
    return [
        _tokens(reading, changes, n, lambda done, before=index * n: step and step(before + done, 2 * n))
        for index, (reading, changes) in enumerate(zip(both, edits, strict=True))
    ]


def _tokens(reading: Reading, edits: Sequence[AnyEdit], n: int, report: Callable[[int], object]) -> tuple[int, ...]:
    found: list[int] = []
    try:
        for step in islice(decode(own_model(reading.subject), reading.example.tokens, edits=edits), n):
            found.append(step.token)
            report(len(found))
    except (XformerError, RuntimeError):  # no token can be chosen where the logits are not finite
        return ()
    return tuple(found)
