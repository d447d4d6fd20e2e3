"""The attention of the model without the bug, with it, and the difference: all layers and heads, one enlarged."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.bug_lab.fit import moved
from pages.bug_lab.runs import Pair, recording_code
from pages.components.attention_view import Selection, attention_choice, attention_view, choose_attention
from pages.shared.notebook import code_and_data
from pages.shared.view import View
from xformer.analysis.attention_head import attention
from xformer.bugs import Bug
from xformer.viz.packing import pack
from xformer.viz.pattern_layers import pattern_layers

KEY = "bug_attention"


def attention_panel(view: View, bug: Bug, pair: Pair) -> None:
    """Draw both, beginning with the head that moved most."""
    layers, other = pattern_layers(pair.right), pattern_layers(pair.wrong)
    about = (view.model, bug.name)
    if st.session_state.get("bug_attention_of") != about:
        st.session_state["bug_attention_of"] = about
        choose_attention(KEY, _moved_most(pair))
    chosen = attention_choice(KEY, layers)
    same = [item.pattern.shape for item in layers] == [item.pattern.shape for item in other]
    if same:
        chosen = attention_view(pack(layers, other, selected=(chosen.layer, chosen.head)), key=KEY)
    else:
        st.caption("With the bug a pattern has other axes than without it, so the broken one stands alone here.")
        chosen = attention_choice(KEY, other)
        chosen = attention_view(pack(other, selected=(chosen.layer, chosen.head)), key=KEY)
    at, runs = {"layer": chosen.layer, "head": chosen.head}, {"right": pair.right, "wrong": pair.wrong}
    heads = [f"xformer.viz.attention({run}, layer={chosen.layer}, head={chosen.head})" for run in runs]
    table = pd.concat([attention(run, **at).assign(run=name) for name, run in runs.items()])
    read = "right, wrong = (xformer.reading.from_trace(checkpoint, run) for run in (right, wrong))"
    lines = [*recording_code(view, bug, pair), "import xformer.reading", read, " | ".join(heads if same else heads[1:])]
    code_and_data(lines, table, "attention", "bug-lab")


def _moved_most(pair: Pair) -> Selection:
    far = moved(pair)
    if not far:
        return Selection()
    path, head = max(far, key=far.__getitem__)
    return Selection(pair.right.trace.attention_layers().index(path), head)
