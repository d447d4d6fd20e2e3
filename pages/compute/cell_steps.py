"""One cell of a head, step by step: the arithmetic from q and k to what the head adds to the residual stream."""

from __future__ import annotations

import streamlit as st

from pages.components.attention_view import Selection
from pages.components.elements import matrices
from pages.compute.call import picture_call
from pages.compute.picture import footer, shown
from pages.controls.text import escape_markdown
from pages.state.view import View
from xformer import viz
from xformer.analysis.principles import StreamUpdate, attention_cell, softmax_of_cell, stream_update
from xformer.errors import UnavailableError
from xformer.reading import Reading
from xformer.viz.packing import AnyLayer
from xformer.viz.principles import STEPS
from xformer.widgets.matrices_data import is_followed, row_data


def steps_panel(
    view: View, run: Reading, layer: AnyLayer, chosen: Selection, hint: str = "", *, has_charts: bool = True
) -> None:
    """Draw the steps of one query as an animation, or as charts where the cell cannot be animated.

    `hint` ends the caption; `has_charts`: whether all numbers of its vectors are drawn below the animation.
    """
    head, (query, key) = chosen.head, cell_of(chosen, layer)
    at = {"layer": chosen.layer, "head": head, "query": query, "key": key}
    calls = {step: picture_call(viz.attention_steps, run, **at, step=step) for step in STEPS}
    cell = attention_cell(run, **at)
    name_q, name_k = (escape_markdown(text) for text in (layer.query_labels[query], layer.key_labels[key]))
    heads = cell.shared_by  # grouped-query attention, Ainslie et al. 2023
    sharing = f"; heads {heads[0] + 1} to {heads[-1] + 1} share these keys and values" if len(heads) > 1 else ""
    st.caption(f"Query {query} · {name_q} and key {key} · {name_k} in {layer.title} · head {head + 1}{sharing}. {hint}")
    if is_animated := is_followed(cell):
        name = f"{query} · {layer.query_labels[query]}"
        data = row_data(cell, query=name, key=key, step=str(at), stream=_stream(run, chosen.layer, head, query))
        matrices(data, key="steps", changed=lambda sent: None)
        calls = {step: calls[step] for step in ("product", "out")}
    if has_charts or not is_animated:
        for step, call in calls.items():
            shown(view, call, f"step_{step}")
    footer(view, "steps", list(calls.values()), softmax_of_cell(cell))


def _stream(run: Reading, layer: int, head: int, query: int) -> StreamUpdate | None:
    """Return what the head adds to the residual stream; None where no sum says it."""
    try:
        return stream_update(run, layer=layer, head=head, query=query)
    except UnavailableError:
        return None


def cell_of(chosen: Selection, layer: AnyLayer) -> tuple[int, int]:
    """Return the locked cell, else the largest weight of the locked row, else of the first query."""
    query = 0 if chosen.query is None else chosen.query
    if chosen.key is not None:
        return query, chosen.key
    return query, int(layer.pattern[chosen.head, query].argmax())
