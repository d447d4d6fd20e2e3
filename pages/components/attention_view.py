"""The attention view in Streamlit: all heads of a run, one of them enlarged, with rows, columns and tokens linked.

    chosen = attention_choice("attention", layers)              # the current selection, valid for these layers
    packed = pack(layers, selected=(chosen.layer, chosen.head))
    chosen = attention_view(packed, key="attention")

The browser draws every head from packed bytes. The exact weights of the selected head and the planes of the original run are
separate messages, in two invisible elements. So a click on a head sends only that head, and a change of the run sends only the
changed run. The messages precede the view, so that it is drawn only once.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import streamlit as st
from streamlit.components.v2 import component

from pages.components import event_data, memory_key, parse_index
from xformer.viz.packing import SCALES, AnyLayer, Packed, pack_selection
from xformer.widgets.scripts import script, style

MAX_HEADS = 32
"""Number of heads of a layer whose arcs can be selected from Python."""
_component = component("xformer_attention_view", css=style("attention_view"), js=script("attention_view", "streamlit"))
_message = component("xformer_attention_message", js=script("attention_view", "streamlit_message"))
SHOWN = ("both", "matrix", "arcs")


@dataclass(frozen=True)
class Look:
    """How the enlarged head is drawn: one of `SCALES`, one of `SHOWN`, and the heads (from 0) whose arcs are also drawn."""

    scale: str = SCALES[0]
    shown: str = SHOWN[0]
    arcs: tuple[int, ...] = ()

    @property
    def packed(self) -> tuple[int, int, tuple[int, ...]]:
        """The look as `pack_selection` takes it."""
        return SCALES.index(self.scale), SHOWN.index(self.shown), self.arcs


@dataclass(frozen=True)
class Selection:
    """The selection in the attention view: a head and the query and key locked by a click, all counted from 0.

    A locked token or row has a query and no key, a locked column a key and no query. Without a `look` the view keeps its own.
    """

    layer: int = 0
    head: int = 0
    query: int | None = None
    key: int | None = None
    look: Look | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a link parameter like "3.2" or "3.2.0-5", with layer and head counted from 1; None if it is malformed."""
        found = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,5})-(\d{1,5}))?", text, re.ASCII)
        if found is None:
            return None
        query, key = (None if digits is None else int(digits) for digits in found.groups()[2:])
        return cls(int(found[1]) - 1, int(found[2]) - 1, query, key)

    def __str__(self) -> str:
        text = f"{self.layer + 1}.{self.head + 1}"
        return text if self.query is None or self.key is None else f"{text}.{self.query}-{self.key}"

    def is_in(self, heads: Sequence[int]) -> bool:
        """Whether the layer and the head exist, given the number of heads of each layer."""
        return 0 <= self.layer < len(heads) and 0 <= self.head < heads[self.layer]

    @property
    def looks(self) -> Look:
        return self.look or Look()


def attention_choice(key: str, layers: Sequence[AnyLayer]) -> Selection:
    """Return the selection of the view `key`, clamped to `layers`; initially head 0 of layer 0."""
    return _inside(st.session_state.get(_memory(key)), [layer.shape for layer in layers])


def choose_attention(key: str, selection: Selection) -> None:
    """Set the selection before the view is drawn, from a link or a row of a table. It may be out of range."""
    before = st.session_state.get(_memory(key))
    if selection.look is None and isinstance(before, Selection):
        selection = replace(selection, look=before.look)
    st.session_state[_memory(key)] = selection
    _send(key, selection)


def attention_view(packed: Packed, *, key: str) -> Selection:
    """Draw packed patterns and return the selection."""
    shapes = [(item["heads"], item["queries"], item["keys"]) for item in packed.layers]

    def remember() -> None:
        if choice := event_data(key, "choice"):
            st.session_state[_memory(key)] = _inside(_read(choice), shapes)

    chosen = _inside(st.session_state.get(_memory(key)), shapes)
    if key not in st.session_state or _sent(key) not in st.session_state:
        _send(key, chosen)
    selection, order = st.session_state[_sent(key)]
    original, planes = packed.apart(key)
    cell = (selection.query, selection.key)
    planes += pack_selection((selection.layer, selection.head), cell, selection.looks.packed, order=order)
    _message(key=f"original_of_{key}", data=original)
    _message(key=f"exact_of_{key}", data=packed.head(key))
    _component(key=key, data=planes, on_choice_change=remember)
    return chosen


_memory, _sent = (partial(memory_key, what=what) for what in ("choice", "sent"))


def _send(key: str, selection: Selection) -> None:
    """Send a selection made in Python. Sending back one made in the browser would transfer all bytes again."""
    order = st.session_state.get(_sent(key), (None, 0))[1]
    st.session_state[_sent(key)] = (selection, order + 1)


def _read(choice: dict[str, Any]) -> Selection:
    layer, head, query, key = (parse_index(choice.get(name)) for name in ("layer", "head", "query", "key"))
    arcs, shown, scale = choice.get("arcs"), choice.get("shown"), choice.get("scale")
    heads = [parse_index(head, MAX_HEADS) for head in arcs] if isinstance(arcs, list) else []
    drawn = tuple(sorted({head for head in heads if head is not None}))
    look = Look(scale if scale in SCALES else SCALES[0], shown if shown in SHOWN else SHOWN[0], drawn)
    return Selection(layer or 0, head or 0, query, key, look)


def _inside(selection: Any, shapes: Sequence[tuple[int, ...]]) -> Selection:
    """Clamp a selection to the layers at hand; a query or key that does not exist there becomes None."""
    if not isinstance(selection, Selection):
        return Selection()
    layer = min(max(selection.layer, 0), len(shapes) - 1)
    heads, queries, keys = shapes[layer]

    head = min(max(selection.head, 0), heads - 1)
    look = replace(selection.looks, arcs=tuple(arc for arc in selection.looks.arcs if arc < min(heads, MAX_HEADS)))
    return Selection(layer, head, parse_index(selection.query, queries), parse_index(selection.key, keys), look)
