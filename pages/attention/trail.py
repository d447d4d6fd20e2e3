"""The way back through a model: the cells that led from one head to the one that wrote what it read, in the link too."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import streamlit as st

from pages.components.attention_view import Selection, choose_attention
from pages.shared.link import asked
from xformer.reading import Reading
from xformer.site import head_title

_KEY = "why_trail"
_STEP = r"\d{1,3}\.\d{1,3}\.\d{1,5}-\d{1,5}"


@dataclass(frozen=True)
class Cell:
    """A head and where it looks, all from 0."""

    layer: int
    head: int
    query: int
    key: int

    def __str__(self) -> str:
        return f"{self.layer + 1}.{self.head + 1}.{self.query}-{self.key}"

    @classmethod
    def parse(cls, text: str) -> Cell:
        """What `str` wrote."""
        layer, head, cell = text.split(".")
        query, key = cell.split("-")
        return cls(int(layer) - 1, int(head) - 1, int(query), int(key))


def trail_to(run: Reading) -> list[Cell]:
    """The cells that led here; those that this model does not have are forgotten."""
    text = asked("trail")
    if text is not None and re.fullmatch(rf"{_STEP}(_{_STEP})*", text, re.ASCII):
        st.session_state[_KEY] = [Cell.parse(step) for step in text.split("_")]
    found: list[Cell] = st.session_state.get(_KEY, [])
    return [cell for cell in found if _is_there(run, cell)]


def title_of(run: Reading, cell: Cell) -> str:
    """The cell's head in words."""
    return head_title(run.attention_site(cell.layer).path, cell.head, is_pair=run.is_pair).capitalize()


def _is_there(run: Reading, cell: Cell) -> bool:
    if not 0 <= cell.layer < len(run.attention):
        return False
    n_heads, n_query, n_key = run[f"{run.attention[cell.layer].path}.pattern"].shape[1:]
    return 0 <= cell.head < n_heads and cell.query < n_query and cell.key < n_key


def breadcrumbs(run: Reading, trail: list[Cell], view_key: str) -> None:
    """The way here; a click goes back to that step."""
    if not trail:
        return
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.markdown("From:", width="content")
        for index, cell in enumerate(trail):
            st.button(
                f"{title_of(run, cell)}, {cell.query} → {cell.key}",
                key=f"why_step_{index}",
                type="tertiary",
                on_click=open_cell,
                args=(cell, trail[:index], view_key),
            )


def open_cell(cell: Cell, trail: list[Cell], view_key: str) -> None:
    """A callback: enlarge that head with that cell locked."""
    st.session_state[_KEY] = trail
    choose_attention(view_key, replace(Selection(), layer=cell.layer, head=cell.head, query=cell.query, key=cell.key))
