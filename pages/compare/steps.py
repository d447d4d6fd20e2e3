"""The ruler that steps through the predictions, the pair that is compared, and the notes on where predictions differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.compare.comparison import Comparison, state
from pages.components.step_ruler import resting_step, step_ruler
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link import asked
from pages.shared.picture import footer, table
from pages.shared.widgets import choose, not_here
from xformer import analysis, viz
from xformer.viz.theme import RIGHT, WRONG
from xformer.widgets.page import comparison_page

RULER = "compare_ruler"
ROUNDING = 1e-6
"""Divergences in nats below this are float32 rounding errors."""


def take_step_of_link(comparison: Comparison) -> None:
    """Have the ruler start at the step that the link asks for."""
    if (wanted := asked("step")) is None:
        return
    last = max(map(len, comparison.runs())) - 1
    if wanted.isascii() and wanted.isdecimal() and len(wanted) < 6 and int(wanted) <= last:
        state().linked_step = (comparison.about, int(wanted))
    else:
        not_here("step")


def ask_step(comparison: Comparison, *, detail: bool) -> int:
    """Draw the ruler and return its step: at first the step of the link, else the first divergence.

    Args:
        comparison: The variants and their input.
        detail: Whether the probabilities of the step are listed too.
    """
    about, linked = state().linked_step or ("", 0)
    order, start = comparison.about, comparison.divergence() or 0
    if about == comparison.about:
        order, start = f"{about}|{linked}", linked  # a new step in the link moves the ruler again
    if (resting := resting_step(RULER, order)) is not None:
        start = min(resting, max(map(len, comparison.runs())) - 1)
    with st.container(key="compare_ruler_at"):
        return step_ruler(comparison.data(), order=order, start=start, key=RULER, detail=detail)


def ask_pair(comparison: Comparison) -> str:
    """Ask which two of three or four variants are compared in detail, as two letters."""
    pairs = {pair: " | ".join(pair) for pair in comparison.pairs}
    if len(pairs) == 1:
        return comparison.pairs[0]
    look: dict[str, Any] = {"label_visibility": "collapsed", "help": "The two models that are compared in detail."}
    return choose("pair", pairs, comparison.pairs[0], "Pair", key="compare_pair", **look)


def places_of(pair: str, letters: Sequence[str]) -> tuple[int, int] | None:
    """The indices of the chosen pair among the variants that take a step, else of the first two; None for one variant."""
    if all(letter in letters for letter in pair):
        return letters.index(pair[0]), letters.index(pair[1])
    return (0, 1) if len(letters) > 1 else None


def steps_panel(comparison: Comparison, step: int) -> None:
    """The code, numbers and figures of what the ruler shows."""
    runs = comparison.runs()
    lanes, tokens = (Call(draw, (runs,), {"step": step}) for draw in (viz.step_lanes, viz.likeliest_tokens))
    entropy = Call(viz.predictions_by_step, (runs,), {"what": "entropy"})
    calls = [lanes, entropy, Call(viz.divergence_by_step, (runs,)), tokens]
    numbers = table(comparison, analysis.predictions_by_step, runs)
    page = partial(_standalone, comparison, step)
    footer(comparison, "steps", calls, numbers, page=page, drawn=[lanes, tokens])


def _standalone(comparison: Comparison, step: int, caption: Sequence[str]) -> str:
    """The ruler at this step as a page of its own."""
    names = ", ".join(run.name for run in comparison.runs())
    return comparison_page({**comparison.data(), "start": step}, [names, *caption])


def compare_notes(comparison: Comparison) -> Iterator[str]:
    """What to notice: where the predictions differ first, and by how much."""
    runs = comparison.runs()
    steps = table(comparison, analysis.predictions_by_step, runs)
    pairs = table(comparison, analysis.divergence_by_step, runs)
    yield from _first_difference(comparison, steps)
    yield from _divergence(comparison, pairs)
    if len(pairs) and not bool(pairs["same_context"].all()):
        first = pairs.loc[~pairs["same_context"], "step"].min()
        given = "the right answer" if comparison.has_right_answer else "the text"
        equal = (
            "" if comparison.forced else f" “Teacher-forced” gives all of them {given}, so that they can be compared."
        )
        yield (
            f"From {comparison.unit} {first} on (hatched) the models have read different tokens, so a later difference may "
            f"only follow from the first one.{equal}"
        )


def compare_headline(comparison: Comparison) -> str:
    """How many tokens each model predicts right, where that differs, and the first step with different predictions."""
    runs, unit, at = comparison.runs(), comparison.unit, comparison.divergence()
    if at is None:
        shortest = min(map(len, runs))
        if shortest < max(map(len, runs)):
            return f"All models predict the same tokens up to {unit} {shortest - 1}, where the first of them ends."
        return f"All models predict the same tokens here, at every {unit}."
    first = f"hey first differ at {unit} **{at}**."
    if not comparison.has_right_answer:
        return f"T{first}"
    right = [f"{escape_markdown(run.name)}: **{sum(run.right)} of {len(run.answer)}** right" for run in runs]
    return f"{'; '.join(right)}. T{first}"


def _first_difference(comparison: Comparison, steps: pd.DataFrame) -> Iterator[str]:
    """The predictions at the first step where they differ."""
    divergence = comparison.divergence()
    if divergence is None:
        return
    letters, found = comparison.letter_by_name, []
    for row in steps.loc[steps["step"] == divergence].to_dict("records"):
        verdict = "" if row["right"] is None else f"{RIGHT.mark} right, " if row["right"] else f"{WRONG.mark} wrong, "
        found.append(
            f"{letters[row['model']]} predicts **{escape_markdown(row['token'])}** with probability "
            f"{row['probability']:.3f} ({verdict}entropy {row['entropy']:.2f} bits)"
        )
    yield f"At {comparison.unit} {divergence} {'; '.join(found)}."


def _divergence(comparison: Comparison, pairs: pd.DataFrame) -> Iterator[str]:
    """The largest divergence of two predicted distributions."""
    letters = comparison.letter_by_name
    finite = pairs.loc[pairs["kl"] != float("inf")]
    if len(finite) and finite["kl"].max() > ROUNDING:
        most = finite.loc[finite["kl"].idxmax()]
        yield (
            f"The distributions of {letters[most['one']]} and {letters[most['other']]} differ most at {comparison.unit} "
            f"{most['step']}, by {most['kl']:.3g} nats (KL); their likeliest tokens there are "
            f"{'the same' if most['same_token'] else 'different'}."
        )
    elif len(finite) and len(finite) == len(pairs):
        how = "to the last bit" if finite["kl"].max() == 0 else f"to within {ROUNDING:g} nats"
        yield f"Their probabilities are equal {how} at every {comparison.unit} that two of them take."
    if len(finite) < len(pairs):
        yield "A KL of ∞ means that one model gives some probability to a token that the other does not have at all."
