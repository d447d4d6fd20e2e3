"""The switches of a mask: presets, rules, and marks on the tokens. Their values are in the link as one text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from pages.controls.text import escape_markdown
from pages.controls.widgets import choose_unlinked, warn_unknown
from pages.state.link import keep_widget_value, take_parameter
from xformer.errors import InputError
from xformer.masks import MaskRecipe
from xformer.viz.packing import visible

MOST_MARKED = 64
"""The most tokens that can be marked one by one."""
MARKS = {"documents": "Documents", "blocks": "Image blocks", "padding": "Padding"}
HELP = {
    "documents": "Click where another document starts.",
    "blocks": "Click the tokens of an image, which see each other both ways.",
    "padding": "Click the tokens that are padding, which no query sees.",
}
CAUSAL, WINDOW, SINKS, PREFIX, MARK = "mask_causal", "mask_window", "mask_sinks", "mask_prefix", "mask_mark"
COUNTS = {"window": WINDOW, "sinks": SINKS, "prefix": PREFIX}


def presets(n: int) -> dict[str, MaskRecipe]:
    """Return masks to begin with, for an input of `n` tokens."""
    third = max(1, n // 3)
    return {
        "Causal": MaskRecipe(),
        "Window": MaskRecipe(window=max(2, n // 4)),
        "Window with a sink": MaskRecipe(window=max(2, n // 4), sinks=1),
        "Packed documents": MaskRecipe(documents=tuple(sorted({third, min(n - 1, 2 * third)} - {0}))),
        "Prefix": MaskRecipe(prefix=third),
        "Image block": MaskRecipe(blocks=tuple(range(third, min(n, 2 * third + 1)))),
        "Left padding": MaskRecipe(padding=tuple(range(max(1, n // 5)))),
        "Full": MaskRecipe(causal=False),
    }


def ask_recipe(tokens: Sequence[str]) -> MaskRecipe:
    """Draw the switches in a row and return the recipe; positions that the input does not have are kept."""
    n = len(tokens)
    _follow_the_link()
    for key in COUNTS.values():  # of a longer input
        st.session_state[key] = min(int(st.session_state[key] or 0), n)
    with st.container(horizontal=True, gap="small", key="mask_rules", vertical_alignment="bottom"):
        with st.popover("Presets", icon=":material/grid_on:"), st.container(gap="xxsmall"):
            for preset, recipe in presets(n).items():
                kind = "primary" if _recipe() == recipe else "tertiary"
                st.button(preset, on_click=partial(_set, recipe), type=kind, key=f"preset_{preset}")
        st.toggle("Causal", key=CAUSAL, persist_state="session", help="A query sees no later key.")
        for name, label, help in (
            ("window", "Window", "The number of keys up to the query's own that it sees; 0: no window."),
            ("sinks", "Sinks", "The number of first keys that stay visible outside the window."),
            ("prefix", "Prefix", "The number of first keys that every query sees."),
        ):
            is_off = name == "sinks" and not st.session_state[WINDOW]
            look = {"width": 100, "disabled": is_off, "persist_state": "session"}
            st.number_input(label, 0, n, key=COUNTS[name], help=help, **look)
        with st.popover("Mark tokens", icon=":material/select:", width="content"), st.container(width=560):
            _ask_marks(choose_unlinked("Mark on the tokens", MARKS, MARK), tokens)
    return _recipe()


def _ask_marks(mark: str, tokens: Sequence[str]) -> None:
    """Draw the tokens, on which the visitor marks documents, image blocks or padding."""
    n = len(tokens)
    if n > MOST_MARKED:
        st.caption(f"Tokens can be marked in inputs of up to {MOST_MARKED}; this one has {n}.")
        return
    key = f"marked_{mark}"
    st.session_state[key] = [at for at in st.session_state[f"mask_{mark}"] if at < n]
    names = [escape_markdown(f"{at} · {visible(one)}") for at, one in enumerate(tokens)]
    look = {"on_change": partial(_marked, mark, n), "label_visibility": "collapsed", "width": "content"}
    st.pills(MARKS[mark], range(n), selection_mode="multi", format_func=names.__getitem__, key=key, **look)
    st.caption(HELP[mark], width="content")


def _marked(mark: str, n: int) -> None:
    """Keep the marked tokens, and those beyond this input. A callback."""
    beyond = [at for at in st.session_state[f"mask_{mark}"] if at >= n]
    st.session_state[f"mask_{mark}"] = sorted({*st.session_state[f"marked_{mark}"], *beyond})


def _recipe() -> MaskRecipe:
    """Return the recipe of the switches."""
    state = st.session_state
    width, n_sinks, n_prefix = (int(state[key] or 0) for key in COUNTS.values())
    documents, blocks, padding = (tuple(state[f"mask_{mark}"]) for mark in MARKS)
    return MaskRecipe(bool(state[CAUSAL]), width, n_sinks if width else 0, n_prefix, documents, blocks, padding)


def _set(recipe: MaskRecipe) -> None:
    """Set the switches. Also a callback."""
    st.session_state[CAUSAL] = recipe.causal
    for name, key in COUNTS.items():
        st.session_state[key] = getattr(recipe, name)
    for mark in MARKS:
        st.session_state[f"mask_{mark}"] = list(getattr(recipe, mark))


def _follow_the_link() -> None:
    """Take the mask of the link, else keep the switches as they are."""
    wanted = take_parameter("rule")
    if wanted is not None:
        try:
            _set(MaskRecipe.parse(wanted))
        except InputError:
            warn_unknown("rule")
    if CAUSAL not in st.session_state:
        _set(MaskRecipe())
    if st.session_state.get(MARK) not in MARKS:
        recipe = _recipe()
        st.session_state[MARK] = next((mark for mark in MARKS if getattr(recipe, mark)), "documents")
    for key in (CAUSAL, MARK, *COUNTS.values()):
        keep_widget_value(key)
