"""Choosing a bug: by its kind, then by its name; where the model cannot have it, which model can."""

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
from pages.shared.link import asked, carry
from pages.shared.models import shown_path
from pages.shared.patience import Step
from pages.shared.session import choose_model
from pages.shared.view import View
from pages.shared.widgets import not_here, seed
from xformer.adapters import own_model
from xformer.bugs import BUGS, WHOLE_RUNS, Bug
from xformer.bugs.ends import END_BUGS
from xformer.bugs.lesson import Lesson
from xformer.bugs.masking import MASK_BUGS
from xformer.bugs.read import read_both, right_and_wrong
from xformer.bugs.residuals import RESIDUAL_BUGS
from xformer.bugs.roles import ROLE_BUGS
from xformer.bugs.softmax import SOFTMAX_BUGS
from xformer.bugs.training_bugs import TRAINING_BUGS
from xformer.bugs.weights import WEIGHT_BUGS
from xformer.decoding import decode
from xformer.diagnosis.case import Finding
from xformer.diagnosis.model import examine
from xformer.edits import AnyEdit
from xformer.errors import InputError, XformerError
from xformer.interventions import join
from xformer.model import Transformer
from xformer.reading import Reading

NO_POSITIONS, SOFTMAX_LOSS = END_BUGS
GROUPS: dict[str, tuple[Bug, ...]] = {
    "softmax, scale": SOFTMAX_BUGS,
    "masks": MASK_BUGS,
    "q, k, v, cross": ROLE_BUGS,
    "residual": RESIDUAL_BUGS,
    "positions, weights": (NO_POSITIONS, *WEIGHT_BUGS),
    "training": (SOFTMAX_LOSS, *TRAINING_BUGS),
}
GROUPS["components"] = tuple(bug for bug in BUGS.values() if not any(bug in bugs for bugs in GROUPS.values()))
"""Also the bugs of parts that were registered later."""
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
    "gate-and-up-swapped": "reverse-modern",
    "kv-heads-tiled": "reverse-modern",
    "identical-heads": "reverse",
    "init-too-small": "reverse-mirror",
    "cloned-layers": "sort",
    "no-clipping": "reverse-mirror",
    "loss-on-padding": "reverse-mirror",
}
"""The shipped model that shows a bug on its own example; a test holds that it does."""

OWN = "bug_own"
"""Whether the chosen model is shown even where it shows nothing."""

FIT_USUAL = "reverse-small"
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
    return wrong.n_correct < right.n_correct or wrong.loss >= right.loss + WORSE


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
    name = FITTING.get(bug.name, FIT_USUAL)
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


MOST_WRITTEN = 32
"""So many tokens of a longer answer are written alone: the broken model runs anew for each."""

Written = list[tuple[int, ...]]


def readings(view: View, bug: Bug) -> list[Reading]:
    """What is on the screen, without the bug and with it.

    Raises `XformerError` where the changes do not fit the broken model.
    """

    def make() -> list[Reading]:
        how = _how(view)
        both = read_both(view.own, view.source, bug.name, models=_models(view.model, bug.name), **how)
        said = "".join(f", {name}={value!r}" for name, value in how.items() if value not in (None, ""))
        call = f"read_both({shown_path(view.model)!r}, {view.input.text(view.source)!r}, {bug.name!r}{said})"
        return [replace(reading, recipe=f"{call}[{index}]") for index, reading in enumerate(both)]

    return shared.get(("bug", *_what(view, bug)), make)


def written(view: View, bug: Bug, step: Step | None = None) -> Written:
    """The first `MOST_WRITTEN` tokens that each writes, where the model writes token by token; else none.

    `step(done, of)` is told how much both have written.
    """
    if not view.own.task.is_decoded or bug.shows != "at once":
        return []
    return shared.get(("bug alone", *_what(view, bug)), partial(_written, readings(view, bug), step))


def n_padding(reading: Reading) -> int:
    """How many cells at the end of what is read are no tokens."""
    return 0 if reading.trace.valid is None else int((~reading.trace.valid).sum())


def shows_padding(view: View, bug: Bug) -> bool:
    """Whether the bug can be seen on this model's input: images are never padded, nor is what fills the model."""
    room = view.shape.max_len - view.original().example.stream.shape[1]
    return bug.shows != "with padding" or (not view.shape.image and room > 0)


@st.cache_data(max_entries=64, show_spinner=False)
def verdict(name: str, bug: str) -> tuple[list[Finding], list[Finding]]:
    """What a diagnosis finds in a run of the model without the bug, and in one of the model with it."""
    right, wrong = _models(name, bug)
    task = models.checkpoint(name).task
    return examine(right, task), examine(wrong, task)


def _how(view: View) -> dict[str, Any]:
    """Mask and interventions, as `read_both` takes them."""
    causal = None if view.mask == resources.MASKS[0] else view.mask == "causal"
    return {"causal": causal, "changes": join(view.interventions)}


def _what(view: View, bug: Bug) -> tuple[str, tuple[int, ...], str, str, str]:
    return view.model, view.source, view.mask, join(view.interventions), bug.name


@kept
def _models(name: str, bug: str) -> tuple[Transformer, Transformer]:
    return right_and_wrong(models.checkpoint(name).model, bug)


def _written(both: Sequence[Reading], step: Step | None) -> Written:
    n = min(MOST_WRITTEN, len(both[0].example.answer) + 1)  # an end token too
    edits = (both[0].edits, [*both[1].edits, WHOLE_RUNS])
    return [
        _tokens(reading, changes, n, lambda done, before=index * n: step and step(before + done, 2 * n))
        for index, (reading, changes) in enumerate(zip(both, edits, strict=True))
    ]


def _tokens(reading: Reading, edits: Sequence[AnyEdit], n: int, tell: Callable[[int], object]) -> tuple[int, ...]:
    found: list[int] = []
    try:
        for step in islice(decode(own_model(reading.subject), reading.example.tokens, edits=edits), n):
            found.append(step.token)
            tell(len(found))
    except (XformerError, RuntimeError):  # nothing can be chosen among scores that are no numbers
        return ()
    return tuple(found)


@dataclass
class State:
    """Private to the visit."""

    lessons: dict[str, Job[Lesson]] = field(default_factory=dict)
    """What is being trained, and what was, by model, bug, rate and steps."""
    attention_of: tuple[str, str] | None = None
    """The model and the bug whose head that moved most was enlarged last."""


def state() -> State:
    """That of this visit."""
    return st.session_state.setdefault("bug_lab", State())
