"""The sidebar that all screens share: which model, which input, which mask."""

from __future__ import annotations

import random

import streamlit as st

from pages.shared import resources
from pages.shared.escape_markdown import escape_markdown
from pages.shared.image_input import ask_image
from pages.shared.link import carry
from pages.shared.resources import check_memory
from pages.shared.typed import typed
from xformer.errors import InputError
from xformer.tasks import Task

MOST_TYPED = 20_000
"""Characters of an input: more than any model here reads, and what a window of a text is taken from."""


def ask_input(task: Task, max_len: int, model: str) -> tuple[int, ...]:
    """The source that it reads: what is typed, or the last that could be read, with a sentence on what is wrong.

    Raises `InputError` where looking into even that takes more memory than is allowed.
    """
    _begin_input(task)
    if task.rule.is_image:
        source = ask_image(task, model)
        check_memory(model, source)
        return source
    carry("input")
    st.text_input(
        "Input",
        key="input",
        persist_state="session",
        help=task.rule.typed,
    )
    examples_at, random_at = st.columns(2)
    with examples_at, st.popover("Examples", width="stretch"):
        st.caption("See how the model …")
        for purpose, text in task.rule.examples().items():
            st.button(purpose, on_click=_type, args=(text,), width="stretch", type="tertiary")
    random_at.button(
        "Random",
        on_click=_type_random,
        args=(task,),
        width="stretch",
        key="random_input",
        disabled=bool(task.rule.missing),
        help=task.rule.missing or None,
    )
    try:
        whole = tuple(task.vocabulary.read(typed(st.session_state["input"], MOST_TYPED)))
        source = last_that_fit(task, whole, max_len) if task.rule.is_open_ended else whole
        check_memory(model, source)
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        source = _last_good(task, max_len)
        check_memory(model, source)
        st.caption("Still showing the last input that could be read.")
        return source
    st.session_state["window"] = task.vocabulary.text(list(source)) if len(source) < len(whole) else None
    if len(source) < len(whole):
        st.caption(
            f":material/info: Characters {len(whole) - len(source) + 1:,} to {len(whole):,} of your {len(whole):,} are shown: "
            f"the last {len(source):,}, as many as this model reads."
        )
    st.session_state["last_good"] = task.vocabulary.text(list(source))
    if remark := task.rule.remark(source):
        st.caption(f":material/info: {remark}")
    return source


def last_that_fit(task: Task, source: tuple[int, ...], max_len: int) -> tuple[int, ...]:
    """The end of a text, as long as a model reads it: all of it, where it fits."""
    least, most = 0, len(source)  # that many fit; no more can
    while least < most:
        n = (least + most + 1) // 2
        if _fits(task, source[-n:], max_len):
            least = n
        else:
            most = n - 1
    return source[-least:] if least else source


def _fits(task: Task, source: tuple[int, ...], max_len: int) -> bool:
    try:
        task.example(list(source), max_len=max_len)
    except InputError:
        return len(source) < 2  # too short is another matter
    return True


def ask_mask() -> str:
    """One of `resources.MASKS`."""
    if st.session_state.get("mask") not in resources.MASKS:
        st.session_state["mask"] = resources.MASKS[0]
    carry("mask")
    mask = st.segmented_control(
        "Attention mask",
        resources.MASKS,
        required=True,
        key="mask",
        persist_state="session",
        width="stretch",
        help="Causal: a position sees itself and what came before. Full: it sees everything. The model runs again, and "
        "the change stands beside the original.",
    )
    assert mask is not None  # required, and set above
    return mask


def _type(text: str) -> None:
    st.session_state["input"] = text


def _type_random(task: Task) -> None:
    _type(task.vocabulary.text(task.draw(random.getrandbits(32))))


def _begin_input(task: Task) -> None:
    """What stands in the box at first; and again after a change to a model of another task that cannot read what is there."""
    before = st.session_state.get("input_task", task.config.name)
    st.session_state["input_task"] = task.config.name
    st.session_state.setdefault("input", task.rule.default)
    if before != task.config.name and task.rule.is_open_ended:  # it can read anything, and that is no reason to
        _type(task.rule.default)
    elif before != task.config.name:
        try:
            task.vocabulary.read(typed(st.session_state["input"], MOST_TYPED))
        except InputError:
            _type(task.rule.default)


def _last_good(task: Task, max_len: int) -> tuple[int, ...]:
    """The last input that this visitor's models could read, or the default one, or what is drawn of the shortest."""
    for text in (st.session_state.get("last_good", ""), task.rule.default):
        try:
            source = task.vocabulary.read(text)
            task.example(source, max_len=max_len)
        except InputError:
            continue
        return tuple(source)
    return tuple(task.draw(0, size=task.config.min_len))
