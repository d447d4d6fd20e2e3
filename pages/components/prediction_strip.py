"""Show what a model reads and what it says, token by token, with right and wrong marked by a sign as well as a colour.

prediction_strip([Lane("says", ("9", "12"), right=(True, False), probability=(0.99, 0.4))], key="strip")
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import streamlit as st
from streamlit.components.v2 import component

_HERE = Path(__file__).parent
_component = component(
    "xformer_prediction_strip",
    css=(_HERE / "prediction_strip.css").read_text(encoding="utf-8"),
    js=(_HERE / "prediction_strip.js").read_text(encoding="utf-8"),
)


@dataclass(frozen=True)
class Lane:
    """One row of tokens under a name. `right` and `probability` are given for predictions, one for each token."""

    name: str
    tokens: tuple[str, ...]
    right: tuple[bool, ...] = ()
    probability: tuple[float, ...] = ()
    offset: int = 0
    """How many columns stay free before the first token."""
    moved: tuple[bool, ...] = ()
    """Which tokens differ from the lane above."""


def prediction_strip(lanes: Sequence[Lane], *, key: str) -> None:
    """Draw the lanes under each other, token positions aligned.

    They travel as a line of text that is not shown. Streamlit hands a component its data a frame after it has changed the page;
    a text is on the page at once, and the strip draws what it says in the same frame.
    """
    said = [asdict(lane) | {"probability": [round(one, 4) for one in lane.probability]} for lane in lanes]
    with st.container(key=f"lanes_of_{key}", gap=None):
        st.text(json.dumps(said, separators=(",", ":")))
        _component(key=key)
