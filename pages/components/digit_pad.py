"""A pad of 8 × 8 pixels to draw a digit on, with the mouse, a finger or the keyboard.

drawn = digit_pad(pixels, key="pad", on_drawn=take)        # in `take`: drawn_on("pad")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import streamlit as st
from streamlit.components.v2 import component

_HERE = Path(__file__).parent
_EVENT = "drawn"
_PIXELS = re.compile(r"[0-9a-g]{64}", re.ASCII)
_component = component(
    "xformer_digit_pad",
    css=(_HERE / "digit_pad.css").read_text(encoding="utf-8"),
    js=(_HERE / "digit_pad.js").read_text(encoding="utf-8"),
)


def digit_pad(pixels: Sequence[int], *, key: str, on_drawn: Callable[[], None]) -> None:
    """Show an image and let it be drawn on; `on_drawn` is called after each stroke."""
    _component(key=key, data={"pixels": list(pixels)}, on_drawn_change=on_drawn)


def drawn_on(key: str) -> str | None:
    """What was just drawn: 64 digits in base 17, a pixel each; None where the browser sent something else."""
    sent = st.session_state[key].get(_EVENT)
    return sent if isinstance(sent, str) and _PIXELS.fullmatch(sent) else None
