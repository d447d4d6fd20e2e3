"""The models of the Bug lab: the model to show a bug on, the runs with and without it, and the diagnosis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

import streamlit as st

from pages.compute import cached_runs, models
from pages.compute.background_job import BackgroundJob, OnStep
from pages.compute.byte_cache import cached, shared
from pages.compute.models import shown_path
from pages.controls.text import escape_markdown
from pages.state.view import View
from xformer.adapters import own_model
from xformer.decoding import decode
from xformer.doctor.equations.case import Mistake
from xformer.doctor.equations.report import check_model
from xformer.doctor.faults import WHOLE_RUNS, Bug
from xformer.doctor.faults.lab import PairedTraining, read_both, right_and_wrong
from xformer.edit_links import join_edits
from xformer.edits import Edit
from xformer.errors import InputError, XformerError
from xformer.model import Transformer
from xformer.reading import Reading

TAB, NAME = "bug_tab", "bug_name"
"""The session keys of the tab and of the bug."""
FITTING = {
    "softmax_over_queries": "reverse-seq2seq",
    "softmax_over_heads": "reverse",
    "causal_off_by_one": "reverse-decoder",
    "causal_ignored": "reverse-decoder",
    "causal_upside_down": "reverse-decoder",
    "masked_with_zero": "reverse-decoder",
    "masked_after_softmax": "reverse-decoder",
    "cross_queries_from_memory": "reverse-seq2seq",
    "cross_roles_swapped": "reverse-seq2seq",
    "forgotten_return": "reverse-seq2seq",
    "split_by_view": "reverse",
    "residual_after_norm": "induction",
    "identical_heads": "reverse",
    "init_too_small": "reverse-mirror",
    "cloned_layers": "sort",
    "no_clipping": "reverse-mirror",
    "loss_on_padding": "reverse-mirror",
    "gate_and_up_swapped": "reverse-modern",
    "kv_heads_tiled": "reverse-modern",
}
"""The shipped models on which bugs have an effect, see `fitting_model`; a test checks all of them."""
WORSE = 0.5
"""Rise of the loss, in nats, from which a bug has an effect: probabilities fall by a factor of e^-0.5 = 0.61."""
MOVED = 0.05
"""Mean change of a pattern's weights from which a bug has an effect on an untrained model."""
MAX_DECODED = 32
"""Maximum number of tokens that each model decodes; the broken model reruns the whole sequence for each."""
Decoded = list[tuple[int, ...]]
"""The tokens that the correct and the broken model decode."""


@dataclass(frozen=True)
class Guess:
    """The visitor's answers in a round of the game: which run is broken, 0 or 1, and the bugs picked so far."""

    broken: int
    bugs: tuple[str, ...] = ()
    has_given_up: bool = False


@dataclass
class BugLabState:
    """The state of the Bug lab in one visit."""

    trainings: dict[str, BackgroundJob[PairedTraining]] = field(default_factory=dict)
    """The trainings of both models, by model, bug, rate and number of steps."""
    guesses: dict[int, Guess] = field(default_factory=dict)
    inputs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The guesses of the visitor and the inputs that they chose, by round."""
    attention_of: tuple[str, str] | None = None
    """The model and the bug for which the head that changed most was last enlarged."""


def state() -> BugLabState:
    """Return the state of this visit."""
    return st.session_state.setdefault("bug_lab", BugLabState())


def fitting_model(bug: str) -> str:
    """Return a shipped model on which a bug has an effect."""
    return FITTING.get(bug, "reverse-small")


def fitting(view: View, bug: Bug) -> tuple[View, str]:
    """Return the view to show the bug on, and why that is not the chosen model; "" where it is."""
    reason, name = no_effect_reason(view, bug), fitting_model(bug.name)
    if not reason or name == view.model or name not in models.shipped() or models.usable(name) is not None:
        return view, ""
    other = _view_of(name, view)
    return example_of(name) if no_effect_reason(other, bug) else other, reason


def _view_of(name: str, view: View) -> View:
    """Return another model as trained, on the same input where it can read it, else on its example."""
    other = example_of(name)
    if other.input.name == view.input.name:
        with suppress(InputError):
            other.adapter.to_example(view.source)
            return replace(other, source=view.source)
    return other


def example_of(name: str) -> View:
    """Return a model as trained, on its example."""
    adapter = models.adapter(name)
    return View(name, adapter.input.read(adapter.input.default), cached_runs.MASKS[0], adapter, ())


def no_effect_reason(view: View, bug: Bug) -> str:
    """Explain, as a clause, why a bug has no effect on a model and an input; "" where it has one."""
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
    """Return whether a bug changes an answer, the loss or, on an untrained model, a pattern."""
    right, wrong = both
    if not math.isfinite(wrong.loss):
        return True
    if bug.shows == "when fresh":
        return max(moved(both).values(), default=0.0) >= MOVED
    return wrong.n_correct < right.n_correct or wrong.loss >= right.loss + WORSE


def moved(both: Sequence[Reading]) -> dict[tuple[str, int], float]:
    """Return the mean absolute change of the pattern's weights by layer path and head; other shapes are left out."""
    (right, wrong), found = both, {}
    for path, pattern in right.trace.patterns().items():
        other = wrong[f"{path}.pattern"]
        if other.shape == pattern.shape:
            apart = (other.nan_to_num(nan=2.0) - pattern)[0].abs().flatten(1).mean(dim=1)  # [head]
            found |= {(path, head): value for head, value in enumerate(apart.tolist())}
    return found


