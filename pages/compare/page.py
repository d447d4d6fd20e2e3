"""Compare: where do predictions differ? Two to four models on one input, two inputs of one model, or a steered model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.compare.comparison import (
    ROUNDING,
    Comparison,
    in_link,
    incomparable_reason,
    incompatibility_reason,
    letter_in,
    pair_indices,
    selection_of_other_screens,
    state,
)
from pages.compare.one_model import one_model, pairs_panel, steering_panel
from pages.compare.panels import lengths_panel, lens_panel, many_panel, patching_panel, patterns_panel, rows_panel
from pages.compare.sidebar import ask_input, ask_variants, input_in_link, show_waiting, variants_in_link
from pages.compare.texts import compares_texts, no_text_reason, texts_panel
from pages.components.elements import resting_step, step_ruler
from pages.compute import models, visible_runs
from pages.compute.background_job import interruptible_progress
from pages.compute.call import picture_call
from pages.compute.picture import footer, table, toolbar
from pages.controls import embed
from pages.controls.text import escape_markdown, headline, what_to_notice
from pages.controls.widgets import choose, seed, warn_unknown
from pages.state import link as link_of_screen
from pages.state.link import take_parameter
from pages.state.session import ScreenSelection
from xformer import analysis, viz
from xformer.errors import XformerError
from xformer.formatting import percent
from xformer.widgets.page import comparison_page

MODES = {"models": "models", "pairs": "inputs", "steering": "steering"}
PANELS = {
    "steps": "Predictions",
    "attention": "Attention",
    "rows": "Heads",
    "lens": "Logit lens",
    "patching": "Patching",
    "many": "Many inputs",
    "lengths": "Input lengths",
}
TABS = ("steps", "attention")
"""The panels with a tab of their own; “More” lists the others."""
OF_ALL_STEPS = {"many": many_panel, "lengths": lengths_panel}
OF_ONE_MODEL = {"pairs": pairs_panel, "steering": steering_panel}
OF_A_PAIR = {"attention": patterns_panel, "patching": patching_panel}
"""Panels of two models at one step; the other panels show all models."""
RULER = "compare_ruler"


def page() -> None:
    st.title("Compare :small[:gray[Where do two models disagree?]]", anchor=False)
    if not models.shipped() and not visible_runs.trained():
        st.info("There is no model here yet. Train the shipped ones with `make checkpoints`, then reload this page.")
        return
    selection = selection_of_other_screens()
    if reason := "" if models.usable(selection.model) else no_text_reason(selection.model):
        st.info(escape_markdown(reason), icon=":material/info:")
        link_of_screen.share(in_link(selection))
        return
    with st.sidebar:
        what = choose("compare", MODES, "Compare", key="compare_what")
    if what == "models" and "a" not in st.query_params and compares_texts(selection.model):
        what = "texts"
    if what == "models":
        _variants(selection)
        return
    with embed.picture():
        texts_panel(selection) if what == "texts" else one_model(selection, OF_ONE_MODEL[what])


def _variants(selection: ScreenSelection) -> None:
    """Two to four models on one input."""
    if reason := incomparable_reason(selection.model):
        st.caption(f":material/info: {escape_markdown(reason)} It stays the model of the other screens.")
    with st.sidebar:
        variants = ask_variants(selection)
    link = in_link(selection) | variants_in_link(variants)
    if reason := incompatibility_reason(variants):
        st.info(escape_markdown(reason), icon=":material/compare_arrows:")
        link_of_screen.share(link)
        return
    with st.sidebar:
        comparison = ask_input(variants, selection)
    link |= input_in_link(comparison, selection)
    if comparison.has_decoder:
        link["mode"] = "forced" if comparison.forced else "free"
    link_of_screen.share(link)
    show_waiting(variants, comparison.source)
    try:
        with interruptible_progress("The models predict") as step:
            comparison.runs(step)
    except XformerError as error:
        st.error(escape_markdown(str(error)), icon=":material/error:")
        return
    _take_step_of_link(comparison)
    st.fragment(_draw_step)(comparison, link)


def _draw_step(comparison: Comparison, link: dict[str, str]) -> None:
    """Draw the part of the page that depends on the step and the panel."""
    headline(compare_headline(comparison))
    bar = toolbar()
    with bar:
        panel = _ask_panel()
        pair = _ask_pair(comparison)
    with embed.picture():
        step = _ask_step(comparison, detail=panel == "steps")
        link = link | {"panel": panel, "step": str(step)} | ({"pair": pair} if len(comparison.variants) > 2 else {})
        if panel == "steps":
            _steps_panel(comparison, step)
        elif panel in OF_ALL_STEPS:
            link |= OF_ALL_STEPS[panel](comparison)
        else:
            link |= _at_step(comparison, panel, step, pair, bar)
    what_to_notice(compare_notes(comparison))
    link_of_screen.share(link)


def _at_step(comparison: Comparison, panel: str, step: int, pair: str, bar: Any) -> dict[str, str]:
    """Draw a panel of one step; return what the link keeps."""
    by_letter = comparison.readings(step)
    readings, two = list(by_letter.values()), pair_indices(pair, list(by_letter))
    if two is None:
        unit = comparison.unit
        st.info(f"Only one model takes {unit} {step}; the others have already ended.", icon=":material/flag:")
        return {}
    if panel in OF_A_PAIR:
        return OF_A_PAIR[panel](comparison, step, [readings[at] for at in two], bar)
    (rows_panel if panel == "rows" else lens_panel)(comparison, step, readings, two)
    return {}


def _ask_panel() -> str:
    """Ask for the panel: `TABS` and the chosen one are tabs, the others are behind “More”."""
    key = "compare_panel"
    seed("panel", list(PANELS), "steps", key=key)
    tabs = {name: PANELS[name] for name in (*TABS, st.session_state[key])}
    chosen = choose("panel", tabs, "Panel", key=key, width="content", hide_label=True)
    with st.popover("More", key="compare_more"):
        for name in [name for name in PANELS if name not in tabs]:
            show, open_key = partial(st.session_state.__setitem__, key, name), f"compare_open_{name}"
            st.button(PANELS[name], on_click=show, type="tertiary", width="stretch", key=open_key)
    return chosen


def _ask_pair(comparison: Comparison) -> str:
    """Ask which two of three or four variants to compare in detail; return their letters."""
    pairs = {pair: " | ".join(pair) for pair in comparison.pairs}
    if len(pairs) == 1:
        return comparison.pairs[0]
    help = "The two models to compare in detail."
    return choose("pair", pairs, "Pair", key="compare_pair", hide_label=True, help=help)


def _take_step_of_link(comparison: Comparison) -> None:
    """Start the ruler at the step in the link."""
    if (wanted := take_parameter("step")) is None:
        return
    steps = [str(step) for step in range(max(map(len, comparison.runs())))]
    if wanted in steps:
        state().linked_step = (comparison.about, steps.index(wanted))
    else:
        warn_unknown("step")


def _ask_step(comparison: Comparison, *, detail: bool) -> int:
    """Draw the ruler and return its step: at first the step of the link, else the first divergence.

    Args:
        comparison: The variants and their input.
        detail: Whether to list the probabilities of the step as well.
    """
    about, linked = state().linked_step or ("", 0)
    order, start = comparison.about, comparison.divergence() or 0
    if about == comparison.about:
        order, start = f"{about}|{linked}", linked  # a new step in the link moves the ruler again
    if (resting := resting_step(RULER, order)) is not None:
        start = min(resting, max(map(len, comparison.runs())) - 1)
    with st.container(key="compare_ruler_at"):
        return step_ruler(comparison.data(), order=order, start=start, key=RULER, detail=detail)


def _steps_panel(comparison: Comparison, step: int) -> None:
    """Draw the menu of the ruler: its code, numbers and figures."""
    runs = comparison.runs()
    lanes, tokens = (picture_call(draw, runs, step=step) for draw in (viz.step_lanes, viz.likeliest_tokens))
    entropy = picture_call(viz.predictions_by_step, runs, what="entropy")
    calls = [lanes, entropy, picture_call(viz.divergence_by_step, runs), tokens]
    numbers = table(comparison, analysis.predictions_by_step, runs)

    def page(caption: Sequence[str]) -> str:
        return comparison_page({**comparison.data(), "start": step}, [", ".join(comparison.names), *caption])

    footer(comparison, "steps", calls, numbers, page=page, drawn=[lanes, tokens])


def compare_headline(comparison: Comparison) -> str:
    """Describe how many tokens each model predicts correctly, and the first step with different predictions."""
    runs, unit, at = comparison.runs(), comparison.unit, comparison.divergence()
    if at is None:
        return f"All models predict the same tokens at every {unit} that they share."
    first = f"They first differ at {unit} **{at}**."
    if not comparison.has_right_answer:
        return first
    right = [f"{escape_markdown(run.name)}: **{sum(run.right)} of {len(run.answer)}** right" for run in runs]
    return f"{'; '.join(right)}. {first}"


def compare_notes(comparison: Comparison) -> Iterator[str]:
    """Yield what to notice: the largest divergence, and from which step on the models have read different tokens."""
    runs = comparison.runs()
    pairs = table(comparison, analysis.divergence_by_step, runs)
    if len(pairs):
        yield _divergence(comparison, pairs)
    if len(pairs) and not bool(pairs["same_context"].all()):
        first = pairs.loc[~pairs["same_context"], "step"].min()
        remedy = "" if comparison.forced else " “Teacher-forced” gives all of them the same tokens."
        yield (
            f"From {comparison.unit} {first} on (hatched) the models have read different tokens, so later differences "
            f"may be consequences of the first one.{remedy}"
        )


def _divergence(comparison: Comparison, pairs: pd.DataFrame) -> str:
    """Describe the largest divergence between two predicted distributions."""
    most = pairs.loc[pairs["kl"].idxmax()]
    if most["kl"] <= ROUNDING:
        return f"Their probabilities are equal to within {ROUNDING:g} nats at every {comparison.unit} that two of them share."
    if is_infinite := math.isinf(most["kl"]):  # the vocabularies differ
        most = pairs.loc[pairs["total_variation"].idxmax()]
    pair = f"{letter_in(most['one'])} and {letter_in(most['other'])}"
    if is_infinite:
        apart = f"{percent(most['total_variation'], 0)} of the probability is on other tokens"
        infinite = "KL is infinite, because one of them has no probability for a token of the other"
        return f"The predictions of {pair} differ most at {comparison.unit} {most['step']}: {apart}. {infinite}."
    return f"The predictions of {pair} differ most at {comparison.unit} {most['step']}, by {most['kl']:.3g} nats (KL)."


page()
