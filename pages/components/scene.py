"""The scene: a run of a model as an animation, from its tokens to its answers, in which the input can be changed.

clicked = scene(scene_data(reading), key="scene")
if clicked: st.switch_page(…)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.components.v2 import component

from pages.components.prediction_strip import Editing, edit_sent
from pages.shared.escape_markdown import escape_markdown
from xformer.widgets.scripts import script, style

_EVENT = "act"
_component = component("xformer_scene", css=style("scene"), js=script("scene", "streamlit"))
SCREENS = frozenset({"attention", "embeddings", "feed_forward", "positions", "residual"})
"""What a part of the scene leads to."""


@dataclass(frozen=True)
class Opened:
    """The screen of the part that was clicked; of a head also which one, as a link writes it."""

    screen: str
    head: str = ""


def scene(data: bytes, *, key: str, editing: Editing | None = None) -> Opened | None:
    """Draw packed data of `xformer.widgets.scene_data` and return what was clicked just now.

    Args:
        data: What `scene_data` packed.
        key: The key of the widget.
        editing: What takes a token that was changed in the scene.
    """

    def hear() -> None:
        sent = st.session_state[key].get(_EVENT)
        edit = edit_sent(sent.get("edit"), len(editing.texts)) if editing and isinstance(sent, dict) else None
        if editing and edit and (problem := editing.take(*edit)):
            st.toast(escape_markdown(problem))

    return opened(_component(key=key, data=data, on_act_change=hear).get(_EVENT))


def opened(sent: Any) -> Opened | None:
    """What a browser asks to open, where it is a screen that the scene leads to; None otherwise."""
    target = sent.get("open") if isinstance(sent, dict) else None
    if not isinstance(target, dict) or not isinstance(screen := target.get("screen"), str) or screen not in SCREENS:
        return None
    head = target.get("head", "")
    return Opened(
        target["screen"], head if isinstance(head, str) and re.fullmatch(r"\d{1,3}\.\d{1,4}", head, re.ASCII) else ""
    )
