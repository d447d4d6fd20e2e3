"""Controls of our own: tokens in rows that can be edited, a pad to draw a digit on, buttons that copy an address, a playlist.

prediction_strip([Lane("says", ("9", "12"), right=(True, False), probability=(0.99, 0.4))], key="strip")
digit_pad(key="pad", data={"pixels": pixels}, on_drawn_change=take)        # in `take`: drawn_on("pad")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import streamlit as st
from streamlit.components.v2 import component

from pages.components import whole
from xformer.widgets.scripts import script, style


def _component(name: str) -> Any:
    style, script = (Path(__file__).with_name(f"{name}.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return component(f"xformer_{name}", css=style, js=script)


copy_address = _component("copy_address")
"""Two buttons that copy the address: as a link, and as an iframe with the picture alone, without parameters in `usual`."""
playlist = _component("playlist")
"""The visitor's playlist, which the browser keeps."""
_prediction_strip = _component("prediction_strip")
digit_pad = component("xformer_digit_pad", css=style("digit_pad"), js=script("digit_pad", "streamlit"))
"""An image of 8 × 8 pixels to draw on with the mouse, a finger or the keyboard; `drawn_on` says what was drawn."""
_PIXELS = re.compile(r"[0-9a-g]{64}", re.ASCII)


@dataclass(frozen=True)
class Lane:
    """One row of tokens beside its name. `right` is given for predictions, one for each token."""

    name: str
    tokens: tuple[str, ...]
    right: tuple[bool, ...] = ()
    probability: tuple[float | None, ...] = ()
    """The probability of each token; None where there is none."""
    offset: int = 0
    """How many columns stay free before the first token."""
    moved: tuple[bool, ...] = ()
    """Which tokens differ from the lane above."""


@dataclass(frozen=True)
class Editing:
    """Lets tokens of the first lane be changed in their place, removed, and one more be added."""

    texts: tuple[str, ...]
    """What the input field of each of them holds; the last one is that of a new token."""
    first: int
    """The place in the lane of the first of them."""
    take: Callable[[int, str], str]
    """Called with the place and the new text, "" to remove it; returns why it cannot be taken, or ""."""


def prediction_strip(
    lanes: Sequence[Lane], *, key: str, width: Literal["stretch", "content"] = "stretch", editing: Editing | None = None
) -> None:
    """Draw the lanes under each other, token positions aligned; right and wrong differ in a sign as well as in colour."""
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
    """The place and the text of an edit; None where the browser sent something else."""
    at, text = (whole(edit.get("at"), n_places), edit.get("text")) if isinstance(edit, dict) else (None, None)
    return None if at is None or not isinstance(text, str) else (at, text)


def drawn_on(key: str) -> str | None:
    """What was just drawn: 64 digits in base 17, a pixel each; None where the browser sent something else."""
    drawn = st.session_state[key].get("drawn")
    return drawn if isinstance(drawn, str) and _PIXELS.fullmatch(drawn) else None
