"""One more change for one player: of a kind that no list of heads or layers holds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import streamlit as st

from pages.compare.comparison import Choice, state
from pages.shared.escape_markdown import escape_markdown
from xformer.errors import XformerError
from xformer.interventions import parse
from xformer.model_shape import ModelShape
from xformer.names import layer_title

KINDS = {
    "solo": "silence all other heads of a layer",
    "cut": "cut an edge",
    "open": "open an edge",
    "neuron": "silence a neuron",
    "token": "replace a token",
}


def ask_one_more(index: int, choice: Choice) -> None:
    """Choose a kind, then what it needs to know, and add it; or say why it cannot be."""
    shape, key = choice.shape, f"compare_{index}_more"
    left_out = {"neuron": not shape.neurons, "solo": shape.n_heads == 1}
    kinds = [kind for kind in KINDS if not left_out.get(kind)]
    with st.container(border=True, gap="xsmall"):
        kind = st.selectbox("One more change", kinds, format_func=KINDS.__getitem__, key=f"{key}_kind_{len(kinds)}")
        text = _ask(kind, key, choice, shape)
        problem = ""
        try:
            parse(",".join([*choice.changes, text]), shape)
        except XformerError as error:
            problem = str(error)
            st.caption(f":material/edit: {escape_markdown(problem)}")
        st.button(
            "Add it",
            key=f"{key}_add",
            disabled=bool(problem) or text in choice.changes,
            on_click=lambda: state().put(index, replace(choice, changes=(*_without_twin(choice, text), text))),
        )


def _ask(kind: str, key: str, choice: Choice, shape: ModelShape) -> str:
    """Widgets for what a change needs to know; returns it as a link writes it."""
    left, right = st.columns(2)
    if kind == "token":
        symbols, labels = choice.subject.input.replacements, choice.subject.labels
        position = left.number_input("Position", 0, shape.max_len - 1, 0, key=f"{key}_position")
        token = right.selectbox("becomes", symbols, format_func=labels.__getitem__, key=f"{key}_token_{len(symbols)}")
        return f"token:{position}.{token}"
    paths = list(shape.neurons if kind == "neuron" else shape.heads)
    place = f"{key}_ffn_{shape.n_layers}" if kind == "neuron" else f"{key}_path_{len(paths)}"
    path = left.selectbox("Layer", paths, format_func=partial(layer_title, is_pair=True), key=place)
    if kind == "neuron":
        return f"neuron:{path}.{right.number_input('Neuron', 0, shape.neurons[path] - 1, 0, key=f'{key}_neuron')}"
    heads = [*([] if kind == "solo" else ["*"]), *map(str, range(shape.heads[path]))]
    head = right.selectbox(
        "Head",
        heads,
        format_func=lambda one: "all" if one == "*" else str(int(one) + 1),
        key=f"{key}_head_{kind}_{len(heads)}",
    )
    if kind == "solo":
        return f"solo:{path}.{head}"
    query = left.number_input("Query (position)", 0, shape.max_len - 1, 0, key=f"{key}_query")
    at = right.number_input("Key (position)", 0, shape.max_len - 1, 0, key=f"{key}_key")
    return f"{kind}:{path}.{head}.{query}-{at}"


def _without_twin(choice: Choice, text: str) -> list[str]:
    """A token has one replacement: the new one takes the old one's place."""
    place = text.rsplit(".", 1)[0] + "."
    return [one for one in choice.changes if not (text.startswith("token:") and one.startswith(place))]
