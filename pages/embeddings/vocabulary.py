"""The whole vocabulary: its vectors seen along the directions in which they differ most, and one token's neighbours."""

from __future__ import annotations

import streamlit as st
from torch import Tensor

from pages.shared import resources
from pages.shared.ask import choose
from pages.shared.byte_cache import kept
from pages.shared.layout import is_dark
from pages.shared.literal import literal
from pages.shared.notebook import footer, heading
from pages.shared.view import View
from xformer.analysis import embeddings as analysis
from xformer.viz import embeddings as viz
from xformer.words import percent

AXES = {"2": "2-D", "3": "3-D"}


def vocabulary_panel(view: View, side: str | None) -> None:
    """Draw both, side by side."""
    vectors = vocabulary(view, side)
    tokens = (view.changed() or view.original()).ids(side)
    left, right = st.columns([3, 2], gap="large")
    with right:
        near = _neighbours(view, vectors, tokens, side)
    with left:
        _projection(view, vectors, tokens, side, near)


def vocabulary(view: View, side: str | None) -> Tensor:
    """The vectors of all tokens, [vocab d_model], of one side of an encoder-decoder or of the only stack."""
    return _vocabulary(view.model, stack_of(view, side))


def stack_of(view: View, side: str | None) -> str:
    """The stack whose embedding is looked at."""
    return side or view.checkpoint.config.architecture


@kept
def _vocabulary(name: str, stack: str) -> Tensor:
    return analysis.vocabulary_vectors(resources.checkpoint(name).model, stack)


@kept
def _pca(name: str, stack: str) -> analysis.Pca:
    return analysis.pca(_vocabulary(name, stack), 3)


def _projection(view: View, vectors: Tensor, tokens: list[int], side: str | None, near: str) -> None:
    heading("The whole vocabulary")
    axes = choose("axes", AXES if min(vectors.shape) > 2 else {"2": "2-D"}, "2", "Axes", label_visibility="collapsed")
    found = _pca(view.model, stack_of(view, side))
    explained, label, dark = found.explained.tolist(), view.task.vocabulary.labels, is_dark()
    table = analysis.projection_table(found, label, tokens)
    if axes == "3":
        st.plotly_chart(
            viz.projection_3d(table, explained, dark=dark),
            width="stretch",
            theme="streamlit",
            key="projection_3d",
            config={"displaylogo": False},
        )
        draw, more = "projection_3d", ""
    else:
        chosen = label.index(near)
        chart = viz.projection(table, explained, dark=dark, chosen=chosen)
        st.altair_chart(chart, width="stretch", key="projection", on_select=_follow_click, selection_mode="point")
        draw, more = "projection", f", chosen={chosen}"
    seen = sum(explained[: int(axes)])
    hint = (
        "Hover for their positions."
        if axes == "3"
        else "Names that would collide are left out: hover for them. Click a token for its neighbours (ringed)."
    )
    st.caption(
        f"{len(vectors)} vectors of {vectors.shape[1]} numbers, seen along the {axes} directions in which they differ most: "
        f"{percent(seen, 1)} of their variance, so {percent(1 - seen, 1)} is not in the picture. The input’s tokens "
        f"are large. {hint}"
    )
    lines = [
        "from xformer.analysis import embeddings as analysis",
        "from xformer.viz import embeddings as viz",
        f"found = analysis.pca(analysis.vocabulary_vectors(checkpoint.model, {side or 'encoder'!r}), 3)",
        f"table = analysis.projection_table(found, checkpoint.task.vocabulary.labels, {tokens})",
        f"viz.{draw}(table, found.explained.tolist(), dark={dark}{more})",
    ]
    footer(view, lines, table, "projection")


def _neighbours(view: View, vectors: Tensor, tokens: list[int], side: str | None) -> str:
    label = view.task.vocabulary.labels
    heading("Nearest neighbours")
    names = {name: f"{name}{' · in the input' if token in tokens else ''}" for token, name in enumerate(label)}
    near = choose("near", names, label[tokens[0]], "of token", widget=st.selectbox, label_visibility="collapsed")
    token = label.index(near)
    table = analysis.neighbours(vectors, label, token)
    st.dataframe(
        table.drop(columns="id"),
        hide_index=True,
        key="neighbours",
        column_config={
            "cosine": st.column_config.NumberColumn(format="%.6f", help="1: the same direction; 0: at right angles."),
            "distance": st.column_config.NumberColumn(format="%.6f", help="Length of the difference."),
        },
    )
    others = analysis.cosines(vectors)[token]
    usual = (others.abs().sum() - others[token].abs()) / max(1, len(others) - 1)
    st.caption(
        f"By cosine, among the whole vocabulary. |cosine| of {literal(near)} with the others is {usual:.3f} on average; "
        f"directions drawn at random in {vectors.shape[1]} dimensions have {analysis.random_cosine(vectors.shape[1]):.3f}."
    )
    lines = [
        "from xformer.analysis import embeddings as analysis",
        f"vectors = analysis.vocabulary_vectors(checkpoint.model, {side or 'encoder'!r})",
        f"analysis.neighbours(vectors, checkpoint.task.vocabulary.labels, {token})",
    ]
    footer(view, lines, table, "neighbours")
    return near


def _follow_click() -> None:
    """The token that was clicked in the projection becomes the one whose neighbours are shown."""
    for point in st.session_state["projection"]["selection"].get("point", []):
        st.session_state["near"] = point["token"]
