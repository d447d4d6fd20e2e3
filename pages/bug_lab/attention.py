"""The attention of the model without the bug, with it, and the difference: all layers and heads, one enlarged."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from pages.bug_lab.fit import moved
from pages.bug_lab.runs import reading_code
from pages.bug_lab.state import state
from pages.components.attention_view import Selection, attention_choice, attention_view, choose_attention
from pages.shared.notebook import code_and_data
from pages.shared.view import View
from xformer.analysis.attention_head import attention
from xformer.bugs import Bug
from xformer.reading import Reading
from xformer.viz.packing import pack
from xformer.viz.pattern_layers import pattern_layers

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
    runs = dict(zip(("right", "wrong"), both, strict=True))
    heads = [f"xformer.viz.attention({run}, layer={chosen.layer}, head={chosen.head})" for run in runs]
    table = pd.concat(
        [attention(run, layer=chosen.layer, head=chosen.head).assign(run=name) for name, run in runs.items()]
    )
    lines = ["import xformer", *reading_code(view, bug), " | ".join(heads if same else heads[1:])]
    code_and_data(lines, table, "attention", "bug-lab")


def _moved_most(both: Sequence[Reading]) -> Selection:
    far = moved(both)
    if not far:
        return Selection()
    path, head = max(far, key=far.__getitem__)
    return Selection([site.path for site in both[0].sites].index(path), head)
