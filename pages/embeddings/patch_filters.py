"""“What a patch is turned into”: the filters of the patch embedding, and the few directions that they all lie in."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st
from torch import Tensor

from pages.embeddings.notes import about_lengths
from pages.shared.layout import what_to_notice
from pages.shared.picture import heading, picture, table
from pages.shared.view import View
from xformer import analysis, viz
from xformer.layers.embedding import PatchEmbedding

MOST_NAMED = 6
"""So many blank patches are named."""


def filters_panel(view: View) -> None:
    """Draw the principal components and the filters themselves, the longest first."""
    run = view.original()
    left, right = st.columns([3, 7], gap="large")
    with left:
        heading("What they look for")
        picture(view, "components", viz.filter_components, run)
        names = table(view, analysis.filter_components, run)["filter"].unique()
        st.caption(
            "The directions in which the filters differ most, and the share of their variance along each: "
            + "; ".join(names)
            + "."
        )
    with right:
        heading(f"The {view.shape.d_model} filters")
        picture(view, "filters", viz.patch_filters, run)
        st.caption(
            "What each number of a patch’s vector adds up, the strongest first: blue pixels count for it, orange ones against "
            "it. Hover for the dimension."
        )


def where_patches_come_from(view: View) -> str:
    """How an image becomes vectors, in two sentences."""
    config = view.config
    return (
        f"There is no table of tokens here: each of the {config.n_patches} patches of {config.patch}×{config.patch} pixels is "
        f"mapped to {config.d_model} numbers by one learned matrix [{config.d_model} × {config.patch**2}] and a bias. Before "
        "them goes a learned **class** token, the same for every image, where the answer is gathered."
    )


def patch_notes(view: View, parts: Mapping[str, Tensor]) -> None:
    """What to notice in the vectors of this image."""
    embedding = view.own.model.embedding
    assert isinstance(embedding, PatchEmbedding)
    patches = embedding.patches(view.original().example.stream)[0].tolist()
    names = view.original().tokens[1:]
    blank = [name for name, inside in zip(names, patches, strict=True) if not any(inside)]
    of = f"of the {view.config.n_patches} patches of this image"
    shown = ", ".join(blank[:MOST_NAMED]) + (", …" if len(blank) > MOST_NAMED else "")
    if len(blank) > 1:
        apart = " Only their **positions** tell them apart." if "positions" in parts else ""
        note = f"{len(blank)} {of} are blank ({shown}): their vectors are equal, the bias alone.{apart}"
    else:
        note = f"{len(blank) or 'None'} {of} {'is' if blank else 'are'} blank."
    without_class = {name: vectors[1:] for name, vectors in parts.items()}
    what_to_notice(filter(None, [note, about_lengths(without_class, "patch")]))
