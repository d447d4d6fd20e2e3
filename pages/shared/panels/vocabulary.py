"""The whole vocabulary: its vectors seen along the directions in which they differ most, and one token's neighbours."""

from __future__ import annotations

import streamlit as st
from torch import Tensor

from pages.shared import resources
from pages.shared.ask import choose
from pages.shared.layout import is_dark
from pages.shared.literal import literal
from pages.shared.notebook import footer, heading
from pages.shared.view import View
from xformer.analysis import embeddings as analysis
from xformer.viz import embeddings as viz

AXES = {"2": "2-D", "3": "3-D"}


def vocabulary_panel(view: View, side: str | None) -> dict[str, str]:
    """Draw both, side by side; returns what was chosen, for the link."""
    vectors = vocabulary(view, side)
    tokens = (view.changed() or view.original()).tokens(side)
    left, right = st.columns([3, 2], gap="large")
    with right:
        near = _neighbours(view, vectors, tokens, side)
    with left:
        axes = _projection(view, vectors, tokens, side, near)
    return {"axes": axes, "near": near}


def vocabulary(view: View, side: str | None) -> Tensor:
    """The vectors of all tokens, [vocab d_model], of one side of an encoder-decoder or of the only stack."""
    return _vocabulary(view.model, _stack(view, side))


def _stack(view: View, side: str | None) -> str:
    return side or view.checkpoint.config.architecture


@st.cache_resource(max_entries=16, show_spinner=False)
def _vocabulary(name: str, stack: str) -> Tensor:
    return analysis.vocabulary_vectors(resources.checkpoint(name).model, stack)


@st.cache_resource(max_entries=16, show_spinner=False)
def _pca(name: str, stack: str) -> analysis.Pca:
    return analysis.pca(_vocabulary(name, stack), 3)


def _projection(view: View, vectors: Tensor, tokens: list[int], side: str | None, near: str) -> str:
    heading("The whole vocabulary")
    axes = choose("axes", AXES if vectors.shape[1] > 2 else {"2": "2-D"}, "2", "Axes")
    found = _pca(view.model, _stack(view, side))
    explained = found.explained.tolist()
    label = view.task.vocabulary.labels
    table = analysis.projection_table(found, label, tokens)
    if axes == "3":
        st.plotly_chart(
            viz.projection_3d(table, explained, dark=is_dark()),
            width="stretch",
            theme="streamlit",
            key="projection_3d",
            config={"displaylogo": False},
        )
    else:
        chart = viz.projection(table, explained, dark=is_dark(), chosen=label.index(near))
        st.altair_chart(chart, width="stretch", key="projection", on_select=_follow_click, selection_mode="point")
    st.caption(
        f"{len(vectors)} vectors of {vectors.shape[1]} numbers, seen along the {axes} directions in which they differ most: "
        f"{sum(explained[: int(axes)]):.1%} of their variance, so {1 - sum(explained[: int(axes)]):.1%} is not in the "
        "picture. The input’s tokens are large; hover for their positions"
        + ("." if axes == "3" else ", click a token for its neighbours (ringed).")
    )
    lines = [
        "from xformer.analysis import embeddings as analysis",
        "from xformer.viz import embeddings as viz",
        f"found = analysis.pca(analysis.vocabulary_vectors(checkpoint.model, {side or 'encoder'!r}), 3)",
        f"table = analysis.projection_table(found, checkpoint.task.vocabulary.labels, {tokens})",
        f"viz.{'projection_3d' if axes == '3' else 'projection'}(table, found.explained.tolist(), dark=False)",
    ]
    footer(view, lines, table, "projection")
    return axes


def _neighbours(view: View, vectors: Tensor, tokens: list[int], side: str | None) -> str:
    heading("Nearest neighbours")
    label = view.task.vocabulary.labels
    names = {name: f"{name}{' · in the input' if token in tokens else ''}" for token, name in enumerate(label)}
    near = choose("near", names, label[tokens[0]], "of token", widget=st.selectbox)
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
        f"By cosine, over the whole vocabulary. |cosine| of {literal(near)} with the others is {usual:.3f} on average; "
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
