"""Custom controls: rows of editable tokens, a pad for drawing a digit, buttons that copy the address, a playlist.

prediction_strip([Lane("predicts", ("9", "12"), right=(True, False), probability=(0.99, 0.4))], key="strip")
digit_pad(key="pad", data={"pixels": pixels}, on_drawn_change=take)        # in `take`: drawn_on("pad")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import streamlit as st
from streamlit.components.v2 import component

from pages.components import parse_index
from xformer.widgets.scripts import script, style


def _component(name: str) -> Any:
    return component(f"xformer_{name}", css=style(name), js=script(name, "streamlit"))


copy_address = _component("copy_address")
"""Two buttons that copy the address as a link or as an iframe with only the picture. The iframe omits the values in `usual`."""
playlist = _component("playlist")
"""The visitor's playlist, which the browser stores."""
_prediction_strip = _component("prediction_strip")
digit_pad = _component("digit_pad")
"""An image of 8 × 8 pixels to draw on with the mouse, a finger or the keyboard; `drawn_on` returns the drawing."""
_PIXELS = re.compile(r"[0-9a-g]{64}", re.ASCII)


@dataclass(frozen=True)
class Lane:
    """A named row of tokens. `right` is given for predictions, with one value for each token."""

    name: str
    tokens: tuple[str, ...]
    right: tuple[bool, ...] = ()
    probability: tuple[float | None, ...] = ()
    """The probability of each token; None for a token without one."""
    offset: int = 0
    """Number of empty columns before the first token."""
    moved: tuple[bool, ...] = ()
    """Whether each token differs from the one in the lane above."""
    continues: bool = False
    """Whether the last token continues the input, and has to be in view."""


@dataclass(frozen=True)
class Editing:
    """Makes tokens of the first lane editable: they can be changed in place, removed, and added."""

    texts: tuple[str, ...]
    """The initial text of each token's input field; the last one is for a new token."""
    first: int
    """The index in the lane of the first editable token."""
    take: Callable[[int, str], str]
    """Called with the index in `texts` and the new text ("" to remove the token); returns an error message, or ""."""


def prediction_strip(
    lanes: Sequence[Lane], *, key: str, width: Literal["stretch", "content"] = "stretch", editing: Editing | None = None
) -> None:
    """Draw the lanes below each other with aligned positions; right and wrong tokens differ in a mark as well as in colour."""
    refused = f"{key}_refused"

    def follow() -> None:
        if editing is not None and (edit := edit_sent(st.session_state[key].get("edit"), len(editing.texts))):
            at, text = edit
            if problem := editing.take(at, text):
                st.session_state[refused] = {"at": at, "text": text, "why": problem}

    edit = None
    if editing is not None:
        edit = {"texts": editing.texts, "first": editing.first, "problem": st.session_state.pop(refused, None)}
    shares = [[None if p is None else round(p, 4) for p in lane.probability] for lane in lanes]
    shown = [asdict(lane) | {"probability": share} for lane, share in zip(lanes, shares, strict=True)]
    _prediction_strip(key=key, data={"lanes": shown, "edit": edit}, width=width, on_edit_change=follow)


def edit_sent(edit: object, n_places: int) -> tuple[int, str] | None:
    """Return the index and the text of an edit sent by the browser; None if the message is malformed."""
    at, text = (parse_index(edit.get("at"), n_places), edit.get("text")) if isinstance(edit, dict) else (None, None)
    return None if at is None or not isinstance(text, str) else (at, text)


def drawn_on(key: str) -> str | None:
    """Return the current drawing, one base-17 digit for each of 64 pixels; None if the browser's message is malformed."""
    drawn = st.session_state[key].get("drawn")
    return drawn if isinstance(drawn, str) and _PIXELS.fullmatch(drawn) else None
