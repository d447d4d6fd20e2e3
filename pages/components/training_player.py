"""Play the attention to an input and its prediction through the snapshots of a run.

    chosen = training_player(pack_film(…), key="film")        # chosen.step: where the player rests, None while it follows

The browser has all frames. The server is sent a step when the player rests on it.
"""

from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.components.v2 import component

from xformer.widgets.scripts import script, style

_EVENT = "rest"
_component = component(
    "xformer_training_player", css=style("training_player"), js=script("training_player", "streamlit")
)


@dataclass(frozen=True)
class Rest:
    """Where the player rests: a step, or None while it follows the latest; and the head a visitor enlarged, if any."""

    step: int | None = None
    head: tuple[int, int] | None = None


def training_player(packed: bytes, *, key: str) -> Rest:
    """Draw a packed film (`xformer.viz.timeline.pack_film`) and return where it rests."""

    def remember() -> None:
        sent = st.session_state[key].get(_EVENT)
        if isinstance(sent, dict):
            st.session_state[_memory(key)] = _read(sent)

    _component(key=key, data=packed, on_rest_change=remember)
    return resting(key)


def resting(key: str) -> Rest:
    """Where the player `key` rests."""
    found = st.session_state.get(_memory(key))
    return found if isinstance(found, Rest) else Rest()


def put_at(key: str, step: int | None) -> None:
    """Record that Python sent the player `key` to a step, with the packed frames."""
    st.session_state[_memory(key)] = Rest(step, resting(key).head)


def _memory(key: str) -> str:
    # Not the widget's own value, which Streamlit deletes when the visitor leaves the page.
    return f"{key}:rest"


def _read(sent: dict[str, Any]) -> Rest:
    def number(value: Any) -> int | None:
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9 else None

    layer, head = number(sent.get("layer")), number(sent.get("head"))
    return Rest(number(sent.get("step")), None if layer is None or head is None else (layer, head))
