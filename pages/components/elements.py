"""Custom elements on a screen, each a script of `xformer.widgets`: rows of editable tokens, a pad, animations, players.

prediction_strip([Lane("predicts", ("9", "12"), right=(True, False), probability=(0.99, 0.4))], key="strip")
digit_pad(key="pad", data={"pixels": pixels}, on_drawn_change=take)        # in `take`: drawn_on("pad")

The browser has all frames of an animation and sends no requests while it plays. It sends clicks, and the step at which a
player stops.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import streamlit as st
from streamlit.components.v2 import component

from pages.components import event_data, memory_key, parse_index
from pages.controls.text import escape_markdown
from xformer.widgets.scripts import script, style


def _component(name: str) -> Any:
    return component(f"xformer_{name}", css=style(name), js=script(name, "streamlit"))


copy_address = _component("copy_address")
"""Two buttons that copy the address as a link or as an iframe with only the picture. The iframe omits the values in `usual`."""
playlist, lesson_cards = map(_component, ("playlist", "lesson_cards"))
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
        if editing is not None and (edit := edit_sent(st.session_state[key].get("edit"), editing.texts)):
            at, text = edit
            if problem := editing.take(at, text):
                st.session_state[refused] = {"at": at, "text": text, "why": problem}

    edit = None
    if editing is not None:
        edit = {"texts": editing.texts, "first": editing.first, "problem": st.session_state.pop(refused, None)}
    shares = [[None if p is None else round(p, 4) for p in lane.probability] for lane in lanes]
    shown = [asdict(lane) | {"probability": share} for lane, share in zip(lanes, shares, strict=True)]
    _prediction_strip(key=key, data={"lanes": shown, "edit": edit}, width=width, on_edit_change=follow)


def edit_sent(edit: object, texts: Sequence[str]) -> tuple[int, str] | None:
    """Return the index and the new text of an edit that the browser sent; None if it does not fit the present `texts`.

    The visitor may have edited tokens that an earlier edit has moved: a new token goes to the present end, and another edit
    takes effect only where its token still stands.

    >>> edit_sent({"at": 3, "was": "", "text": "9"}, ("5", "12", ""))
    (2, '9')
    >>> edit_sent({"at": 0, "was": "3", "text": "9"}, ("5", "12", ""))
    """
    if not isinstance(edit, dict) or not isinstance(text := edit.get("text"), str):
        return None
    was = edit.get("was")
    at = len(texts) - 1 if was == texts[-1] else parse_index(edit.get("at"), len(texts))
    return None if at is None or was != texts[at] else (at, text)


def drawn_on(key: str) -> str | None:
    """Return the current drawing, one base-17 digit for each of 64 pixels; None if the browser's message is malformed."""
    drawn = st.session_state[key].get("drawn")
    return drawn if isinstance(drawn, str) and _PIXELS.fullmatch(drawn) else None


embedding_sum, code_view, attention_map = map(_component, ("embedding_sum", "code_view", "attention_map"))
_matrices, _scene = map(_component, ("matrices", "scene"))
_step_ruler, _training_player = map(_component, ("step_ruler", "training_player"))
SCREENS = frozenset({"attention", "embeddings", "feed_forward", "positions", "residual"})
"""The screens that clicking a part of the scene can open."""


@dataclass(frozen=True)
class ClickedScreen:
    """The screen to open after a click in the scene; for a head, also the head as written in links."""

    screen: str
    head: str = ""


def scene(
    data: bytes,
    *,
    key: str,
    editing: Editing | None = None,
    enlarge: Callable[[ClickedScreen], object] = lambda clicked: None,
) -> ClickedScreen | None:
    """Draw the scene and return the screen that the visitor has just clicked, if any.

    Args:
        data: The result of `scene_data`.
        key: The key of the widget.
        editing: Handles tokens edited in the scene.
        enlarge: Called in a callback with a clicked head.
    """

    def on_act() -> None:
        clicked = opened(act := event_data(key, "act"))
        if clicked is not None and clicked.head:
            enlarge(clicked)
        edit = edit_sent(act.get("edit"), editing.texts) if editing else None
        if editing and edit and (problem := editing.take(*edit)):
            st.toast(escape_markdown(problem))

    return opened(_scene(key=key, data=data, on_act_change=on_act).get("act"))


def opened(act: Any) -> ClickedScreen | None:
    """Return the screen that the browser asks to open; None if it is not in `SCREENS` or the message is malformed."""
    target = act.get("open") if isinstance(act, dict) else None
    if not isinstance(target, dict) or not isinstance(screen := target.get("screen"), str) or screen not in SCREENS:
        return None
    head = target.get("head", "")
    is_head = isinstance(head, str) and re.fullmatch(r"\d{1,3}\.\d{1,4}", head, re.ASCII)
    return ClickedScreen(screen, head if is_head else "")


def matrices(data: Mapping[str, Any], *, key: str, changed: Callable[[Mapping[str, Any]], None]) -> None:
    """Draw matrices; clicking a number shows how it is computed.

    Args:
        data: The result of `xformer.widgets.matrices_data`.
        key: The key of the widget.
        changed: Called before the page reruns, with "row": r, "word": [r, text] or "number": [r, c, value] as sent by the
            browser, which must be validated.
    """
    _matrices(key=key, data=data, on_act_change=lambda: changed(event_data(key, "act")))


def step_ruler(data: dict[str, Any], *, order: str, start: int, key: str, detail: bool = True) -> int:
    """Draw the step ruler and return the step at which it stands.

    Args:
        data: The result of `pack_steps`: the steps of all models.
        order: Identifies the comparison. The ruler moves to `start` whenever it changes, and when the ruler is first drawn.
        start: The initial step.
        key: The key of the widget.
        detail: Whether to show the confidence of the models and their differences as numbers.
    """
    last = max(len(model["predicted"]) for model in data["models"]) - 1

    def remember() -> None:
        rest = event_data(key, "rest")
        if (step := parse_index(rest.get("step"))) is not None and rest.get("order") == order:
            st.session_state[memory_key(key, "rest")] = (order, step)

    _step_ruler(key=key, data=data | {"order": order, "start": start, "detail": detail}, on_rest_change=remember)
    resting = resting_step(key, order)
    return min(start if resting is None else resting, last)


def resting_step(key: str, order: str) -> int | None:
    """Return the step of the ruler `key`; None before the browser has sent one for this comparison."""
    resting = st.session_state.get(memory_key(key, "rest"))
    return resting[1] if isinstance(resting, tuple) and resting[0] == order else None


@dataclass(frozen=True)
class Rest:
    """The state of the training player: its step (None while it follows the latest) and the enlarged head, if any."""

    step: int | None = None
    head: tuple[int, int] | None = None


def training_player(packed: bytes, *, key: str) -> None:
    """Draw the player of a timeline packed by `xformer.viz.timeline.pack_timeline`; `resting` returns its state."""

    def remember() -> None:
        rest = event_data(key, "rest")
        layer, head = parse_index(rest.get("layer")), parse_index(rest.get("head"))
        chosen = None if layer is None or head is None else (layer, head)
        st.session_state[memory_key(key, "rest")] = Rest(parse_index(rest.get("step")), chosen)

    _training_player(key=key, data=packed, on_rest_change=remember)


def resting(key: str) -> Rest:
    """Return the state of the player `key`."""
    return st.session_state.get(memory_key(key, "rest"), Rest())


def put_at(key: str, step: int | None) -> None:
    """Record that Python moves the player `key` to a step; the packed frames tell the browser."""
    st.session_state[memory_key(key, "rest")] = Rest(step, resting(key).head)
