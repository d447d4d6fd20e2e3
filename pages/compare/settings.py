"""What is changed for one player alone: its mask, heads, feed-forward layers, edges, neurons, tokens, and its dice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from pages.compare.match import task_of
from pages.compare.seat import MOST_SEED, Seat
from pages.shared.literal import literal
from pages.shared.resources import MASKS
from xformer import ModelConfig
from xformer.decoding import Sampling
from xformer.errors import XformerError
from xformer.interventions import attention_paths, feed_forward_paths, parse
from xformer.names import layer_title

Change = Callable[[int, Seat], None]
OFF = "positions:off"
KINDS = {
    "solo": "silence all other heads of a layer",
    "cut": "cut an edge",
    "open": "open an edge",
    "neuron": "silence a neuron",
    "token": "replace a token",
}


def settings(index: int, seat: Seat, change: Change) -> None:
    """Draw the settings of one player; `change(index, seat)` puts another in its place."""
    changes_at, dice_at = st.tabs(["What is changed", "How tokens are chosen"])
    with changes_at:
        _changes(index, seat, change)
    with dice_at:
        _dice(index, seat, change)


def _changes(index: int, seat: Seat, change: Change) -> None:
    config, key = seat.checkpoint.config, f"compare_{index}"
    with st.container(horizontal=True, gap="large", vertical_alignment="bottom"):
        _show(f"{key}_mask", seat.mask)
        st.segmented_control(
            "Attention mask",
            MASKS,
            required=True,
            key=f"{key}_mask",
            width="content",
            on_change=lambda: change(index, replace(seat, mask=st.session_state[f"{key}_mask"])),
        )
        if config.position_kind.acts_on != "nothing":
            _show(f"{key}_positions", OFF in seat.changes)
            others = tuple(text for text in seat.changes if text != OFF)
            st.toggle(
                "Positions off",
                key=f"{key}_positions",
                help="Nothing tells the model where a token is.",
                on_change=lambda: change(
                    index, replace(seat, changes=(*others, OFF) if st.session_state[f"{key}_positions"] else others)
                ),
            )
    heads = [f"silence:{path}.{head}" for path in attention_paths(config) for head in range(config.n_heads)]
    _several("Silenced heads", heads, index, seat, change)
    if muted := [f"mute:{path}" for path in feed_forward_paths(config)]:
        _several("Muted feed-forward layers", muted, index, seat, change)
    _others(index, seat, change, {*heads, *muted, OFF})
    _one_more(index, seat, change)


def _several(title: str, texts: list[str], index: int, seat: Seat, change: Change) -> None:
    """The changes among `texts` that are on, to be ticked and unticked."""
    key = f"compare_{index}_{title}"
    _show(key, [text for text in texts if text in seat.changes])

    def changed() -> None:
        kept = [text for text in seat.changes if text not in texts]
        change(index, replace(seat, changes=(*kept, *st.session_state[key])))

    st.multiselect(
        title, texts, format_func=lambda text: _label(text, seat), key=key, on_change=changed, placeholder="as trained"
    )


def _others(index: int, seat: Seat, change: Change, shown: set[str]) -> None:
    """The changes that no list above shows, each with a way back."""
    for text in seat.changes:
        if text not in shown:
            st.button(
                literal(_label(text, seat)),
                icon=":material/close:",
                key=f"compare_{index}_undo_{text}",
                on_click=lambda text=text: change(
                    index, replace(seat, changes=tuple(one for one in seat.changes if one != text))
                ),
            )


def _one_more(index: int, seat: Seat, change: Change) -> None:
    config, key = seat.checkpoint.config, f"compare_{index}_more"
    kinds = [
        kind
        for kind in KINDS
        if (kind != "neuron" or feed_forward_paths(config)) and (kind != "solo" or config.n_heads > 1)
    ]
    with st.container(border=True, gap="xsmall"):
        kind = st.selectbox("One more change", kinds, format_func=KINDS.__getitem__, key=f"{key}_kind_{len(kinds)}")
        text = _ask_change(kind, key, seat, config)
        try:
            parse(",".join([*seat.changes, text]), config)
            problem = ""
        except XformerError as error:
            problem = str(error)
        if problem:
            st.caption(f":material/edit: {literal(problem)}")
        st.button(
            "Add it",
            key=f"{key}_add",
            disabled=bool(problem) or text in seat.changes,
            on_click=lambda: change(index, replace(seat, changes=(*_without(seat.changes, text), text))),
        )


def _ask_change(kind: str, key: str, seat: Seat, config: ModelConfig) -> str:
    """Widgets for what a change needs to know; returns it as a link writes it."""
    if kind == "token":
        labels = task_of(seat).vocabulary.labels
        symbols = range(1, 1 + task_of(seat).vocabulary.symbols)
        left, right = st.columns(2)
        position = left.number_input("Position", 0, config.max_len - 1, 0, key=f"{key}_position")
        token = right.selectbox("becomes", symbols, format_func=labels.__getitem__, key=f"{key}_token_{len(symbols)}")
        return f"token:{position}.{token}"
    if kind == "neuron":
        left, right = st.columns(2)
        path = left.selectbox(
            "Layer",
            feed_forward_paths(config),
            format_func=partial(layer_title, is_pair=True),
            key=f"{key}_ffn_{config.n_layers}",
        )
        neuron = right.number_input("Neuron", 0, config.d_ff - 1, 0, key=f"{key}_neuron")
        return f"neuron:{path}.{neuron}"
    left, right = st.columns(2)
    paths = attention_paths(config)
    path = left.selectbox(
        "Layer", paths, format_func=partial(layer_title, is_pair=True), key=f"{key}_path_{len(paths)}"
    )
    every = [] if kind == "solo" else ["*"]
    heads = [*every, *map(str, range(config.n_heads))]
    head = right.selectbox(
        "Head",
        heads,
        format_func=lambda one: "all" if one == "*" else str(int(one) + 1),
        key=f"{key}_head_{kind}_{len(heads)}",
    )
    if kind == "solo":
        return f"solo:{path}.{head}"
    query = left.number_input("Query (position)", 0, config.max_len - 1, 0, key=f"{key}_query")
    at = right.number_input("Key (position)", 0, config.max_len - 1, 0, key=f"{key}_key")
    return f"{kind}:{path}.{head}.{query}-{at}"


def _dice(index: int, seat: Seat, change: Change) -> None:
    key, sampling = f"compare_{index}_dice", seat.sampling
    st.caption("A temperature of 0 takes the likeliest token; above, dice are thrown, the same ones for the same seed.")
    left, right = st.columns(2)
    n_tokens = seat.checkpoint.config.vocab_size
    values = {
        "temperature": sampling.temperature,
        "top_k": min(sampling.top_k, n_tokens),  # another model can have fewer
        "top_p": max(sampling.top_p, 0.01),
        "seed": seat.seed,
    }
    for name, value in values.items():
        _show(f"{key}_{name}", value)

    def changed() -> None:
        found: dict[str, Any] = {name: st.session_state[f"{key}_{name}"] for name in values}
        seed = int(found.pop("seed") or 0)
        temperature = found["temperature"] or 0.0
        found["temperature"] = 0.0 if temperature < 0.001 else temperature
        found["top_k"], found["top_p"] = int(found["top_k"] or 0), found["top_p"] or 1.0
        change(index, replace(seat, sampling=Sampling(**found), seed=seed))

    always: dict[str, Any] = {"on_change": changed}
    left.number_input("Temperature", 0.0, 100.0, step=0.1, format="%.2f", key=f"{key}_temperature", **always)
    right.number_input("Seed of the dice", 0, MOST_SEED, step=1, key=f"{key}_seed", **always)
    left.number_input("Top k (0: all)", 0, n_tokens, step=1, key=f"{key}_top_k", **always)
    right.number_input("Top p (1: all)", 0.01, 1.0, step=0.05, format="%.2f", key=f"{key}_top_p", **always)


def _without(changes: tuple[str, ...], text: str) -> list[str]:
    """A token has one replacement: the new one takes the old one's place."""
    if not text.startswith("token:"):
        return list(changes)
    place = text.rsplit(".", 1)[0] + "."
    return [one for one in changes if not one.startswith(place)]


def _label(text: str, seat: Seat) -> str:
    return seat.label(parse(text, seat.checkpoint.config)[0])


def _show(key: str, value: Any) -> None:
    """The player is kept in one place; a widget only shows it."""
    if st.session_state.get(key) != value:
        st.session_state[key] = value
