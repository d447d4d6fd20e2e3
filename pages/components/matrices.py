"""The matrices of an attention with their numbers: a click shows how one is computed; words and vectors can be changed.

matrices(matrices_data(...), key="average", changed=take)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st
from streamlit.components.v2 import component

from xformer.widgets.scripts import script, style

_EVENT = "act"
_component = component("xformer_matrices", css=style("matrices"), js=script("matrices", "streamlit"))


def matrices(data: Mapping[str, Any], *, key: str, changed: Callable[[Mapping[str, Any]], None]) -> None:
    """Draw what `xformer.widgets.matrices_data` made.

    Args:
        data: The matrices.
        key: The key of the widget.
        changed: Called before the page runs again, with "row": r, "word": [r, text] or "number": [r, c, value] as the browser
            sent it.
    """

    def hear() -> None:
        sent = st.session_state[key].get(_EVENT)
        if isinstance(sent, dict):
            changed(sent)

    _component(key=key, data=data, on_act_change=hear)
