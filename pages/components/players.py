"""Animations of `xformer.widgets` on a screen: the scene, token + position, matrices, a training, a comparison step by step.

The browser has all frames and asks the server nothing while they play. It sends a click, or the step where a player rests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.components.v2 import component

from pages.components import sent, whole
from pages.components.controls import Editing, edit_sent
from pages.shared.text import escape_markdown
from xformer.widgets.scripts import script, style


def _component(name: str) -> Any:
    return component(f"xformer_{name}", css=style(name), js=script(name, "streamlit"))


embedding_sum, _matrices, _scene = map(_component, ("embedding_sum", "matrices", "scene"))
_step_ruler, _training_player = map(_component, ("step_ruler", "training_player"))
SCREENS = frozenset({"attention", "embeddings", "feed_forward", "positions", "residual"})
"""What a part of the scene leads to."""


@dataclass(frozen=True)
class Opened:
    """The screen of the part of the scene that was clicked; of a head also which one, as a link writes it."""

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
        edit = edit_sent(sent(key, "act").get("edit"), len(editing.texts)) if editing else None
        if editing and edit and (problem := editing.take(*edit)):
            st.toast(escape_markdown(problem))

    return opened(_scene(key=key, data=data, on_act_change=hear).get("act"))


def opened(act: Any) -> Opened | None:
    """What a browser asks to open, where it is a screen that the scene leads to; None otherwise."""
    target = act.get("open") if isinstance(act, dict) else None
    if not isinstance(target, dict) or not isinstance(screen := target.get("screen"), str) or screen not in SCREENS:
        return None
    head = target.get("head", "")
    is_head = isinstance(head, str) and re.fullmatch(r"\d{1,3}\.\d{1,4}", head, re.ASCII)
    return Opened(screen, head if is_head else "")


def matrices(data: Mapping[str, Any], *, key: str, changed: Callable[[Mapping[str, Any]], None]) -> None:
    """Draw what `xformer.widgets.matrices_data` made; a click shows how a number is computed.

    Args:
        data: The matrices.
        key: The key of the widget.
        changed: Called before the page runs again, with "row": r, "word": [r, text] or "number": [r, c, value] as the browser
            sent it.
    """
    _matrices(key=key, data=data, on_act_change=lambda: changed(sent(key, "act")))


def step_ruler(data: dict[str, Any], *, order: str, start: int, key: str, detail: bool = True) -> int:
    """Draw what `pack_steps` packed and return the step where the ruler rests.

    Args:
        data: The steps of all models.
        order: Names what is compared: whenever it changes, and when the ruler is new to the browser, it goes to `start`.
        start: The step at first.
        key: The key of the widget.
        detail: Whether it shows in numbers how sure and how far apart the models are.
    """
    last = max(len(model["predicted"]) for model in data["models"]) - 1

    def remember() -> None:
        rest = sent(key, "rest")
        if (step := whole(rest.get("step"))) is not None and rest.get("order") == order:
            st.session_state[f"{key}:rest"] = (order, step)

    _step_ruler(key=key, data=data | {"order": order, "start": start, "detail": detail}, on_rest_change=remember)
    resting = resting_step(key, order)
    return min(start if resting is None else resting, last)


def resting_step(key: str, order: str) -> int | None:
    """Where the ruler `key` rests; None before the browser has sent a step of this comparison."""
    resting = st.session_state.get(f"{key}:rest")
    return resting[1] if isinstance(resting, tuple) and resting[0] == order else None


@dataclass(frozen=True)
class Rest:
    """Where the training player rests: a step, or None while it follows the latest; and the head that was enlarged, if any."""

    step: int | None = None
    head: tuple[int, int] | None = None


def training_player(packed: bytes, *, key: str) -> None:
    """Draw what `xformer.viz.timeline.pack_film` packed; `resting` says where it rests."""

    def remember() -> None:
        rest = sent(key, "rest")
        layer, head = whole(rest.get("layer")), whole(rest.get("head"))
        chosen = None if layer is None or head is None else (layer, head)
        st.session_state[_memory(key)] = Rest(whole(rest.get("step")), chosen)

    _training_player(key=key, data=packed, on_rest_change=remember)


def resting(key: str) -> Rest:
    """Where the player `key` rests."""
    return st.session_state.get(_memory(key), Rest())


def put_at(key: str, step: int | None) -> None:
    """Record that Python sent the player `key` to a step, with the packed frames."""
    st.session_state[_memory(key)] = Rest(step, resting(key).head)


def _memory(key: str) -> str:
    # Not the widget's own value, which Streamlit deletes when the visitor leaves the page.
    return f"{key}:rest"
