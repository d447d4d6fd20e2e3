"""The attention of the model without the bug, with it, and the difference: all layers and heads, one enlarged."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pages.bug_lab.choice import moved, state
from pages.components.attention_view import Selection, attention_choice, attention_view, choose_attention
from pages.shared.call import Call
from pages.shared.picture import footer
from pages.shared.view import View
from xformer import viz
from xformer.bugs import Bug
from xformer.reading import Reading
from xformer.viz.packing import pack, pattern_layers

KEY = "bug_attention"


def attention_panel(view: View, bug: Bug, both: Sequence[Reading]) -> None:
    """Draw both, beginning with the head that moved most."""
    layers, other = (pattern_layers(reading) for reading in both)
    about = (view.model, bug.name)
    if state().attention_of != about:
        state().attention_of = about
        choose_attention(KEY, _moved_most(both))
    chosen = attention_choice(KEY, layers)
    same = [item.pattern.shape for item in layers] == [item.pattern.shape for item in other]
    if same:
        chosen = attention_view(pack(layers, other, selected=(chosen.layer, chosen.head)), key=KEY)
    else:
        st.caption("With the bug a pattern has other axes than without it, so the broken one stands alone here.")
        chosen = attention_choice(KEY, other)
        chosen = attention_view(pack(other, selected=(chosen.layer, chosen.head)), key=KEY)
    calls = [Call(viz.attention, (run,), {"layer": chosen.layer, "head": chosen.head}) for run in both]
    footer(view, "bug-attention", calls, remark=["from xformer.bugs.read import read_both"])


def _moved_most(both: Sequence[Reading]) -> Selection:
    far = moved(both)
    if not far:
        return Selection()
    path, head = max(far, key=far.__getitem__)
    return Selection([site.path for site in both[0].sites].index(path), head)
