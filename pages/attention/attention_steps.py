"""“Step by step”: the arithmetic behind the chosen cell of the chosen head, from q and k to what the head writes."""

from __future__ import annotations

import math

import streamlit as st

from pages.components.attention_view import Selection
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.picture import footer, shown
from pages.shared.view import View
from xformer import viz
from xformer.analysis.principles import AttentionCell, attention_cell, softmax_of_cell
from xformer.reading import Reading
from xformer.viz.packing import AnyLayer
from xformer.viz.principles import MOST_KEYS, STEPS


def steps_panel(view: View, run: Reading, layer: AnyLayer, chosen: Selection) -> None:
    """Draw the steps of one cell of `run`; the numbers are those of the trace."""
    head, (query, key) = chosen.head, cell_of(chosen, layer)
    at = {"layer": chosen.layer, "head": head, "query": query, "key": key}
    calls = {step: Call(viz.attention_steps, (run,), {**at, "step": step}) for step in STEPS}
    cell, d_model = attention_cell(run, **at), view.shape.d_model
    row = softmax_of_cell(cell)
    name_q, name_k = (
        f"{query} “{escape_markdown(layer.query_labels[query])}”",
        f"{key} “{escape_markdown(layer.key_labels[key])}”",
    )
    st.caption(
        f"Query {name_q} and key {name_k} in {layer.title} · head {head + 1}. "
        "Click a cell of the matrix above to choose another; its numbers appear here."
    )
    left, right = st.columns(2, gap="large")
    with left:
        _heading("1 · q, k and their product", f"q, k: [{cell.d_head}]", _shared_sentence(cell))
        shown(view, calls["product"], "step_product")
        _heading("2 · score", "a number", _score_sentence(cell))
        shown(view, calls["scores"], "step_scores")
        if len(row) > MOST_KEYS:
            st.caption(
                f"Drawn are {MOST_KEYS} of {len(row)} keys, those with the largest weights; the CSV has them all."
            )
    with right:
        _heading("3 · mask", f"[{len(cell.allowed)}] of true and false", _mask_sentence(cell, key))
        _heading(
            "4 · softmax over the keys", f"[{len(row)}], sums to 1", _softmax_sentence(cell, row["exp"].tolist(), key)
        )
        shown(view, calls["weights"], "step_weights")
        _heading("5 · z = Σ weight · v", f"[{len(cell.z)}]", _z_sentence(head in layer.silenced))
        shown(view, calls["z"], "step_z")
    adds = "nothing: it is silenced" if head in layer.silenced else "what this head adds to the residual stream here"
    _heading("6 · out = z · W_O", f"[{d_model}]", adds)
    shown(view, calls["out"], "step_out")
    footer(view, "steps", list(calls.values()), row)


def cell_of(chosen: Selection, layer: AnyLayer) -> tuple[int, int]:
    """The locked cell; where only a row is locked, or nothing, the strongest cell of the row or of the first query."""
    query = 0 if chosen.query is None else chosen.query
    if chosen.key is not None:
        return query, chosen.key
    return query, int(layer.pattern[chosen.head, query].argmax())


def _heading(title: str, shape: str, sentence: str) -> None:
    st.markdown(f"**{title}** :gray[{shape}]  \n{sentence}")


def _shared_sentence(cell: AttentionCell) -> str:
    """Where its rows come from, and who else reads the same keys and values (Ainslie et al. 2023)."""
    rows, heads = "one row of X·W_Q, one of X·W_K", cell.shared_by
    if len(heads) < 2:
        return rows
    return f"{rows}; heads {heads[0] + 1} to {heads[-1] + 1} share these keys and values, each with queries of its own"


def _score_sentence(cell: AttentionCell) -> str:
    plain = cell.dot / math.sqrt(cell.d_head) + cell.bias
    if abs(plain - cell.score) > 1e-3 * max(1.0, abs(plain)):
        return f"this model makes **{cell.score:.4f}** of q·k = {cell.dot:.4f}"
    bias = f" + {cell.bias:.4f} (ALiBi)" if cell.bias else ""
    return f"q·k / √{cell.d_head}{bias} = {cell.dot:.4f} / {math.sqrt(cell.d_head):.4f}{bias} = **{cell.score:.4f}**"


def _z_sentence(is_silenced: bool) -> str:
    if is_silenced:
        return "the head is silenced: what it mixed is replaced by 0"
    return "the values of all keys, mixed by the weights"


def _mask_sentence(cell: AttentionCell, key: int) -> str:
    n = int(cell.allowed.sum())
    verdict = (
        "may look at this key" if bool(cell.allowed[key]) else "may **not** look at this key: its score becomes −∞"
    )
    return f"The query may look at {n} of {len(cell.allowed)} keys; it {verdict}."


def _softmax_sentence(cell: AttentionCell, raised: list[float], key: int) -> str:
    total = sum(raised)
    if total == 0:
        return "There is nothing to look at, so every weight is 0."
    return f"exp(score − largest) / Σ = {raised[key]:.4f} / {total:.4f} = **{cell.pattern[key].item():.4f}**"
