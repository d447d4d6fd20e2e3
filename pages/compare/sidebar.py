"""The sidebar of Compare: a card for each model with its changes and sampling, and their common input."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from pages.compare.comparison import (
    LARGEST_NUMBER,
    LETTERS,
    Comparison,
    ModelSettings,
    check_input,
    contrast_to,
    default_variants,
    first_variant,
    incomparable_reason,
    incompatibility_reason,
    on_other_inputs,
    read_variant,
    state,
    symbols_of,
)
from pages.compute import models, visible_runs
from pages.compute.background_job import interruptible_progress
from pages.compute.cached_runs import MASKS
from pages.compute.call import is_dark
from pages.controls.text import escape_markdown
from pages.controls.widgets import choose, validate_text
from pages.state.inputs import offer_examples
from pages.state.link import take_parameter
from pages.state.session import ScreenSelection
from pages.state.view import OFF, chip, name_of
from xformer.adapters import Input, TaskModel
from xformer.analysis.comparison import search
from xformer.edit_links import parse_edits
from xformer.errors import InputError, XformerError
from xformer.viz.theme import MODEL_HUES, pick

INPUT = "compare_input"
MAX_TYPED = 2_000
WITHIN = 2500
"""Number of inputs tried in a search for a difference."""
DECODING = {"free": "Free-running", "forced": "Teacher-forced"}
NUMBERS: tuple[tuple[str, str, float, float, float], ...] = (
    ("temperature", "Temperature", 0.0, 100.0, 0.1),
    ("seed", "Seed", 0, LARGEST_NUMBER, 1),
    ("top_k", "Top k (0: all)", 0, LARGEST_NUMBER, 1),
    ("top_p", "Top p (1: all)", 0.01, 1.0, 0.05),
)
"""The sampling settings: name, title, smallest and largest value, step."""


def ask_variants(selection: ScreenSelection) -> tuple[ModelSettings, ...]:
    """Draw the cards and return the variants: from the link, else as chosen here, else the model of the other screens."""
    visit_state = state()
    visit_state.variants = _begin_variants(selection)
    visit_state.followed = selection
    hues = "".join(
        f".st-key-compare_seat_{index} {{ border-left: 6px solid {pick(hue, is_dark())} !important; padding: 0.35rem 0.6rem }}"
        for index, hue in enumerate(MODEL_HUES)
    )
    st.html(f"<style>{hues}</style>")
    if visit_state.refused:
        st.warning(escape_markdown(visit_state.refused), icon=":material/block:")
        visit_state.refused = ""
    for index, variant in enumerate(visit_state.variants):
        _card(index, variant, len(visit_state.variants))
    if (n := len(visit_state.variants)) < len(LETTERS):
        add = partial(visit_state.put, n, ModelSettings(visit_state.variants[0].model))
        st.button("Add a model", icon=":material/add:", key="compare_add", width="stretch", on_click=add)
    return tuple(visit_state.variants)


def variants_in_link(variants: Sequence[ModelSettings]) -> dict[str, str]:
    """Return the variants as parameters of a link: a=…&b=…"""
    return {letter.lower(): variant.text for letter, variant in zip(LETTERS, variants, strict=False)}


def _begin_variants(selection: ScreenSelection) -> list[ModelSettings]:
    visit_state = state()
    wanted = [text for letter in LETTERS if (text := take_parameter(letter.lower())) is not None]
    before = [] if wanted else [variant.text for variant in visit_state.variants]
    visit_state.is_chosen = visit_state.is_chosen or bool(wanted)
    is_elsewhere_changed = replace(selection, input="") != replace(visit_state.followed or selection, input="")
    if (wanted or not is_elsewhere_changed) and (found := _read(wanted or before)):
        return found
    # Start with the model of the other screens; keep the other variants where the visitor chose them and they fit.
    own, others = first_variant(selection), _read(before)[1:] if visit_state.is_chosen else []
    if own is not None and others and incompatibility_reason([own, *others]) is None:
        return [own, *others]
    visit_state.is_chosen = False
    return default_variants() if own is None else [own, contrast_to(own)]


def _read(texts: Sequence[str]) -> list[ModelSettings]:
    """Parse variants. A single one gets a contrast; invalid ones are ignored with a warning."""
    found = []
    for text in texts:
        try:
            found.append(read_variant(text))
        except InputError as error:
            words = f"The model {escape_markdown(text[:80])} was ignored. {escape_markdown(str(error))}"
            st.warning(words, icon=":material/link_off:")
    return [found[0], contrast_to(found[0])] if len(found) == 1 else found


def _remove(index: int) -> None:
    del state().variants[index]
    state().is_chosen = True


def _change(index: int, key: str, changed: Callable[[Any], ModelSettings]) -> None:
    """Apply a choice to a variant, or store the reason why it is refused. A callback."""
    try:
        state().put(index, changed(st.session_state[key]))
    except XformerError as error:
        state().refused = str(error)


def _bound(index: int, key: str, value: Any, changed: Callable[[Any], ModelSettings]) -> dict[str, Any]:
    """Set a widget to a value of a variant; return the arguments with which a choice in it changes the variant."""
    if st.session_state.get(key) != value:
        st.session_state[key] = value
    return {"key": key, "on_change": _change, "args": (index, key, changed)}


def _card(index: int, variant: ModelSettings, n: int) -> None:
    """Draw the card of one of n variants."""
    runs, of_run = visible_runs.trained(), models.run_and_step(variant.model)
    chosen = variant.model if of_run is None else of_run[0]
    options = [*filter(lambda name: incomparable_reason(name) is None, models.shipped()), *runs, chosen]
    line = partial(st.container, horizontal=True, wrap=False, gap="xsmall", vertical_alignment="center")
    with st.container(border=True, key=f"compare_seat_{index}", gap="xsmall"):
        row = line()
        row.markdown(f"**{LETTERS[index]}**", width="content")
        bound = _bound(index, f"compare_model_{index}", chosen, lambda name: _with_model(variant, name))
        titles = {name: f"▸ {runs[name]}" if name in runs else name for name in options}.__getitem__
        label, options = f"Model {LETTERS[index]}", list(dict.fromkeys(options))
        row.selectbox(label, options, format_func=titles, label_visibility="collapsed", **bound)
        second = line()
        if of_run is not None:
            with second:
                _ask_step(index, variant, *of_run)
        # The widgets inside are drawn only while it is open: a hidden widget would keep an outdated value.
        settings = escape_markdown(", ".join(variant.settings())) or "as trained"
        drawer = second.popover(settings, width="stretch", key=f"compare_settings_{index}", on_change="rerun")
        if drawer.open:
            with drawer:
                _ask_settings(index, variant)
        if n > 2:
            remove, key, help = partial(_remove, index), f"compare_remove_{index}", f"Remove model {LETTERS[index]}"
            row.button("", key=key, help=help, on_click=remove, icon=":material/close:", type="tertiary", width=36)


def _ask_step(index: int, variant: ModelSettings, run: str, step: int | None) -> None:
    bound = _bound(index, f"compare_step_{index}", step, lambda chosen: replace(variant, model=f"{run}@{chosen}"))
    steps = list(dict.fromkeys([*visible_runs.steps_of(run), step]))
    label, words = f"Step of model {LETTERS[index]}", "step {:,}".format
    st.selectbox(label, steps, format_func=words, label_visibility="collapsed", width=116, **bound)


def _with_model(before: ModelSettings, name: str) -> ModelSettings:
    """Return the variant with another model and the changes that fit it. Raises `InputError` for an incomparable model."""
    model = models.resolved(name)
    if reason := "This run has no weights yet." if model is None else incomparable_reason(model):
        raise InputError(reason)
    variant = replace(before, model=str(model), edits=())
    for text in before.edits:
        with suppress(XformerError):
            more = replace(variant, edits=(*variant.edits, text))
            more.edit_links()
            variant = more
    return variant


def _ask_settings(index: int, variant: ModelSettings) -> None:
    """Ask for the mask, the changes and the sampling of a variant."""
    shape, key = variant.shape, f"compare_{index}"
    bound = _bound(index, f"{key}_mask", variant.mask, lambda mask: replace(variant, mask=mask))
    st.segmented_control("Attention mask", MASKS, required=True, **bound)
    usual = [OFF] * shape.can_drop_positions
    usual += [f"ablate:{site.path}" for site in shape.feed_forward]
    usual += [f"ablate:{path}.{head}" for path, n_heads in shape.heads.items() for head in range(n_heads)]

    def with_edits(texts: list[str]) -> ModelSettings:
        return read_variant(replace(variant, edits=tuple(texts)).text)

    st.multiselect(
        "Changes",
        list(dict.fromkeys([*usual, *variant.edits])),
        format_func=lambda text: name_of(parse_edits(text, shape)[0], variant.adapter),
        **_bound(index, f"{key}_changes", list(variant.edits), with_edits),
        accept_new_options=True,
        placeholder="as trained",
        help="Choose what to ablate (set to zero), or type a change in the format of links: `cut:PATH.HEAD.QUERY-KEY`, "
        "`open:PATH.HEAD.QUERY-KEY`, `solo:PATH.HEAD`, `ablate:PATH.NEURON` or `token:POSITION.TOKEN`. A PATH looks like "
        f"`{next(iter(shape.heads))}`; all numbers count from 0.",
    )
    columns = st.columns(2)
    for place, (name, title, low, high, step) in zip([*columns, *columns], NUMBERS, strict=True):
        place.number_input(
            title,
            low,
            variant.shape.vocab_size if name == "top_k" else high,
            step=step,
            format="%.2f" if isinstance(low, float) else None,
            help="0: always the most likely token; above 0, tokens are sampled." if name == "temperature" else None,
            **_bound(index, f"{key}_{name}", variant.numbers[name], partial(variant.with_number, name)),
        )


def ask_input(variants: Sequence[ModelSettings], selection: ScreenSelection) -> Comparison:
    """Ask for the input and the decoding mode. An invalid input is replaced by the last valid one.

    The input is shared with the other screens where their model reads the same tokens.
    """
    inputs, shares = variants[0].adapter.input, is_shared(variants, selection)
    _begin_input(inputs, selection if shares else None)
    st.text_input("Input", key=INPUT, persist_state="session", help=inputs.format_hint, placeholder=inputs.format_hint)
    row = st.container(horizontal=True, gap="small")
    with row.popover("Examples", key="compare_examples"):
        offer_examples(inputs.examples(), _type, key="compare_ex")
    row.button("Random", on_click=lambda: _type(inputs.random(random.getrandbits(32))), key="compare_random")
    find = st.button("Find a difference", icon=":material/search:", key="compare_find", width="stretch")
    forced = _ask_forced(variants)
    source, is_as_typed = _source(variants, inputs)
    fitting = tuple(variant.without(variant.waiting(source)) for variant in variants)
    comparison = Comparison(fitting, source, forced)
    if shares and is_as_typed:
        st.session_state["input"] = state().shared_input = inputs.text(source)
    if remark := inputs.remark(source):
        st.caption(f":material/info: {remark}")
    if find:
        _find_difference(comparison)
    return comparison


def show_waiting(variants: Sequence[ModelSettings], source: tuple[int, ...]) -> None:
    """Draw a chip for each change that waits for a longer input; it removes the change."""
    with st.container(horizontal=True, gap="small", key="chips"):
        for index, (letter, variant) in enumerate(zip(LETTERS, variants, strict=False)):
            for change in variant.waiting(source):
                label, remove = name_of(change, variant.adapter), partial(state().put, index, variant.without([change]))
                chip(escape_markdown(f"{letter} · {label}"), f"{letter}_{change.text}", remove, is_waiting=True)


def is_shared(variants: Sequence[ModelSettings], selection: ScreenSelection) -> bool:
    """Return whether the model of the other screens reads the same tokens, so that all screens share one input."""
    if models.usable(selection.model) is not None:
        return False
    adapter = models.adapter(selection.model)
    return isinstance(adapter, TaskModel) and symbols_of(adapter.task) == symbols_of(variants[0].adapter.task)


def input_in_link(comparison: Comparison, selection: ScreenSelection) -> dict[str, str]:
    """Return the input as a parameter of the link: `reads` where the other screens have another input."""
    if is_shared(comparison.variants, selection):
        return {"input": str(st.session_state["input"])}
    return {"reads": comparison.input.text(comparison.source)}


def _ask_forced(variants: Sequence[ModelSettings]) -> bool:
    """Ask whether decoding is teacher-forced; not for encoders, which predict all positions at once."""
    if all(variant.shape.architecture == "encoder" for variant in variants):
        return False
    help = "Free-running: each step is given the model’s own tokens. Teacher-forced: the correct ones."
    return choose("mode", DECODING, "Decoding", key="compare_mode", help=help) == "forced"


def _source(variants: Sequence[ModelSettings], inputs: Input) -> tuple[tuple[int, ...], bool]:
    """Return the input as tokens, and whether it is the typed one."""

    def read(text: str) -> tuple[int, ...]:
        source = inputs.read(text)
        check_input(variants, source)
        return source

    try:
        source = read(validate_text(st.session_state[INPUT], MAX_TYPED))
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        for text in (state().good_input, inputs.default):
            with suppress(InputError):
                source = read(text)
                st.caption(f"Still showing {escape_markdown(text)}.")
                return source, False
        st.stop()
    state().good_input = inputs.text(source)
    return source, True


def _begin_input(inputs: Input, selection: ScreenSelection | None) -> None:
    """Fill the text field with the result of a search, the input of the other screens or of the link, or an example."""
    visit_state, own, text = state(), take_parameter("reads"), st.session_state.get(INPUT)
    if visit_state.found_input is not None:
        text, visit_state.found_input = visit_state.found_input, None
    elif selection is not None:
        text = selection.input if visit_state.shared_input != selection.input else text
        visit_state.shared_input = selection.input
    else:
        visit_state.shared_input = None
        text = own if own is not None else text if visit_state.task == inputs.name or _fits(inputs, str(text)) else None
    visit_state.task = inputs.name
    _type(inputs.default if text is None else text)


def _fits(inputs: Input, text: str) -> bool:
    """Return whether the input of another task can stay. A language model could read any, so there it is replaced."""
    try:
        inputs.read(text)
    except InputError:
        return False
    return not inputs.is_open_ended


def _type(text: str) -> None:
    st.session_state[INPUT] = text


def _find_difference(comparison: Comparison) -> None:
    """Try new inputs of the task until two models predict different tokens, and enter that input."""
    work = on_other_inputs(
        search(comparison.loaded(), within=WITHIN, seed=random.getrandbits(31))
    )  # another seed finds another input
    outcome = f"All models predict the same tokens on {WITHIN:,} new inputs."
    with interruptible_progress("Trying inputs") as step:
        try:
            for report in work:
                step(report.n_compared, report.within)
                if report.found is not None:
                    state().found_input = comparison.input.text(report.found)
                    st.rerun()
        except XformerError as error:
            outcome = escape_markdown(str(error))
    st.caption(f":material/search_off: {outcome}")
