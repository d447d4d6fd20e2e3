"""A page with only the attention view, at a size given in the link, for the browser benchmark."""

import numpy as np
import streamlit as st

from pages.components.attention_view import attention_choice, attention_view
from xformer.viz.packing import PatternLayer, pack

st.set_page_config(layout="wide")
n, n_layers, n_heads = (int(st.query_params.get(name, "4")) for name in ("tokens", "layers", "heads"))
rng = np.random.default_rng(0)


def layer(index: int) -> PatternLayer:
    scores = rng.normal(0, 2, (n_heads, n, n)).astype(np.float32)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    labels = tuple(f"t{position}" for position in range(n))
    pattern = weights / weights.sum(-1, keepdims=True)
    return PatternLayer(
        f"encoder.{index}.attn", f"layer {index + 1}", pattern, np.ones((1, n, n), bool), labels, labels
    )


layers = [layer(index) for index in range(n_layers)]
chosen = attention_choice("attention", layers)
packed = pack(layers, selected=(chosen.layer, chosen.head))
st.text(f"{sum(map(len, packed.planes))} bytes")
attention_view(packed, key="attention")
