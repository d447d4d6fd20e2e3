"""The same input through the model and through its copy with the bug: both readings, and what both write on their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import streamlit as st

from pages.shared import models, resources
from pages.shared.byte_cache import kept, shared
from pages.shared.patience import Step
from pages.shared.shown_path import shown_path
from pages.shared.view import View
from xformer.adapters import own_model
from xformer.bugs import WHOLE_RUNS, Bug
from xformer.bugs.read import read_both, right_and_wrong
from xformer.decoding import decode
from xformer.diagnosis.case import Finding
from xformer.diagnosis.model import examine
from xformer.edits import AnyEdit
from xformer.errors import XformerError
from xformer.interventions import join
from xformer.model import Transformer
from xformer.reading import Reading

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
