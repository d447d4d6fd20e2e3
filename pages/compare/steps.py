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
from pages.shared.layout import is_dark
from pages.shared.link import asked
from pages.shared.picture import footer, table
from pages.shared.widgets import choose, not_here
from xformer import analysis, viz
from xformer.viz.theme import BACKGROUND, RIGHT, WRONG
from xformer.widgets.page import comparison_page

RULER = "compare_ruler"
ROUNDING = 1e-6
"""Divergences in nats below this are float32 rounding errors."""


def take_step_of_link(comparison: Comparison) -> None:
    """Have the ruler start at the step that the link asks for."""
    if (wanted := asked("step")) is None:
        return
    last = max(map(len, comparison.rollouts())) - 1
    if wanted.isascii() and wanted.isdecimal() and len(wanted) < 6 and int(wanted) <= last:
        state().linked_step = (comparison.about, int(wanted))
    else:
        not_here("step")


def ask_step(comparison: Comparison, *, detail: bool, stays: bool) -> int:
    """Draw the ruler and return its step: at first the step of the link, else the first divergence.

    Args:
        comparison: The variants and their input.
        detail: Whether the probabilities of the step are listed too.
        stays: Whether the ruler stays on the screen while the page is scrolled.
    """
    rule = (
        "@media (min-height: 600px) { div:has(> .st-key-compare_ruler_at) "
        f"{{ position: sticky; top: 0; z-index: 20; background: {BACKGROUND[is_dark()]}; padding-top: 0.4rem; }} }}"
    )
    st.html(f"<style>{rule if stays else ''}</style>")
    about, linked = state().linked_step or ("", 0)
    order, start = comparison.about, comparison.divergence() or 0
    if about == comparison.about:
        order, start = f"{about}|{linked}", linked  # a new step in the link moves the ruler again
    if (resting := resting_step(RULER, order)) is not None:
        start = min(resting, max(map(len, comparison.rollouts())) - 1)
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
    rollouts = comparison.rollouts()
    lanes, tokens = (Call(draw, (rollouts,), {"step": step}) for draw in (viz.step_lanes, viz.likeliest_tokens))
    entropy = Call(viz.predictions_by_step, (rollouts,), {"what": "entropy"})
    calls = [lanes, entropy, Call(viz.divergence_by_step, (rollouts,)), tokens]
    numbers = table(comparison, analysis.predictions_by_step, rollouts)
    page = partial(_standalone, comparison, step)
    footer(comparison, "steps", calls, numbers, page=page, drawn=[lanes, tokens])


def _standalone(comparison: Comparison, step: int, caption: Sequence[str]) -> str:
    """The ruler at this step as a page of its own."""
    names = ", ".join(rollout.name for rollout in comparison.rollouts())
    return comparison_page({**comparison.data(), "start": step}, [names, *caption])


def compare_notes(comparison: Comparison) -> Iterator[str]:
    """What to notice: where the predictions differ first, and by how much."""
    rollouts = comparison.rollouts()
    steps = table(comparison, analysis.predictions_by_step, rollouts)
    pairs = table(comparison, analysis.divergence_by_step, rollouts)
    yield _parting(comparison, steps)
    if scores := [
        f"{letter} {sum(rollout.right)} of {len(rollout.answer)}"
        for letter, rollout in zip(comparison.letters, rollouts, strict=True)
        if rollout.right
    ]:
        yield f"Right tokens on this input: {', '.join(scores)}."
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


def _parting(comparison: Comparison, steps: pd.DataFrame) -> str:
    """The first step with different predictions, and the predictions there."""
    unit, parting, rollouts = comparison.unit, comparison.divergence(), comparison.rollouts()
    if parting is None:
        shortest = min(map(len, rollouts))
        if shortest < max(map(len, rollouts)):
            return f"All models predict the same tokens up to {unit} {shortest - 1}, where the first of them ends."
        is_search_useful = len(set(comparison.variants)) > 1
        more = " “Find a difference” looks for an input on which they differ." if is_search_useful else ""
        return f"All models predict the same tokens here, at every {unit}.{more}"
    letters, found = comparison.letter_by_name, []
    for row in steps.loc[steps["step"] == parting].to_dict("records"):
        verdict = "" if row["right"] is None else f"{RIGHT.mark} right, " if row["right"] else f"{WRONG.mark} wrong, "
        found.append(
            f"{letters[row['model']]} predicts **{escape_markdown(row['token'])}** with probability "
            f"{row['probability']:.3f} ({verdict}entropy {row['entropy']:.2f} bits)"
        )
    return f"They differ first at {unit} **{parting}**: {'; '.join(found)}."


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
