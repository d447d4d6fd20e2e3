"""The sidebar of Compare: a card for each model with its changes and sampling, and the input that all of them read."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
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
    read_variant,
    state,
    symbols_of,
)
from pages.shared import models, run_store
from pages.shared.background_job import patience
from pages.shared.layout import is_dark
from pages.shared.link import asked
from pages.shared.resources import MASKS
from pages.shared.session import LookedAt
from pages.shared.text import escape_markdown
from pages.shared.widgets import choose, typed
from xformer.adapters import Input, TaskModel
from xformer.analysis.comparison import search
from xformer.errors import InputError, XformerError
from xformer.interventions import parse
from xformer.viz.theme import MODEL_HUES

INPUT = "compare_input"
MOST_TYPED = 2_000
"""Maximum characters; each model processes all of them."""
WITHIN = 2500
"""Inputs that a search for a difference tries."""
DECODING = {"free": "Free-running", "forced": "Teacher-forced"}
NUMBERS: tuple[tuple[str, str, float, float, float], ...] = (
    ("temperature", "Temperature", 0.0, 100.0, 0.1),
    ("seed", "Seed", 0, LARGEST_NUMBER, 1),
    ("top_k", "Top k (0: all)", 0, LARGEST_NUMBER, 1),
    ("top_p", "Top p (1: all)", 0.01, 1.0, 0.05),
)
"""The sampling settings: name, title, smallest and largest value, step."""


def ask_variants(looked: LookedAt) -> tuple[ModelSettings, ...]:
    """Draw the cards; the variants are those of the link, else those chosen here, else the model of the other screens."""
    ours = state()
    ours.variants = _begin_variants(looked)
    ours.looked_at = looked
    hues = "".join(
        f".st-key-compare_seat_{index} {{ border-left: 6px solid {hue[is_dark()]} !important; padding: 0.35rem 0.6rem }}"
        for index, hue in enumerate(MODEL_HUES)
    )
    st.html(f"<style>{hues}</style>")
    if ours.refused:
        st.warning(escape_markdown(ours.refused), icon=":material/block:")
        ours.refused = ""
    for index, variant in enumerate(ours.variants):
        _card(index, variant, len(ours.variants))
    if (n := len(ours.variants)) < len(LETTERS):
        add: dict[str, Any] = {"on_click": ours.put, "args": (n, ModelSettings(ours.variants[0].model))}
        st.button("Add a model", icon=":material/add:", key="compare_add", width="stretch", **add)
    return tuple(ours.variants)


def variants_in_link(variants: Sequence[ModelSettings]) -> dict[str, str]:
    """The variants as parameters of a link: a=…&b=…"""
    return {letter.lower(): variant.text for letter, variant in zip(LETTERS, variants, strict=False)}


def _begin_variants(looked: LookedAt) -> list[ModelSettings]:
    ours = state()
    wanted = [text for letter in LETTERS if (text := asked(letter.lower())) is not None]
    before = [] if wanted else [variant.text for variant in ours.variants]
    ours.is_chosen = ours.is_chosen or bool(wanted)
    is_elsewhere_changed = replace(looked, input="") != replace(ours.looked_at or looked, input="")
    if (wanted or not is_elsewhere_changed) and (found := _read(wanted or before)):
        return found
    # Start with the model of the other screens; keep the other variants where the visitor chose them and they fit.
    own, others = first_variant(looked), _read(before)[1:] if ours.is_chosen else []
    if own is not None and others and incompatibility_reason([own, *others]) is None:
        return [own, *others]
    ours.is_chosen = False
    return default_variants() if own is None else [own, contrast_to(own)]


def _read(texts: Sequence[str]) -> list[ModelSettings]:
    """Parse variants; one alone gets a contrast, and an invalid one is left out with a warning."""
    found = []
    for text in texts:
        try:
            found.append(read_variant(text))
        except InputError as error:
            words = f"The model {escape_markdown(text[:80])} was left out. {escape_markdown(str(error))}"
            st.warning(words, icon=":material/link_off:")
    return [found[0], contrast_to(found[0])] if len(found) == 1 else found


def _remove(index: int) -> None:
    del state().variants[index]
    state().is_chosen = True


def _show(key: str, value: Any) -> None:
    """Have a widget show a value that is kept elsewhere."""
    if st.session_state.get(key) != value:
        st.session_state[key] = value


def _change(index: int, key: str, changed: Callable[[Any], ModelSettings]) -> None:
    """Replace a variant after a choice, or keep the reason why it is refused. A callback."""
    try:
        state().put(index, changed(st.session_state[key]))
    except XformerError as error:
        state().refused = str(error)


def _card(index: int, variant: ModelSettings, n: int) -> None:
    """Draw the card of one of n variants."""
    runs, of_run = run_store.trained(), models.run_and_step(variant.model)
    chosen = variant.model if of_run is None else of_run[0]
    options = [*filter(lambda name: incomparable_reason(name) is None, models.shipped()), *runs, chosen]
    line: dict[str, Any] = {"horizontal": True, "wrap": False, "gap": "xsmall", "vertical_alignment": "center"}
    key = f"compare_model_{index}"
    with st.container(border=True, key=f"compare_seat_{index}", gap="xsmall"):
        row = st.container(**line)
        row.markdown(f"**{LETTERS[index]}**", width="content")
        _show(key, chosen)
        row.selectbox(
            f"Model {LETTERS[index]}",
            list(dict.fromkeys(options)),
            format_func=lambda name: f"▸ {runs[name]}" if name in runs else name,
            key=key,
            on_change=_change,
            args=(index, key, lambda name: _with_model(variant, name)),
            label_visibility="collapsed",
        )
        second = st.container(**line)
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
            look: dict[str, Any] = {"icon": ":material/close:", "type": "tertiary", "width": 36}
            help = f"Remove model {LETTERS[index]}"
            row.button("", key=f"compare_remove_{index}", help=help, on_click=_remove, args=(index,), **look)


def _ask_step(index: int, variant: ModelSettings, run: str, step: int | None) -> None:
    key = f"compare_step_{index}"
    _show(key, step)
    st.selectbox(
        f"Step of model {LETTERS[index]}",
        list(dict.fromkeys([*run_store.steps_of(run), step])),
        format_func="step {:,}".format,
        key=key,
        on_change=_change,
        args=(index, key, lambda chosen: replace(variant, model=f"{run}@{chosen}")),
        label_visibility="collapsed",
        width=116,
    )


def _with_model(before: ModelSettings, name: str) -> ModelSettings:
    """Another model with the changes that fit it. Raises `InputError` for one that cannot be compared."""
    model = models.resolved(name)
    if reason := "This run has no weights yet." if model is None else incomparable_reason(model):
        raise InputError(reason)
    variant = replace(before, model=str(model), changes=())
    for text in before.changes:
        with suppress(XformerError):
            more = replace(variant, changes=(*variant.changes, text))
            more.interventions()
            variant = more
    return variant


def _ask_settings(index: int, variant: ModelSettings) -> None:
    """The mask, the changes and the sampling of a variant."""
    shape, key = variant.shape, f"compare_{index}"
    _show(f"{key}_mask", variant.mask)
    st.segmented_control(
        "Attention mask",
        MASKS,
        required=True,
        key=f"{key}_mask",
        on_change=_change,
        args=(index, f"{key}_mask", lambda mask: replace(variant, mask=mask)),
    )
    _show(f"{key}_changes", list(variant.changes))
    usual = ["positions:off"] * shape.can_drop_positions
    usual += [f"ablate:{site.path}" for site in shape.feed_forward]
    usual += [f"ablate:{path}.{head}" for path, n_heads in shape.heads.items() for head in range(n_heads)]
    st.multiselect(
        "Changes",
        list(dict.fromkeys([*usual, *variant.changes])),
        format_func=lambda text: variant.label(parse(text, shape)[0]),
        key=f"{key}_changes",
        on_change=_change,
        args=(index, f"{key}_changes", lambda texts: read_variant(replace(variant, changes=tuple(texts)).text)),
        accept_new_options=True,
        placeholder="as trained",
        help="Choose what to ablate (set to zero), or type a change as a link writes it: `cut:PATH.HEAD.QUERY-KEY`, "
        "`open:…` the same, `solo:PATH.HEAD`, `ablate:PATH.NEURON`, `token:POSITION.TOKEN`; a PATH is like "
        f"`{next(iter(shape.heads))}`, and all numbers count from 0.",
    )
    columns = st.columns(2)
    for place, (name, title, low, high, step) in zip([*columns, *columns], NUMBERS, strict=True):
        of = f"{key}_{name}"
        _show(of, variant.numbers[name])
        place.number_input(
            title,
            low,
            variant.shape.vocab_size if name == "top_k" else high,
            step=step,
            format="%.2f" if isinstance(low, float) else None,
            key=of,
            on_change=_change,
            args=(index, of, lambda number, name=name: variant.with_number(name, str(number))),
            help="0: the likeliest token; above it tokens are sampled." if name == "temperature" else None,
        )


def ask_input(variants: Sequence[ModelSettings], looked: LookedAt) -> Comparison:
    """Ask for the input and the decoding mode; an unreadable input is replaced by the last readable one.

    The input is that of the other screens where their model reads the same tokens.
    """
    of, shares = variants[0].subject.input, is_shared(variants, looked)
    _begin_input(of, looked if shares else None)
    st.text_input("Input", key=INPUT, persist_state="session", help=of.typed, placeholder=of.typed)
    row = st.container(horizontal=True, gap="small")
    with row.popover("Examples", key="compare_examples"):
        for purpose, text in of.examples().items():
            look: dict[str, Any] = {"width": "stretch", "type": "tertiary", "key": f"compare_ex_{purpose}"}
            st.button(purpose, on_click=_type, args=(text,), **look)
    row.button("Random", on_click=lambda: _type(of.random(random.getrandbits(32))), key="compare_random")
    find = st.button("Find a difference", icon=":material/search:", key="compare_find", width="stretch")
    forced = _ask_forced(variants)
    source, is_as_typed = _source(variants, of)
    comparison = Comparison(tuple(variants), source, forced)
    if shares and is_as_typed:
        st.session_state["input"] = state().shared_input = of.text(source)
    if remark := of.remark(source):
        st.caption(f":material/info: {remark}")
    if find:
        _find_difference(comparison)
    return comparison


def is_shared(variants: Sequence[ModelSettings], looked: LookedAt) -> bool:
    """Whether the model of the other screens reads the same tokens, so that all screens have one input."""
    if models.usable(looked.model) is not None:
        return False
    subject = models.subject(looked.model)
    return isinstance(subject, TaskModel) and symbols_of(subject.task) == symbols_of(variants[0].subject.task)


def input_in_link(comparison: Comparison, looked: LookedAt) -> dict[str, str]:
    """The input as a parameter of the link: `reads` where the other screens have another input."""
    if is_shared(comparison.variants, looked):
        return {"input": str(st.session_state["input"])}
    return {"reads": comparison.input.text(comparison.source)}


def _ask_forced(variants: Sequence[ModelSettings]) -> bool:
    """Whether decoding is teacher-forced; an encoder predicts all positions at once and has no choice."""
    if all(variant.shape.architecture == "encoder" for variant in variants):
        return False
    help = "Free-running: each step is given the model’s own tokens. Teacher-forced: each step is given the right ones."
    return choose("mode", DECODING, "free", "Decoding", key="compare_mode", help=help) == "forced"


def _source(variants: Sequence[ModelSettings], of: Input) -> tuple[tuple[int, ...], bool]:
    """The input as tokens, and whether it is the typed one."""

    def read(text: str) -> tuple[int, ...]:
        source = of.read(text)
        check_input(variants, source)
        return source

    try:
        source = read(typed(st.session_state[INPUT], MOST_TYPED))
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        for text in (state().good_input, of.default):
            with suppress(InputError):
                source = read(text)
                st.caption(f"Still showing {escape_markdown(text)}.")
                return source, False
        st.stop()
    state().good_input = of.text(source)
    return source, True


def _begin_input(of: Input, looked: LookedAt | None) -> None:
    """Fill the text field: with a found input, the input of the other screens, that of the link, or an example."""
    ours, own, text = state(), asked("reads"), st.session_state.get(INPUT)
    if ours.found_input is not None:
        text, ours.found_input = ours.found_input, None
    elif looked is not None:
        text = looked.input if ours.shared_input != looked.input else text
        ours.shared_input = looked.input
    else:
        ours.shared_input = None
        text = own if own is not None else text if ours.task == of.name or _fits(of, str(text)) else None
    ours.task = of.name
    _type(of.default if text is None else text)


def _fits(of: Input, text: str) -> bool:
    """Whether the input of another task can stay; a language model could read any, so there it does not."""
    try:
        of.read(text)
    except InputError:
        return False
    return not of.goes_on


def _type(text: str) -> None:
    st.session_state[INPUT] = text


def _find_difference(comparison: Comparison) -> None:
    """Try new inputs of the task until the likeliest tokens of two models differ; the one that is found is typed."""
    work = search(comparison.loaded(), within=WITHIN, seed=random.getrandbits(31))  # another seed finds another input
    with patience("Trying inputs") as step:
        for report in work:
            step(report.looked, report.within)
            if report.found is not None:
                state().found_input = comparison.input.text(report.found)
                st.rerun()
    st.caption(f":material/search_off: All models predict the same on {WITHIN:,} new inputs.")