def readings(view: View, bug: Bug) -> list[Reading]:
    """Read with the correct and the broken model. Raises `XformerError` where the changes do not fit the broken model."""

    def make() -> list[Reading]:
        causal, edits = cached_runs.causality(view.mask), join_edits(view.edit_links)
        pair = _models(view.model, bug.name)
        both = read_both(view.own, view.source, bug.name, models=pair, causal=causal, edits=edits)
        more = ("" if causal is None else f", causal={causal!r}") + (f", edits={edits!r}" if edits else "")
        call = f"read_both({shown_path(view.model)!r}, {view.input.text(view.source)!r}, {bug.name!r}{more})"
        return [replace(reading, code=f"{call}[{index}]") for index, reading in enumerate(both)]

    return shared.get(("bug", *_key(view, bug)), make)


def decoded(view: View, bug: Bug, step: OnStep | None = None) -> Decoded:
    """Decode up to `MAX_DECODED` tokens with each model; return an empty list for an encoder.

    Args:
        view: The model and its input.
        bug: The bug.
        step: Called with the number of decoded tokens and their total.
    """
    if not view.own.task.is_decoded or bug.shows != "at once":
        return []

    def both_decoded() -> Decoded:
        both = readings(view, bug)
        n = min(MAX_DECODED, len(both[0].example.answer) + 1)  # with the end token
        edits = (both[0].edits, [*both[1].edits, WHOLE_RUNS])
        return [
            _tokens(reading, changes, n, lambda done, before=index * n: step and step(before + done, 2 * n))
            for index, (reading, changes) in enumerate(zip(both, edits, strict=True))
        ]

    return shared.get(("bug alone", *_key(view, bug)), both_decoded)


def shows_padding(view: View, bug: Bug) -> bool:
    """Return whether a padding bug can have an effect; images and inputs of full length are not padded."""
    free = view.shape.max_len - view.original().example.input_ids.shape[1]
    return bug.shows != "with padding" or (not view.shape.image and free > 0)


@st.cache_data(max_entries=64, show_spinner=False)
def mistakes(name: str, bug: str) -> tuple[list[Mistake], list[Mistake]]:
    """Return the mistakes that the diagnosis finds in the correct and in the broken model."""
    right, wrong = _models(name, bug)
    task = models.checkpoint(name).task
    return check_model(right, task).mistakes, check_model(wrong, task).mistakes


def _key(view: View, bug: Bug) -> tuple[str, tuple[int, ...], str, str, str]:
    return view.model, view.source, view.mask, join_edits(view.edit_links), bug.name


@cached
def _models(name: str, bug: str) -> tuple[Transformer, Transformer]:
    return right_and_wrong(models.checkpoint(name).model, bug)


def _tokens(reading: Reading, edits: Sequence[Edit], n: int, report: Callable[[int], object]) -> tuple[int, ...]:
    found: list[int] = []
    try:
        for step in islice(decode(own_model(reading.adapter), reading.example.tokens, edits=edits), n):
            found.append(step.token)
            report(len(found))
    except (XformerError, RuntimeError):  # no token can be chosen where the logits are not finite
        return ()
    return tuple(found)
