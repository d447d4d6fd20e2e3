"""Embeddings: the vectors of tokens, positions and image patches, and the vocabulary as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import streamlit as st
from torch import Tensor

from pages.components.players import embedding_sum
from pages.compute.call import PictureCall
from pages.compute.picture import footer, heading, panel, picture, shown, toolbar
from pages.controls import embed
from pages.controls.columns import headline, run_title, what_to_notice
from pages.controls.widgets import ask_side, ask_window, choose
from pages.embeddings.vocabulary import (
    about_alike,
    about_lengths,
    about_repeats,
    about_waves,
    has_waves,
    no_positions_sentence,
    number_waves_panel,
    vocabulary_notes,
    vocabulary_panel,
)
from pages.state.session import open_sidebar
from pages.state.view import ORIGINAL, View
from xformer import viz
from xformer.analysis.embeddings import input_vectors
from xformer.errors import UnavailableError
from xformer.layers.embedding import PatchEmbedding
from xformer.widgets.embedding_sum import MAX_ROWS, embedding_sum_data
from xformer.widgets.page import sum_page

VECTORS, COSINES, VOCABULARY, WAVES, FILTERS = "vectors", "cosines", "vocabulary", "waves", "filters"
NAMES = {"tokens": "Tokens", "positions": "Positions", "sum": "Sum"}


def _embeddings(view: View) -> None:
    above, controls = st.container(), toolbar()
    with controls:
        show = choose("show", _panels(view), VECTORS, "Show", key="embeddings_show", label_visibility="collapsed")
        stack = ask_side() if view.is_encoder_decoder else None
    if view.input.kind == "picture" and "embed" not in view.original():
        raise UnavailableError("A picture’s patches become vectors by a convolution, whose output was not found here.")
    parts = input_vectors(view.original(), stack)
    with above:
        panel(_headline, view, parts, stack)
    with embed.picture():
        if show in (VECTORS, COSINES):
            vectors_panel(view, parts, stack, show)
        elif show == FILTERS:
            filters_panel(view)
        else:
            with controls:
                more_controls = st.container(horizontal=True, width="content")
            panel(vocabulary_panel if show == VOCABULARY else number_waves_panel, view, stack, more_controls)
    panel(embedding_notes, view, parts, stack, show)
    view.share()


def _panels(view: View) -> dict[str, str]:
    """Return the panels of this model."""
    if view.shape.image:
        return {VECTORS: "This image", COSINES: "Similarity", FILTERS: "Filters"}
    waves = {WAVES: "Numbers as waves"} if has_waves(view) else {}
    return {VECTORS: "This input", COSINES: "Similarity", VOCABULARY: "Vocabulary", **waves}


def _headline(view: View, parts: Mapping[str, Tensor], stack: str | None) -> None:
    one = "patch" if view.shape.image else "token"
    finding = "" if view.shape.image else about_repeats(view.original(), parts, stack)
    if not finding and not view.shape.image:
        with suppress(UnavailableError):
            finding = about_alike(view, stack)
    headline(finding or about_lengths(parts, one) or no_positions_sentence(view, parts, stack))


def vectors_panel(view: View, parts: Mapping[str, Tensor], stack: str | None, show: str) -> None:
    """Draw token + position = sum, or the cosines of the vectors; also of the changed run where it differs."""
    original, changed = view.original(), view.changed()
    n = len(parts["tokens"])
    at = list(ask_window(range(n), "vectors_from", most=MAX_ROWS))
    runs = {ORIGINAL: original}
    if changed is not None:
        after = input_vectors(changed, stack)
        if all(after[name].equal(before) for name, before in parts.items()):
            st.info(f"With {view.change_summary()} these vectors do not change.", icon=":material/equal:")
        else:
            runs[view.shown] = changed
    look = {"stack": stack, "positions": None if len(at) == n else at}
    draw, calls = (viz.vectors if show == VECTORS else viz.cosines), []
    for name, run in runs.items():
        if len(runs) > 1:
            st.markdown(f"**{run_title(name)}**")
        of_run = [PictureCall(draw, (run,), {"part": part, **look}) for part in parts]
        if show == VECTORS:
            embedding_sum(key=f"sum_{len(calls)}", data=embedding_sum_data(run, stack=stack, positions=at))
        else:
            size = {"height": 170 if len(parts) > 1 else 380}
            of_run = [replace(call, options={**call.options, **size, "legend": call is of_run[-1]}) for call in of_run]
            with st.container(horizontal=True, gap="medium"):
                for part, call in zip(parts, of_run, strict=True):
                    with st.container(width="content", gap="xsmall"):
                        st.markdown(f"**{NAMES[part]}**", width="content")
                        shown(view, call, f"cosines_{part}_{len(calls)}")
        calls += of_run
    last = list(runs.values())[-1]

    def page(caption: Sequence[str]) -> str:
        return sum_page(embedding_sum_data(last, stack=stack, positions=at), caption)

    footer(view, show, calls, page=page if show == VECTORS else None)


def embedding_notes(view: View, parts: Mapping[str, Tensor], stack: str | None, show: str) -> None:
    """Draw what to notice in a panel."""
    if view.shape.image:
        notes = [where_patches_come_from(view), about_blank_patches(view)]
    else:
        matrix = "" if show == WAVES else where_from(view, stack)
        notes = [matrix, *(vocabulary_notes(view, stack) if show == VOCABULARY else [])]
        notes.append(about_waves(view, stack, show))
        notes += [no_positions_sentence(view, parts, stack)] if show == VECTORS else []
    if notes := [note for note in notes if note]:
        what_to_notice(notes)


def where_from(view: View, stack: str | None) -> str:
    """Describe the embedding matrix and which parts share it, where they were found."""
    weights = view.adapter.weights
    try:
        table = weights.token_embedding(stack)
    except UnavailableError:
        return ""
    scale = f" × √{view.config.d_model}" if view.task is not None and view.config.scale_embeddings else ""
    text = f"Each token looks up its row of a learned matrix [{table.shape[0]:,} × {table.shape[1]:,}]{scale}."
    if view.task is not None and stack:
        text += f" Source and target {'**share** one' if view.config.tied_source else 'do not share this'} embedding matrix."
    with suppress(UnavailableError):
        if view.task is not None:
            same = view.config.tied_output
        else:
            same = view.adapter.weights.unembedding().matrix.data_ptr() == table.data_ptr()
        text += f" The output uses {'the same matrix' if same else 'its own matrix'}."
    return text


def filters_panel(view: View) -> None:
    """Draw the principal components of the filters, and the filters themselves, those with the largest norm first."""
    run = view.original()
    left, right = st.columns([3, 7], gap="large")
    with left:
        heading("Principal components")
        picture(view, "components", viz.filter_components, run)
    with right:
        heading(f"The {view.shape.d_model} filters")
        picture(view, "filters", viz.patch_filters, run)
        st.caption("Each filter maps a patch to one number: blue pixels raise it, orange pixels lower it.")


def where_patches_come_from(view: View) -> str:
    """Describe how an image becomes vectors."""
    config = view.config
    return (
        f"Each of the {config.n_patches} patches of {config.patch}×{config.patch} pixels becomes {config.d_model} numbers by "
        f"one learned matrix [{config.d_model} × {config.patch**2}]. A learned **class** token is prepended; the answer is "
        "read from it."
    )


def about_blank_patches(view: View) -> str:
    """Count the blank patches of this image."""
    embedding, n = view.own.model.embedding, view.config.n_patches
    assert isinstance(embedding, PatchEmbedding)
    blank = int((embedding.patches(view.original().example.input_ids)[0] == 0).all(dim=-1).sum())
    return f"Of the {n} patches of this image {blank} are blank; only their **positions** tell blank patches apart."


open_sidebar("Embeddings", "What vector does each token become?").on_each_change(_embeddings)
