"""“Step by step”: the arithmetic behind the chosen cell of the chosen head, from q and k to what the head writes."""

from __future__ import annotations

import math

import streamlit as st

from pages.shared.layout import is_dark
from pages.shared.literal import literal
from pages.shared.notebook import footer
from pages.shared.view import View
from xformer.analysis.stages import Stages, dimensions, softmax_row, stages, strongest, written
from xformer.layers.attention import Attention
from xformer.reading import Reading
from xformer.site import Site
from xformer.viz.packing import PatternLayer
from xformer.viz.stages import products, scores, vector, weights

MOST = 48
"""So many keys are drawn."""


def stages_panel(view: View, run: Reading, layer: PatternLayer, head: int, query: int, key: int) -> None:
    """Draw the stages of one cell of `run`; the numbers are those of the trace."""
    cell = stages(run.trace, layer.name, head, query, key)
    dark = is_dark()
    name_q, name_k = f"{query} “{literal(layer.query_labels[query])}”", f"{key} “{literal(layer.key_labels[key])}”"
    st.caption(
        f"Query {name_q} and key {name_k} in {layer.title} · head {head + 1}. "
        "Click a cell of the matrix above to choose another; its numbers appear here."
    )
    left, right = st.columns(2, gap="large")
    with left:
        _heading("1 · q, k and their product", f"q, k: [{cell.d_head}]", "one row of X·W_Q, one of X·W_K")
        st.altair_chart(products(dimensions(cell), dark=dark), key="stage_products")
        _heading("2 · score", "a number", _score_sentence(cell))
        row = softmax_row(cell, layer.key_labels)
        drawn = strongest(row, MOST, key)
        st.altair_chart(scores(drawn, key, dark=dark), key="stage_scores")
        if len(drawn) < len(row):
            st.caption(
                f"Drawn are the {len(drawn)} of {len(row)} keys that get the largest weights; the CSV has them all."
            )
    with right:
        _heading("3 · mask", f"[{len(cell.allowed)}] of true and false", _mask_sentence(cell, key))
        _heading(
            "4 · softmax over the keys", f"[{len(row)}], sums to 1", _softmax_sentence(cell, row["exp"].tolist(), key)
        )
        st.altair_chart(weights(drawn, key, dark=dark), key="stage_weights")
        _heading("5 · z = Σ weight · v", f"[{len(cell.z)}]", _z_sentence(head in layer.silenced))
        st.altair_chart(vector(cell.z.tolist(), "z", "dimension of the value", dark=dark), key="stage_z")
    attention = view.checkpoint.model.get_submodule(_module_path(layer.name))
    assert isinstance(attention, Attention)
    out = written(cell.z, attention.W_O[head])
    adds = "nothing: it is silenced" if head in layer.silenced else "what this head adds to the residual stream here"
    _heading("6 · out = z · W_O", f"[{len(out)}]", adds)
    st.altair_chart(vector(out.tolist(), "out", "dimension of the stream", dark=dark), key="stage_out")
    footer(
        view,
        [
            "import altair as alt",
            "from xformer.analysis.stages import dimensions, softmax_row, stages, strongest, written",
            "from xformer.viz.stages import products, scores, vector, weights",
            f'cell = stages(trace, "{layer.name}", {head}, {query}, {key})',
            f"row = strongest(softmax_row(cell, {layer.key_labels!r}), {MOST}, {key})",
            f'out = written(cell.z, checkpoint.model.get_submodule("{_module_path(layer.name)}").W_O[{head}]).tolist()',
            'z = vector(cell.z.tolist(), "z", "dimension of the value")',
            'out = vector(out, "out", "dimension of the stream")',
            f"pictures = products(dimensions(cell)), scores(row, {key}), weights(row, {key}), z, out",
            'alt.vconcat(*pictures).resolve_scale(x="independent", y="independent", color="independent")',
        ],
        row,
        "stages",
    )


def _heading(title: str, shape: str, sentence: str) -> None:
    st.markdown(f"**{title}** :gray[{shape}]  \n{sentence}")


def _score_sentence(cell: Stages) -> str:
    bias = f" + {cell.bias:.4f} (ALiBi)" if cell.bias else ""
    return f"q·k / √{cell.d_head}{bias} = {cell.dot:.4f} / {math.sqrt(cell.d_head):.4f}{bias} = **{cell.score:.4f}**"


def _z_sentence(is_silenced: bool) -> str:
    if is_silenced:
        return "the head is silenced: what it mixed is replaced by 0"
    return "the values of all keys, mixed by the weights"


def _mask_sentence(cell: Stages, key: int) -> str:
    n = int(cell.allowed.sum())
    verdict = (
        "may look at this key" if bool(cell.allowed[key]) else "may **not** look at this key: its score becomes −∞"
    )
    return f"The query may look at {n} of {len(cell.allowed)} keys; it {verdict}."


def _softmax_sentence(cell: Stages, raised: list[float], key: int) -> str:
    total = sum(raised)
    if total == 0:
        return "There is nothing to look at, so every weight is 0."
    return f"exp(score − largest) / Σ = {raised[key]:.4f} / {total:.4f} = **{cell.pattern[key].item():.4f}**"


def _module_path(path: str) -> str:
    """Where a layer named as in a trace lives in the model: "encoder.0.attn" is encoder.blocks.0.attn."""
    site = Site.parse(path)
    return f"{site.stack}.blocks.{site.layer}.{site.kind}"
