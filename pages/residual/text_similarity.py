"""“How alike texts are”: of a model without logits, the cosines of whole texts in place of a lens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pandas as pd
import streamlit as st

from pages.shared import resources
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.inputs import MOST_TYPED
from pages.shared.layout import caption, what_to_notice
from pages.shared.link import asked, carry, chose
from pages.shared.picture import footer, heading, shown, table
from pages.shared.view import View
from pages.shared.widgets import choose, seed, typed
from xformer import analysis, viz
from xformer.adapters import ModelAdapter
from xformer.analysis.text_similarity import Pooling, default_pooling, is_causal, projects, stream_names
from xformer.errors import InputError

MORE_TEXTS = ("Although the movie took its time, I loved all of it.", "The train to the airport leaves at noon.")
"""Beside the default input: one that says the same in other words, and one about something else."""
MOST_TEXTS = 8
MOST_LINES = 4
"""Up to so many texts each pair has a line over the layers."""
CLEAR = 0.02
"""Cosines that are closer than this are not ranked."""
ALL_ALIKE = 0.5
"""From such a smallest cosine on, a cosine by itself says little."""
_KEY = "similar_texts"
_POOLINGS = {"mean": "mean", "last": "last", "first": "first", "own": "own"}
_MEANS = {
    "mean": "the mean over all positions of a text, special tokens included",
    "last": "the vector at the last position of a text",
    "first": "the vector at the first position of a text",
    "own": "the one vector that the model itself makes of a text",
}


def similarity_panel(view: View) -> None:
    """Ask for texts, how their vectors are pooled and after which layer; draw their cosines."""
    heading("How alike texts are to this model")
    names = stream_names(view.subject)  # raises before anything is asked for
    texts = _ask_texts(view)
    usual = default_pooling(view.subject)
    poolings = {name: words for name, words in _POOLINGS.items() if name != "own" or "pooled" in view.original()}
    left, right = st.columns(2, gap="medium", vertical_alignment="bottom")
    with left:
        pooling = cast(Pooling, choose("pooling", poolings, usual, "Pooling", key="similar_pooling"))
    last = len(names) - 1
    layer = last
    if pooling != "own":
        with right:
            layer = _ask_layer(last)
    if not texts:
        return
    options: dict[str, Any] = {"texts": texts} | ({} if pooling == usual else {"pooling": pooling})
    frame = table(view, analysis.similarity, view.original(), **options)
    look: dict[str, Any] = options if layer == last else options | {"layer": layer}
    calls = [Call(viz.similarity, (view.original(),), look)]
    if pooling != "own" and len(texts) <= MOST_LINES:
        calls.append(Call(viz.similarity, (view.original(),), {**look, "what": "layers"}))
    for index, (place, call) in enumerate(zip(st.columns([3, 2][: len(calls)], gap="medium"), calls, strict=True)):
        with place:
            shown(view, call, f"similarity_{index}")
    footer(view, "similarity", calls, frame)
    where = "at the output" if layer == last else "of the embeddings" if layer == 0 else f"after layer {layer}"
    left_out = " The changes that are on are left out here." if view.is_changed else ""
    caption(
        f"Cosines {where}: 1 is the same direction, 0 a right angle, −1 the opposite. A text’s vector is {_MEANS[pooling]}"
        f"{_reason(view.subject, pooling, usual)}.{left_out}"
    )
    if notes := similarity_notes(frame.loc[frame["layer"] == layer], texts):
        what_to_notice(notes)


def _ask_texts(view: View) -> list[str]:
    """The texts, one a line; nothing where they cannot be read, which is said."""
    first = view.input.text(view.source)
    if (wanted := asked("texts")) is not None:
        st.session_state[_KEY] = wanted
    elif st.session_state.get("similar_input") != (view.model, first):  # another input takes the first line
        lines = str(st.session_state.get(_KEY, "\n".join(["", *MORE_TEXTS]))).splitlines()
        st.session_state[_KEY] = "\n".join([first, *lines[1:]])
    st.session_state["similar_input"] = (view.model, first)
    carry(_KEY)
    written = st.text_area(
        "Texts, one a line", key=_KEY, persist_state="session", height=122, help=f"Two to {MOST_TEXTS} texts."
    )
    chose("texts", written)
    try:
        texts = [line.strip() for line in typed(written, MOST_TYPED).splitlines() if line.strip()]
        if not 2 <= len(texts) <= MOST_TEXTS:
            raise InputError(f"Type 2 to {MOST_TEXTS} texts, one a line, got {len(texts)}.")
        for text in texts:
            resources.check_memory(view.model, view.input.read(text))
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        return []
    return texts


def _ask_layer(last: int) -> int:
    """After which layer; 0 is what enters the first one."""
    seed("after", range(last + 1), last, key="similar_layer", called="layer")
    layer = st.select_slider(
        "After layer",
        range(last + 1),
        format_func=lambda at: "0: embeddings" if at == 0 else f"{at}: output" if at == last else str(at),
        key="similar_layer",
        persist_state="session",
    )
    chose("after", str(layer))
    return layer


def _reason(subject: ModelAdapter, pooling: str, usual: str) -> str:
    """Why the vectors are pooled in this way."""
    if pooling != usual:
        return f"; usual for this model is {_MEANS[usual]}"
    if getattr(subject, "pooling", None) == pooling:
        return ", as the 1_Pooling of its folder says"
    if projects(subject):
        return ", which its class projects for this use"
    if is_causal(subject):
        return ", the only one that sees all of it"
    return ": its folder names no pooling, and every position sees the whole text"


def similarity_notes(frame: pd.DataFrame, texts: Sequence[str]) -> list[str]:
    """Which two texts are most alike, where that is clear, and whether all are so alike that a cosine alone says little.

    `frame` has one layer of `analysis.similarity`.
    """
    pairs = frame.loc[frame["first"] < frame["second"]].sort_values("cosine", ascending=False).to_dict("records")
    notes = []
    if len(pairs) > 1 and pairs[0]["cosine"] - pairs[1]["cosine"] > CLEAR:
        best, next_one = pairs[0], pairs[1]
        one, other = texts[best["first"]], texts[best["second"]]
        if one != other:
            notes.append(
                f"Texts **{best['first'] + 1}** and **{best['second'] + 1}** are most alike: {_number(best['cosine'])}. Next "
                f"come {next_one['first'] + 1} and {next_one['second'] + 1} with {_number(next_one['cosine'])}."
            )
    if len(pairs) > 1 and pairs[-1]["cosine"] > ALL_ALIKE and pairs[0]["cosine"] - pairs[-1]["cosine"] > CLEAR:
        notes.append(
            f"Even the least alike two have {_number(pairs[-1]['cosine'])}: compare the cosines with each other, not with 1."
        )
    return notes


def _number(cosine: float) -> str:
    return f"{cosine:.2f}".replace("-", "−")
