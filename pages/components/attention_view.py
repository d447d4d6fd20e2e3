"""Show all attention heads of a run, enlarge one, and link rows, columns and tokens: drawn and hovered in the browser.

    chosen = attention_choice("attention", layers)              # what is chosen now, valid for these layers
    packed = pack(layers, selected=(chosen.layer, chosen.head))
    chosen = attention_view(packed, key="attention")

The browser draws every head from the bytes it has. The exact numbers of the chosen head come in a message of their own, and so
do the planes of the original run, through elements that show nothing: a click on a head sends that head alone, a change the
changed run. They come first, so that the picture is drawn once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st
from streamlit.components.v2 import component

from xformer.viz.packing import AnyLayer, apart, header_of, messages, rider
from xformer.widgets.scripts import script, style

_EVENT = "choice"
MOST_HEADS = 32
"""Of so many heads of a layer the arcs can be told to the browser."""
_component = component("xformer_attention_view", css=style("attention_view"), js=script("attention_view", "streamlit"))
_message = component("xformer_attention_message", js=script("attention_view", "streamlit_message"))
SHOWN = ("both", "matrix", "arcs")
SCALES = ("fixed", "own", "log", "without_first_token")
"""What the colours mean: 0 to 1, up to each head's largest, a logarithm, or up to the largest besides the first key."""
OLD_SCALES = {"rest": "without_first_token"}
"""What the browser and older links call a scale."""


@dataclass(frozen=True)
class Look:
    """How the enlarged head is drawn: on which of `SCALES`, as which picture, and whose arcs besides its own, as heads counted
    from 0."""

    scale: str = SCALES[0]
    shown: str = SHOWN[0]
    arcs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Selection:
    """What is chosen in the attention view: a head and, where one is locked by a click, a query and a key.

    All are counted from 0. A locked token or row has a query and no key; a locked column a key and no query. Without a
    `look` the view keeps the one that it has.
    """

    layer: int = 0
    head: int = 0
    query: int | None = None
    key: int | None = None
    look: Look | None = None

    @property
    def looks(self) -> Look:
        return self.look or Look()


def attention_choice(key: str, layers: Sequence[AnyLayer]) -> Selection:
    """Return what is chosen in the view `key`, moved inside what `layers` has; head 0 of layer 0 at first."""
    return _inside(st.session_state.get(_memory(key)), [layer.shape for layer in layers])


def choose_attention(key: str, selection: Selection) -> None:
    """Choose from Python, before the view is drawn: a deep link or a row of a table. It may be out of range."""
    before = st.session_state.get(_memory(key))
    if selection.look is None and isinstance(before, Selection):
        selection = replace(selection, look=before.look)
    st.session_state[_memory(key)] = selection
    _tell(key, selection)


def attention_view(packed: bytes, *, key: str, height: int | None = None) -> Selection:
    """Draw packed patterns and return what is chosen; `height` caps the enlarged picture, in CSS pixels.

    Raises ValueError when the bytes do not come from `xformer.viz.packing.pack`.
    """
    shapes = [(item["heads"], item["queries"], item["keys"]) for item in header_of(packed)["layers"]]

    def remember() -> None:
        sent = st.session_state[key].get(_EVENT)
        if isinstance(sent, dict):
            st.session_state[_memory(key)] = _inside(_read(sent), shapes)

    chosen = _inside(st.session_state.get(_memory(key)), shapes)
    if key not in st.session_state or _told(key) not in st.session_state:
        _tell(key, chosen)
    told, order = st.session_state[_told(key)]
    planes, head = messages(packed, key)
    look = (SCALES.index(told.looks.scale), SHOWN.index(told.looks.shown), told.looks.arcs)
    original, planes = apart(planes)
    planes += rider((told.layer, told.head), (told.query, told.key), look, order=order, height=height or 0)
    _message(key=f"original_of_{key}", data=original)
    _message(key=f"exact_of_{key}", data=head)
    _component(key=key, data=planes, on_choice_change=remember)
    return chosen


def _memory(key: str) -> str:
    # A plain entry of the session, since a widget's own value dies when its page is left.
    return f"{key}:choice"


def _told(key: str) -> str:
    return f"{key}:told"


def _tell(key: str, selection: Selection) -> None:
    """Have the browser lock what Python chose; only then, as telling it what it just said would resend all bytes."""
    order = st.session_state.get(_told(key), (None, 0))[1]
    st.session_state[_told(key)] = (selection, order + 1)


def _read(sent: dict[str, Any]) -> Selection:
    def number(name: str) -> int | None:
        value = sent.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    arcs = sent.get("arcs")
    heads = (
        sorted({head for head in arcs if type(head) is int and 0 <= head < MOST_HEADS}) if type(arcs) is list else ()
    )
    shown, scale = sent.get("shown"), sent.get("scale")
    scale = OLD_SCALES.get(str(scale), scale)
    look = Look(scale if scale in SCALES else SCALES[0], shown if shown in SHOWN else SHOWN[0], tuple(heads))
    return Selection(number("layer") or 0, number("head") or 0, number("query"), number("key"), look)


def _inside(selection: Any, shapes: Sequence[tuple[int, ...]]) -> Selection:
    """Clamp to the layers at hand; a query or key that does not exist there is forgotten."""
    if not isinstance(selection, Selection):
        return Selection()
    layer = min(max(selection.layer, 0), len(shapes) - 1)
    heads, queries, keys = shapes[layer]

    def known(value: int | None, size: int) -> int | None:
        return value if value is not None and 0 <= value < size else None

    head = min(max(selection.head, 0), heads - 1)
    look = replace(selection.looks, arcs=tuple(one for one in selection.looks.arcs if one < min(heads, MOST_HEADS)))
    return Selection(layer, head, known(selection.query, queries), known(selection.key, keys), look)
