"""“Six ways to tell a model where a token is”: every kind of positions as a card, with the model's own sizes."""

from __future__ import annotations

import pandas as pd
import streamlit as st
import torch
from torch import Tensor

from pages.shared import resources
from pages.shared.layout import is_dark
from pages.shared.panels.inner_positions import alibi, rotary_offset, rotary_waves
from pages.shared.view import View
from xformer.analysis import positions as analysis
from xformer.analysis.embeddings import vector_table
from xformer.layers.positions import sinusoidal
from xformer.viz import positions as viz
from xformer.viz.embeddings import MOST_CELLS, vector_heatmap

NAMES = {
    "sinusoidal": "Sinusoidal",
    "learned": "Learned",
    "mirror": "Mirror",
    "rotary": "Rotary",
    "alibi": "ALiBi",
    "none": "None",
}


def position_kinds_panel(view: View, side: str | None) -> None:
    """Six cards, that of the model marked; a learned kind is drawn where the model has learned it."""
    config = view.checkpoint.config
    st.subheader("Six ways to tell a model where a token is", anchor=False)
    n = view.longest_trained(side)
    st.caption(
        f"With this model’s sizes: d_model {config.d_model}, {config.n_heads} head{'s' if config.n_heads > 1 else ''} of "
        f"{config.d_head}, base {config.position_base:g}, {n} positions, the longest it saw in training. Upper picture: "
        "what is done, from its lowest (orange) to its highest value (blue); lower: what two positions make of each other."
    )
    for row in (analysis.KINDS[:3], analysis.KINDS[3:]):
        for column, kind in zip(st.columns(3, gap="medium"), row, strict=True):
            with column, st.container(border=True, height="stretch"):
                with st.container(horizontal=True, vertical_alignment="center"):
                    st.markdown(f"**{NAMES[kind]}**", width="content")
                    if kind == config.positions:
                        st.badge("this model", icon=":material/check:", color="green")
                _CARDS[kind](view, n, side)


def _sinusoidal(view: View, n: int, side: str | None) -> None:
    config = view.checkpoint.config
    _matrix(sinusoidal(n, config.d_model, config.position_base), "sinusoidal")
    st.caption(
        "Fixed waves are added, each longer than the one before. How alike two positions are depends on their "
        "offset alone. (Vaswani et al. 2017, §3.5)"
    )


def _learned(view: View, n: int, side: str | None) -> None:
    if view.checkpoint.config.positions == "learned":
        _own_matrix(view, n, side)
    else:
        st.text("This model has learned no table, so there is none to draw.")
    st.caption(
        "One learned vector a position is added. Nothing makes offsets comparable but training, and a position "
        "that training never showed is noise. (Vaswani et al. 2017, §3.5)"
    )


def _mirror(view: View, n: int, side: str | None) -> None:
    tokens = view.reads(view.original(), side)
    length = len(tokens)
    if view.checkpoint.config.positions == "mirror":
        _own_matrix(view, length, side)
    else:
        st.text("This model has learned no such tables. Its input would be counted like this:")
        counted = {"token": tokens, "from start": range(length), "from end": range(length - 1, -1, -1)}
        st.dataframe(pd.DataFrame(counted), hide_index=True, height=230, key="mirror_table")
    st.caption(
        "Two learned vectors are added: one for the distance from the start, one for the distance from the end. "
        "Reversal is then a single look-up."
    )


def _rotary(view: View, n: int, side: str | None) -> None:
    rotary_waves(view, n, 150, key="card")
    rotary_offset(view, n, 190, key="card")


def _alibi(view: View, n: int, side: str | None) -> None:
    alibi(view, n, 330, key="card")
    st.caption(
        "Nothing is added to the vectors. Each head takes its own slope times the distance off its scores: far keys "
        "cost more. (Press et al. 2022, §3)"
    )


def _none(view: View, n: int, side: str | None) -> None:
    config = view.checkpoint.config
    st.text("Nothing is added, turned or taken off: every offset counts 0.")
    if config.positions != "none" and not config.causal and config.architecture == "encoder":
        apart = _blindness(view.model, tuple(view.original().tokens(side)))
        st.metric("Largest difference", f"{apart:.1e}", help="Of any logit, between the two runs.", border=True)
        st.caption(
            "Tried just now: with positions off, this model read the input and the input backwards. The outputs "
            "are the same, mirrored, but for rounding: an encoder without positions sees a bag of tokens."
        )
    else:
        st.caption(
            "An encoder then sees a bag of tokens. A decoder still has its causal mask, which tells it how many "
            "tokens came before."
        )


_CARDS = {
    "sinusoidal": _sinusoidal,
    "learned": _learned,
    "mirror": _mirror,
    "rotary": _rotary,
    "alibi": _alibi,
    "none": _none,
}


def _own_matrix(view: View, n: int, side: str | None) -> None:
    vectors = analysis.added_positions(view.checkpoint.model, n, side)
    assert vectors is not None
    _matrix(vectors, view.checkpoint.config.positions)


def _matrix(vectors: Tensor, kind: str) -> None:
    shown = vectors[: max(1, MOST_CELLS // vectors.shape[1])]
    table = vector_table(shown, [""] * len(shown))
    chart = vector_heatmap(table, dark=is_dark(), rows="position", height=150, legend=False)
    st.altair_chart(chart, width="stretch", key=f"card_matrix_{kind}")
    band = analysis.by_offset(analysis.dot_products(vectors))
    chart = viz.offset_band(band, dark=is_dark(), title="P[i] · P[j]", height=190)
    st.altair_chart(chart, width="stretch", key=f"card_offset_{kind}")


@st.cache_data(max_entries=64, show_spinner=False)
def _blindness(name: str, tokens: tuple[int, ...]) -> float:
    return analysis.order_blindness(resources.checkpoint(name).model, torch.tensor([tokens]))
