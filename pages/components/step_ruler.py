"""Step through the predictions of several models on one input: lanes, entropy, KL divergence and the likeliest tokens.

    at = step_ruler(pack_steps(runs), order="what is compared", start=3, key="ruler")    # the step where the ruler rests

The browser has all steps and asks the server nothing while stepping. The server is sent a step when the ruler rests on it.
"""

from __future__ import annotations

from typing import Any

import streamlit as st
from streamlit.components.v2 import component

from xformer.widgets.scripts import script, style

_EVENT = "rest"
_component = component("xformer_step_ruler", css=style("step_ruler"), js=script("step_ruler", "streamlit"))


def step_ruler(data: dict[str, Any], *, order: str, start: int, key: str, detail: bool = True) -> int:
    """Draw the ruler and return the step where it rests; with `detail` also how sure and how far apart all are, in numbers.

    `order` names what is compared: whenever it changes, and when the ruler is new to the browser, it goes to `start`.
    """
    last = max(len(model["predicted"]) for model in data["models"]) - 1

    def remember() -> None:
        sent = st.session_state[key].get(_EVENT)
        step = sent.get("step") if isinstance(sent, dict) else None
        if isinstance(step, int) and not isinstance(step, bool) and sent.get("order") == order:
            st.session_state[f"{key}:rest"] = (order, step)

    _component(key=key, data=data | {"order": order, "start": start, "detail": detail}, on_rest_change=remember)
    resting = resting_step(key, order)
    return min(max(start if resting is None else resting, 0), last)


def resting_step(key: str, order: str) -> int | None:
    """Where the ruler `key` rests; None before the browser has sent a step of this comparison."""
    resting = st.session_state.get(f"{key}:rest")
    return resting[1] if isinstance(resting, tuple) and resting[0] == order else None
