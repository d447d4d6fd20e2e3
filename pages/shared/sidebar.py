"""The sidebar that all screens share: which model, which input, which mask."""

from __future__ import annotations

import random

import streamlit as st

from pages.shared import resources
from xformer.errors import InputError
from xformer.tasks import Task

DEFAULT_INPUT = "3 7 12 9 4 11"


def ask_model(names: tuple[str, ...]) -> str:
    """The name of the model that runs."""
    return st.selectbox("Model", names, key="model", persist_state="session", help="It runs live, on every change.")


def ask_input(task: Task, max_len: int) -> tuple[int, ...]:
    """The numbers that it reads: those typed, or the last that could be read, with a sentence on what is wrong."""
    st.session_state.setdefault("input", DEFAULT_INPUT)
    st.text_input(
        "Input",
        key="input",
        persist_state="session",
        max_chars=2000,
        help=f"Numbers from 1 to {task.vocabulary.symbols}, with spaces between them.",
    )
    examples_at, random_at = st.columns(2)
    with examples_at, st.popover("Examples", width="stretch"):
        st.caption("See how the model …")
        for purpose, text in examples(task).items():
            st.button(purpose, on_click=_type, args=(text,), width="stretch", type="tertiary")
    random_at.button("Random", on_click=_type_random, args=(task,), width="stretch", key="random_input")
    try:
        source = tuple(task.vocabulary.read(str(st.session_state["input"])))
        task.example(list(source), max_len=max_len)
    except InputError as error:
        st.error(str(error), icon=":material/edit:")
        source = _last_good(task, max_len)
        st.caption("Still showing the last input that could be read.")
        return source
    st.session_state["last_good"] = source
    longest = task.config.max_len
    if not task.config.min_len <= len(source) <= longest:
        st.caption(
            f":material/info: {len(source)} numbers: it was trained on {task.config.min_len} to {longest}, "
            "so expect mistakes."
        )
    return source


def examples(task: Task) -> dict[str, str]:
    """Inputs with a purpose, in the words of “See how the model …”."""
    n, longest = task.vocabulary.symbols, task.config.max_len

    def numbers(count: int) -> str:
        return " ".join(str(1 + (step * 7 + 2) % n) for step in range(count))

    verb = {"reverse": "reverses", "sort": "sorts", "copy": "copies"}[task.config.name]
    return {
        f"… {verb} six numbers": numbers(6),
        "… tells equal numbers apart by their place": " ".join(["5"] * 4 + ["9"] * 4),
        f"… {verb} the longest it was trained on": numbers(longest),
        "… fails on more than it was trained on": numbers(longest + 3),
        "… handles the shortest": numbers(task.config.min_len),
    }


def ask_mask() -> str:
    """One of `resources.MASKS`."""
    st.session_state.setdefault("mask", resources.MASKS[0])
    return st.segmented_control(
        "Attention mask",
        resources.MASKS,
        required=True,
        key="mask",
        persist_state="session",
        width="stretch",
        help="Causal: a position sees itself and what came before. Full: it sees everything. The model runs again, and "
        "the change stands beside the original.",
    )


def _type(text: str) -> None:
    st.session_state["input"] = text


def _type_random(task: Task) -> None:
    count = random.randint(task.config.min_len, task.config.max_len)
    _type(" ".join(str(random.randint(1, task.vocabulary.symbols)) for _ in range(count)))


def _last_good(task: Task, max_len: int) -> tuple[int, ...]:
    """The last input that this visitor's models could read, or the default one."""
    source = st.session_state.get("last_good", tuple(task.vocabulary.read(DEFAULT_INPUT)))
    try:
        task.example(list(source), max_len=max_len)
        task.vocabulary.read(" ".join(map(str, source)))
    except InputError:
        return tuple(range(1, 1 + min(task.config.max_len, task.vocabulary.symbols, 3)))
    return source
