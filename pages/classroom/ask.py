"""The dialog in which the lecturer asks the students of a room a question, and the right answer to each kind of question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import streamlit as st

from pages.classroom import follow
from pages.classroom.routes import hub, rooms
from pages.components.attention_view import Selection
from pages.compute import cached_runs, models
from pages.controls.text import escape_markdown
from pages.state import link
from xformer.analysis.ablation import estimate_head_effects
from xformer.classroom.rooms import MAX_CELLS, MAX_OPTIONS, Room, RoomQuestion
from xformer.errors import ClassroomError, XformerError
from xformer.layer_path import head_title
from xformer.reading import Reading
from xformer.viz.packing import AnyLayer, exact_weights, pattern_layers

KINDS = {
    "cell": "Where will it look?",
    "token": "What will it answer?",
    "head": "Which head matters?",
    "choice": "Your own question",
}
SAME = 1e-3
"""Weights that differ by less than this count as equal, so that several cells are right."""
MAX_MEASURED = 64
"""Maximum number of heads that are ablated one by one to find the most important; above it, gradient estimates are used."""
FEW = 8
"""Number of answers to choose from if the vocabulary is large."""


def keep_the_link() -> None:
    """Make the screen reopen at its current link, because its widgets lose their values while it is not drawn."""
    link.reopen(link.written()[1])


@st.dialog("Ask the students", width="large")
def dialog(room: Room) -> None:
    """Let the lecturer compose a question. The model runs with the input and mask chosen here, hidden until the reveal."""
    kind = st.segmented_control(
        "Question", list(KINDS), format_func=KINDS.__getitem__, default="cell", required=True, key="ask_kind",
        label_visibility="collapsed",
    )  # fmt: skip
    values = link.written()[1]
    if kind == "choice":
        _own_question(room)
        return
    try:
        found = follow.view_of_link(values)
    except XformerError:
        found = None
    if found is None:
        st.info("Open a screen that shows a model, such as Attention, to ask what it does.")
        return
    typed, mask, view = values["input"], values["mask"], found[0]
    if view.kind.is_typed:
        help = "Use an input other than the one on screen, which the students have seen."
        typed = st.text_input("Input", typed, key="ask_input", help=help)
    if not view.shape.is_read_only:
        masks = cached_runs.MASKS
        mask = st.segmented_control("Attention mask", masks, default=mask, required=True, key="ask_mask") or mask
    asked: dict[str, str] = dict(values) | {"input": typed, "mask": mask}
    try:
        found = follow.view_of_link(asked)
        assert found is not None
        view, at = found
        run = view.changed() or view.original()
        make = {"cell": _cell, "token": _token, "head": _head}[kind]
        question, truth, head = make(run, at)
    except XformerError as error:
        st.error(escape_markdown(str(error)))
        return
    text = st.text_input("Wording", question["text"], key=f"ask_words_{kind}_{question['text']}")
    if st.button("Ask", type="primary", icon=":material/how_to_vote:", key="ask_now"):
        asked |= {"head": head} if head else {}
        about = [models.title_of(view.model), f"input {typed}", *cached_runs.mask_words(mask)]
        about += [edit_link.label for edit_link in view.edit_links]
        _send(room, {**question, "text": text, "kind": kind, "about": " · ".join(about)}, truth, "attention", asked)


def _send(room: Room, content: dict[str, Any], truth: Sequence[str], screen: str, values: dict[str, str]) -> None:
    try:
        message, _ = follow.shown(screen, values) if values else ({}, None)
        rooms().ask(room.id, RoomQuestion(**content, shown=message), truth)
    except XformerError as error:
        st.error(escape_markdown(str(error)))
        return
    if values:
        link.reopen(values)
    follow.publish_again()
    hub.changed(room.id)
    if values:
        st.switch_page("pages/attention/page.py", query_params=values)
    st.rerun()


def _own_question(room: Room) -> None:
    text = st.text_input("Question", key="ask_own_text", placeholder="Why does the last head look at the first token?")
    written = st.text_area("Answers, one per line", "yes\nno", key="ask_own_answers", height=120)
    options = [line.strip() for line in written.splitlines() if line.strip()]
    st.caption("You are asked for the right answer when you reveal the votes, because students see this screen.")
    if st.button("Ask", type="primary", icon=":material/how_to_vote:", key="ask_now"):
        content = {"kind": "choice", "text": text, "options": tuple(options)}
        keep_the_link()
        _send(room, content, (), "", {})


def _heads(layers: Sequence[AnyLayer]) -> dict[tuple[int, int], str]:
    return {
        (layer, head): f"{site.title} · head {head + 1}"
        for layer, site in enumerate(layers)
        for head in range(site.shape[0])
    }


def _cell(run: Reading, at: Selection) -> tuple[dict[str, Any], list[str], str]:
    layers = pattern_layers(run)
    heads = _heads(layers)
    options = list(heads)
    first = options.index((at.layer, at.head)) if (at.layer, at.head) in heads else 0
    with st.container(horizontal=True):
        layer, head = st.selectbox("Head", options, first, format_func=heads.__getitem__, key="ask_head")
        site = layers[layer]
        queries: list[int | None] = [None, *range(len(site.query_labels))]
        query = st.selectbox(
            "Query", queries, 0 if at.query is None or at.query + 1 >= len(queries) else at.query + 1, key="ask_query",
            format_func=lambda query: "any: they also pick a row" if query is None else f"{query} · {site.query_labels[query]}",
        )  # fmt: skip
    if max(site.shape[1:]) > MAX_CELLS:
        raise ClassroomError(f"A map can have at most {MAX_CELLS} tokens here; this one has {max(site.shape[1:])}.")
    pattern = exact_weights(site, head)
    pattern = np.where(np.isfinite(pattern), pattern, 0.0)  # a hidden cell is infinite
    truth = [
        f"{row}.{key}"
        for row, weights in enumerate(pattern)
        if query in (None, row)
        for key in np.flatnonzero(weights >= max(weights.max() - SAME, SAME))
    ]
    where = "each token" if query is None else f"query {query}, “{site.query_labels[query]}”,"
    text = f"Where will {where} look most? ({heads[layer, head]})"
    content = {"text": text, "queries": site.query_labels, "keys": site.key_labels, "query": query}
    return content, truth, f"{layer + 1}.{head + 1}"


def _token(run: Reading, at: Selection) -> tuple[dict[str, Any], list[str], str]:
    outputs = [*run.target_positions, *([] if run.open_output is None else [run.open_output])]
    if not run.has_logits or not outputs:
        raise ClassroomError("This model predicts no tokens for this input.")
    names = {output: f"output {output + 1}" for output in outputs}
    output = outputs[0]
    if len(outputs) > 1:
        output = st.selectbox("Answer", outputs, len(outputs) - 1, format_func=names.__getitem__, key="ask_output")
    logits, labels = run.logits[0, output].float(), run.adapter.token_labels
    best = int(logits.argmax())
    tokens = list(range(logits.shape[0]))
    if len(tokens) > MAX_OPTIONS or len(tokens) > 64:
        tokens = sorted(logits.topk(FEW).indices.tolist(), key=lambda token: labels[token])
    tokens = [token for token in tokens if token == best or labels[token] not in ("pad", "start")]
    text = "What will it answer?" if len(outputs) == 1 else f"What will it answer at {names[output]}?"
    if output == run.open_output:
        text = "Which token comes next?"
    return {"text": text, "options": tuple(labels[token] for token in tokens)}, [str(tokens.index(best))], ""


def _head(run: Reading, at: Selection) -> tuple[dict[str, Any], list[str], str]:
    sites = run.attention
    heads = [(layer, head) for layer, site in enumerate(sites) for head in range(run.adapter.shape.heads[site.path])]
    if len(heads) > MAX_OPTIONS:
        raise ClassroomError(f"A question can have at most {MAX_OPTIONS} answers; this model has {len(heads)} heads.")
    found = estimate_head_effects(run)
    effects = found.estimated
    if len(heads) <= MAX_MEASURED:
        found.measure_heads(*heads)
        effects = found.measured
    best = max(heads, key=lambda head: effects[head])
    titles = tuple(
        head_title(sites[layer].path, head, is_encoder_decoder=run.is_encoder_decoder) for layer, head in heads
    )
    text = "Which head matters most: which one, if removed, makes the answer worst?"
    return {"text": text, "options": titles}, [str(heads.index(best))], f"{best[0] + 1}.{best[1] + 1}"
