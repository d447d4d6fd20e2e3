"""Show the tokens that a model reads and predicts in rows; right and wrong differ in a sign as well as in colour.

prediction_strip([Lane("says", ("9", "12"), right=(True, False), probability=(0.99, 0.4))], key="strip")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

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
    lanes: Sequence[Lane],
    *,
    key: str,
    width: Literal["stretch", "content"] = "stretch",
    editing: Editing | None = None,
) -> None:
    """Draw the lanes under each other, token positions aligned."""
    refused = f"{key}_refused"

    def follow() -> None:
        if editing is not None and (sent := edit_sent(st.session_state[key].get("edit"), len(editing.texts))):
            at, text = sent
            st.session_state[refused] = {"at": at, "text": text, "why": editing.take(at, text)}

    edit = None
    if editing is not None:
        problem = st.session_state.pop(refused, {"why": ""})
        edit = {"texts": editing.texts, "first": editing.first, "problem": problem if problem["why"] else None}
    shares = [[None if p is None else round(p, 4) for p in lane.probability] for lane in lanes]
    shown = [asdict(lane) | {"probability": share} for lane, share in zip(lanes, shares, strict=True)]
    _component(key=key, data={"lanes": shown, "edit": edit}, width=width, on_edit_change=follow)


def edit_sent(sent: object, n_places: int) -> tuple[int, str] | None:
    """The place and the text of an edit; None where the browser sent something else."""
    at, text = (sent.get("at"), sent.get("text")) if isinstance(sent, dict) else (None, None)
    if isinstance(at, int) and isinstance(text, str) and 0 <= at < n_places:
        return at, text
    return None
