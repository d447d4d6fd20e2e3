"""The last step of First principles: the same arithmetic with the numbers of one head of a trained model."""

from __future__ import annotations

import math
from typing import Any

import streamlit as st

from pages.first_principles.sentence import PLACE, followed_row, show_matrices
from pages.first_principles.steps import CLEAR
from pages.shared import models, resources, screens
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import headline
from pages.shared.link import asked, carry
from pages.shared.picture import footer, toolbar
from pages.shared.widgets import choose, typed
from xformer import Checkpoint
from xformer.analysis.principles import Mixed, head_of
from xformer.errors import InputError
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.widgets.matrices_data import Shown, mix, product, softmax

MODEL, USUAL = "reverse-decoder", "3 7 12"
MOST_NUMBERS = 4
"""Numbers of its input: with the answer they make nine rows."""
COLUMNS_OF_Z = 4
"""Columns of Z that are drawn."""


def model_panel() -> tuple[list[str], dict[str, str]]:
    """Draw the step; returns what to notice, and the input for the link."""
    if MODEL not in models.shipped():
        st.info(f"This step needs the shipped model {MODEL}; `make checkpoints` trains it.")
        return [], {}
    checkpoint = models.checkpoint(MODEL)
    config, place = checkpoint.config, st.container()
    with toolbar():
        source, problem = _ask_source(checkpoint)
        layers = {at: f"layer {at + 1}" for at in range(config.n_layers)}
        heads = {at: f"head {at + 1}" for at in range(config.n_heads)}
        look: dict[str, Any] = {"widget": st.selectbox, "width": 110, "label_visibility": "collapsed"}
        layer = choose("layer", layers, 0, "Layer", key="principle_layer", **look)
        head = choose("head", heads, 0, "Head", key="principle_head", **look)
        st.page_link(
            screens.file_of("attention"),
            label="Open on Attention",
            icon=":material/grid_view:",
            query_params={"model": MODEL, "input": _written(source), "head": f"{layer + 1}.{head + 1}"},
        )
    run = resources.run(MODEL, source)
    mixed = head_of(run, layer=layer, head=head)
    row = followed_row(mixed.names, len(source))
    if problem:
        st.error(escape_markdown(problem), icon=":material/edit:")
    with place:
        headline(_finding(mixed, row))
    width, d = mixed.v.shape[1], config.d_head
    drawn = min(COLUMNS_OF_Z, width)
    pictures = [
        *(Shown(name, name, mixed, name.lower(), drawn=False) for name in "QKV"),
        Shown("S", f"S = Q Kᵀ / √{d}", mixed, "scores", "later tokens −∞", product("Q", "K", divide=math.sqrt(d))),
        Shown("A", "A = softmax(S)", mixed, "weights", "each row sums to 1", softmax("S")),
        Shown("Z", "Z = A V", mixed, "out", f"{drawn} of {width} columns", mix("A", "V"), drawn),
    ]
    footer(PLACE, "model", show_matrices(pictures, "model", row))
    return head_notes(run, mixed, layer, head, row), {"input": _written(source)}


def _finding(mixed: Mixed, row: int) -> str:
    """Where a row attends most, as a finding; "" where attention is almost even."""
    best = int(mixed.weights[row].argmax())
    weight = mixed.weights[row, best].item()
    if row == 0 or weight < 1 / (row + 1) + CLEAR:
        return ""
    names = [escape_markdown(name) for name in mixed.names]
    return f"At “{names[row]}” this trained head puts {percent(weight, 0)} of its attention on “{names[best]}”."


def _ask_source(checkpoint: Checkpoint) -> tuple[tuple[int, ...], str]:
    """The typed numbers, or the last readable ones with an error message."""
    if (wanted := asked("input")) is not None:
        st.session_state["principle_input"] = wanted[:60]
    st.session_state.setdefault("principle_input", USUAL)
    carry("principle_input")
    label = f"Up to {MOST_NUMBERS} numbers"
    text = st.text_input(label, key="principle_input", persist_state="session", width=160, label_visibility="collapsed")
    task = checkpoint.task
    assert task is not None
    try:
        source = task.vocabulary.read(typed(text, 60))
        if len(source) > MOST_NUMBERS:
            raise InputError(f"This step reads at most {MOST_NUMBERS} numbers, got {len(source)}.")
        task.example(source, max_len=checkpoint.config.max_len)
    except InputError as error:
        return st.session_state.get("principle_input_last", (3, 7, 12)), str(error)
    st.session_state["principle_input_last"] = tuple(source)
    return tuple(source), ""


def _written(source: tuple[int, ...]) -> str:
    return " ".join(str(number) for number in source)


def head_notes(run: Reading, mixed: Mixed, layer: int, head: int, row: int) -> list[str]:
    """What to notice in one row of a head."""
    names = [escape_markdown(name) for name in mixed.names]
    patterns = run[f"{run.attention[layer].path}.pattern"][0]  # [head, query, key]
    own = patterns[head]
    apart = (own - mixed.weights).abs().max().item()
    same = "the same to the last digit" if apart == 0 else f"within {apart:.1g} of each other"
    found = [
        "q, k and v are read from a run of a trained model, and the same steps are done with them. The model’s own pattern "
        f"and the one drawn here are {same}."
    ]
    root = math.sqrt(mixed.q.shape[1])
    lost = (mixed.products[row] / root).softmax(dim=-1)[row + 1 :].sum().item()
    if lost >= 0.001:
        found.append(f"Without the mask {lost:.3f} of this row’s weight would lie on tokens to come.")
    others = patterns[:, row].argmax(dim=-1).tolist()  # [head]
    if len(set(others)) > 1:
        looks = ", ".join(f"head {i + 1} most at “{names[at]}”" for i, at in enumerate(others))
        found.append(
            f"The heads of this layer look at different tokens: {looks}. Their Z stand side by side before W_O."
        )
    labelled = (run.example.labels[0] >= 0).nonzero().flatten().tolist()
    if row in labelled:
        at = labelled.index(row)
        predicted, right = (escape_markdown(run.subject.labels[token]) for token in (run.predicted[at], run.answer[at]))
        found.append(
            f"After all layers the model says “{predicted}” here, with a probability of {run.probability[at]:.3f}; "
            + ("that is right." if run.right[at] else f"right is “{right}”.")
        )
    return found
