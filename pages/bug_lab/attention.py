"""The attention of the model without the bug, with it, and the difference: all layers and heads, one enlarged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import streamlit as st

from pages.bug_lab.fit import moved
from pages.bug_lab.runs import Pair, recording_code
from pages.components.attention_view import Selection, attention_choice, attention_view, choose_attention
from pages.shared.notebook import code_and_data
from pages.shared.view import View
from xformer.bugs import Bug
from xformer.reading import Reading
from xformer.viz.attention import layer_title, pattern_frame
from xformer.viz.packing import PatternLayer, pack

KEY = "bug_attention"


def attention_panel(view: View, bug: Bug, pair: Pair) -> None:
    """Draw both, beginning with the head that moved most."""
    layers, other = _layers(view, pair.right), _layers(view, pair.wrong)
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
    layer, heads = other[chosen.layer], []
    for run, item in (("right", layers), ("wrong", other)):
        names = f"{item[chosen.layer].query_labels!r}, {item[chosen.layer].key_labels!r}"
        heads.append(f'head_chart(head_frame({run}, "{layer.name}", {chosen.head}, {names}))')
    lines = ["from xformer.viz.attention import head_chart, head_frame", " | ".join(heads if same else heads[1:])]
    tables = [
        _table(item[chosen.layer], chosen.head).assign(run=run) for run, item in (("right", layers), ("wrong", other))
    ]
    code_and_data([*recording_code(view, bug, pair), *lines], pd.concat(tables), "attention", "bug-lab")


def _layers(view: View, run: Reading) -> list[PatternLayer]:
    """The patterns of a run as they are, even where a bug has given them other axes than they should have."""
    streams = {side: view.reads(run, side) for side in ("encoder", "decoder")}
    found = []
    for site in run.trace.sites():
        path, queries, keys = site.path, streams[site.query_stack], streams[site.key_stack]
        pattern = run.trace[f"{path}.pattern"][0].numpy(force=True)  # [head, query, key]
        allowed = run.trace[f"{path}.mask"][0].numpy(force=True)  # [head, query, key]
        queries, keys = _named(queries, keys, pattern.shape[1]), _named(keys, queries, pattern.shape[2])
        if np.broadcast_shapes(allowed.shape, pattern.shape) != pattern.shape:
            allowed = np.ones((1, 1, 1), dtype=bool)
        allowed = allowed | np.isnan(pattern)  # a NaN is to be seen, masked or not
        title = layer_title(path, is_pair=view.is_pair)
        found.append(PatternLayer(path, title, pattern, allowed, tuple(queries), tuple(keys)))
    return found


def _named(usual: Sequence[str], other: Sequence[str], n: int) -> list[str]:
    """The labels of an axis of n places: those that it should have, those of the other stream, or numbers."""
    return next((list(names) for names in (usual, other) if len(names) == n), [str(i) for i in range(n)])


def _moved_most(pair: Pair) -> Selection:
    far = moved(pair)
    if not far:
        return Selection()
    path, head = max(far, key=far.__getitem__)
    return Selection(pair.right.trace.attention_layers().index(path), head)


def _table(layer: PatternLayer, head: int) -> pd.DataFrame:
    allowed = np.broadcast_to(layer.allowed, layer.pattern.shape)[head]
    return pattern_frame(layer.pattern[head], allowed, layer.query_labels, layer.key_labels)
