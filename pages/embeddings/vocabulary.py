"""The whole vocabulary: its vectors seen along the directions in which they differ most, and one token's neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import streamlit as st

from pages.shared.byte_cache import shared
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.picture import footer, heading, shown
from pages.shared.view import View
from pages.shared.widgets import MOST_LISTED, ask_token, choose
from xformer import analysis, viz
from xformer.analysis.embeddings import cosines_with, principal_axes, random_cosine, token_labels, vocabulary_vectors
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.viz.embeddings import MOST_POINTS_DRAWN

AXES = {"2": "2-D", "3": "3-D"}
R = TypeVar("R")


def once_a_model(view: View, stack: str | None, work: Callable[[Reading, str | None], R]) -> R:
    """What follows from the weights of a model alone, whatever it reads: worked out once."""
    return shared.get((work.__qualname__, view.model, stack), lambda: work(view.original(), stack))


def vocabulary_panel(view: View, stack: str | None) -> None:
    """Draw both, side by side."""
    run = view.changed() or view.original()
    left, right = st.columns([3, 2], gap="large")
    with right:
        near = _neighbours(view, run, stack)
    with left:
        _projection(view, run, stack, near)


def _projection(view: View, run: Reading, stack: str | None, near: int) -> None:
    vectors = once_a_model(view, stack, vocabulary_vectors)
    heading("The whole vocabulary")
    options = AXES if min(vectors.shape) > 2 else {"2": "2-D"}
    axes = int(choose("axes", options, "2", "Axes", label_visibility="collapsed"))
    if axes == 3:
        call = Call(viz.projection, (run,), {"axes": 3, "stack": stack})
        shown(view, call, "projection_3d")
        hint = "Hover for their positions."
    else:
        call = Call(viz.projection, (run,), {"near": near, "stack": stack})
        shown(view, call, "projection", on_select=_follow_click, selection_mode="point")
        hint = "Names that would collide are left out: hover for them. Click a token for its neighbours (ringed)."
    if len(vectors) > MOST_POINTS_DRAWN:
        hint = f"About {MOST_POINTS_DRAWN:,} are drawn, the input’s and the neighbours among them. {hint}"
    seen = sum(once_a_model(view, stack, principal_axes).explained.tolist()[:axes])
    st.caption(
        f"{len(vectors):,} vectors of {vectors.shape[1]} numbers, seen along the {axes} directions in which they differ most: "
        f"{percent(seen, 1)} of their variance, so {percent(1 - seen, 1)} is not in the picture. The input’s tokens "
        f"are large. {hint}"
    )
    footer(view, "projection", [call])


def _neighbours(view: View, run: Reading, stack: str | None) -> int:
    vectors, label, tokens = once_a_model(view, stack, vocabulary_vectors), token_labels(view.subject), run.ids(stack)
    heading("Nearest neighbours")
    if len(label) > MOST_LISTED:
        token = ask_token(label, "near", tokens[0], "of token")
        near = label[token]
    else:
        names = {name: f"{name}{' · in the input' if token in tokens else ''}" for token, name in enumerate(label)}
        near = choose("near", names, label[tokens[0]], "of token", widget=st.selectbox, label_visibility="collapsed")
        token = label.index(near)
    call = Call(analysis.neighbours, (run,), {"token": token, "stack": stack})
    st.dataframe(
        call.make().drop(columns="id"),
        hide_index=True,
        key="neighbours",
        column_config={
            "cosine": st.column_config.NumberColumn(format="%.6f", help="1: the same direction; 0: at right angles."),
            "distance": st.column_config.NumberColumn(format="%.6f", help="Length of the difference."),
        },
    )
    others = cosines_with(vectors, token).abs()  # [vocab]
    usual = (others.sum() - others[token]) / max(1, len(others) - 1)
    st.caption(
        f"By cosine, among the whole vocabulary. |cosine| of {escape_markdown(near)} with the others is {usual:.3f} on "
        "average; "
        f"directions drawn at random in {vectors.shape[1]} dimensions have {random_cosine(vectors.shape[1]):.3f}."
    )
    footer(view, "neighbours", [call])
    return token


def _follow_click() -> None:
    """The token that was clicked in the projection becomes the one whose neighbours are shown."""
    for point in st.session_state["projection"]["selection"].get("point", []):
        st.session_state["near"] = point["token"]
