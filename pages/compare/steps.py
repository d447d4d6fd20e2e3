"""How sure the players are: what the ruler draws in the browser, as code, as numbers and as a figure."""

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
from pages.shared.link_widgets import choose, not_here
from pages.shared.picture import footer, table
from xformer import analysis, viz
from xformer.reading import Reading
from xformer.viz.theme import BACKGROUND, RIGHT, WRONG
from xformer.widgets.page import comparison_page


def steps_panel(comparison: Comparison, step: int) -> None:
    """The ruler above has drawn it all; here is where it comes from."""
    rollouts = comparison.rollouts()
    calls = [
        Call(viz.step_lanes, (rollouts,), {"step": step}),
        Call(viz.predictions_by_step, (rollouts,), {"what": "entropy"}),
        Call(viz.divergence_by_step, (rollouts,)),
        Call(viz.likeliest_tokens, (rollouts,), {"step": step}),
    ]
    numbers = table(comparison, analysis.predictions_by_step, rollouts)
    drawn = [calls[0], calls[-1]]  # what stands on the screen: the lanes with their curves, and the likeliest tokens
    footer(comparison, "steps", calls, numbers, page=partial(_standalone, comparison, step), drawn=drawn)


def _standalone(comparison: Comparison, step: int, caption: Sequence[str]) -> str:
    """The ruler as a page of its own, that begins at this step."""
    names = ", ".join(rollout.name for rollout in comparison.rollouts())
    return comparison_page({**comparison.data(), "start": step}, [names, *caption])


RULER = "compare_ruler"


def take_step_of_link(comparison: Comparison) -> None:
    """A step that the link asks for is where the ruler of this comparison begins."""
    if (wanted := asked("step")) is None:
        return
    last = max(map(len, comparison.rollouts())) - 1
    if wanted.isascii() and wanted.isdecimal() and len(wanted) < 6 and int(wanted) <= last:
        state().linked_step = (comparison.about, int(wanted))
    else:
        not_here("step")


def ask_step(comparison: Comparison, *, detail: bool, stays: bool) -> int:
    """Draw the ruler and return the step where it rests.

    It begins where it rested, else at the link's step, else where they part first. `detail` adds the numbers of a step, and
    with `stays` it remains on the screen while one scrolls.
    """
    ground = BACKGROUND[is_dark()]
    rule = (
        "@media (min-height: 600px) { div:has(> .st-key-compare_ruler_at) "
        f"{{ position: sticky; top: 0; z-index: 20; background: {ground}; padding-top: 0.4rem; }} }}"
    )
    st.html(f"<style>{rule if stays else ''}</style>")
    about, linked = state().linked_step or ("", 0)
    order, start = comparison.about, comparison.divergence() or 0
    if about == comparison.about:
        order, start = f"{about}|{linked}", linked  # what a link asks for anew moves the ruler anew
    if (resting := resting_step(RULER, order)) is not None:
        start = min(resting, max(map(len, comparison.rollouts())) - 1)
    with st.container(key="compare_ruler_at"):
        return step_ruler(comparison.data(), order=order, start=start, key=RULER, detail=detail)


ROUNDING = 1e-6
"""Nats: a divergence below it is float32's rounding."""


def compare_notes(comparison: Comparison) -> list[str]:
    """The notes, the parting first."""
    rollouts = comparison.rollouts()
    steps = table(comparison, analysis.predictions_by_step, rollouts)
    return list(_notes(comparison, steps, table(comparison, analysis.divergence_by_step, rollouts)))


def _notes(comparison: Comparison, steps: pd.DataFrame, pairs: pd.DataFrame) -> Iterator[str]:
    yield _parting(comparison, steps)
    if scores := [
        f"{rollout.name[0]} {sum(rollout.right)} of {len(rollout.answer)}"
        for rollout in comparison.rollouts()
        if rollout.right
    ]:
        yield f"Right tokens on this input: {', '.join(scores)}."
    yield from _apart(comparison, pairs)
    if len(pairs) and not bool(pairs["same_context"].all()):
        first = pairs.loc[~pairs["same_context"], "step"].min()
        equal = "" if comparison.forced else " " + _equal_terms(comparison)
        yield (
            f"From {comparison.unit} {first} on (hatched) they have read different tokens, so later differences may only "
            f"follow from the first one.{equal}"
        )


def _parting(comparison: Comparison, steps: pd.DataFrame) -> str:
    """Where they part, with what each says there; or that they do not."""
    unit, parting, rollouts = comparison.unit, comparison.divergence(), comparison.rollouts()
    if parting is None:
        shortest = min(map(len, rollouts))
        if shortest < max(map(len, rollouts)):
            return f"All players say the same for as long as all of them go on, which is up to {unit} {shortest - 1}."
        more = (
            " “Find a difference” looks for an input on which they do not." if len(set(comparison.choices)) > 1 else ""
        )
        return f"All players say the same here, at every {unit}.{more}"
    said = []
    for row in steps.loc[steps["step"] == parting].to_dict("records"):
        verdict = "" if row["right"] is None else f"{RIGHT.mark} right, " if row["right"] else f"{WRONG.mark} wrong, "
        said.append(
            f"{row['player'][0]} says **{escape_markdown(row['token'])}** with probability {row['probability']:.3f} "
            f"({verdict}{row['entropy']:.2f} bits undecided)"
        )
    return f"They part first at {unit} **{parting}**: {'; '.join(said)}."


def _apart(comparison: Comparison, pairs: pd.DataFrame) -> Iterator[str]:
    """How far apart what they believe is, where it can be said in a number."""
    finite = pairs.loc[pairs["kl"] != float("inf")]
    if len(finite) and finite["kl"].max() > ROUNDING:
        most = finite.loc[finite["kl"].idxmax()]
        yield (
            f"What {most['one'][0]} and {most['other'][0]} believe is furthest apart at {comparison.unit} "
            f"{most['step']}, by {most['kl']:.3g} nats (KL), where they say "
            f"{'the same token' if most['same_token'] else 'different tokens'}."
        )
    elif len(finite) and len(finite) == len(pairs):
        largest = finite["kl"].max()
        how = "to the last bit" if largest == 0 else f"to within {ROUNDING:g} nats"
        yield f"Their probabilities are equal {how} at every {comparison.unit} that two of them take."
    if len(finite) < len(pairs):
        yield "A KL of ∞ means that one gives some probability to a token which the other does not have at all."


def _equal_terms(comparison: Comparison) -> str:
    if not comparison.has_right_answer:
        return "“Along it” leads all of them along the text, and so compares them on equal terms."
    return "“Forced” gives all of them the right answer, and so compares them on equal terms."


def ask_pair(comparison: Comparison) -> str:
    """Which two are laid side by side; of two players these two."""
    pairs = {pair: " | ".join(pair) for pair in comparison.pairs}
    if len(pairs) == 1:
        return comparison.pairs[0]
    look: dict[str, Any] = {"label_visibility": "collapsed", "help": "Which two are laid side by side."}
    return choose("pair", pairs, comparison.pairs[0], "Two of them", key="compare_pair", **look)


def places_of(pair: str, readings: Sequence[Reading]) -> tuple[int, int] | None:
    """Where the chosen two stand among those that take a step, or the first two; None where only one does."""
    places = {reading.subject.name[0]: index for index, reading in enumerate(readings)}
    if all(letter in places for letter in pair):
        return places[pair[0]], places[pair[1]]
    return (0, 1) if len(readings) > 1 else None
