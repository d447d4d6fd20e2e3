"""“What a patch is turned into”: the filters of the patch embedding, and the few directions that they all lie in."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st
from torch import Tensor

from pages.shared.layout import is_dark, what_to_notice
from pages.shared.notebook import footer, heading
from pages.shared.view import View
from xformer.analysis.images import filter_components, patch_filters
from xformer.layers.embedding import PatchEmbedding
from xformer.viz.images import filters_chart, filters_frame
from xformer.words import percent

UNIT = 10.5
"""Pixels for one weight of a filter: sixteen filters of 2 × 2 in a row fit a window of usual width."""


def filters_panel(view: View) -> None:
    """Draw the principal components and the filters themselves, the longest first."""
    filters = patch_filters(view.checkpoint.model)
    n = len(filters)
    axes, explained = filter_components(filters)
    left, right = st.columns([3, 7], gap="large")
    with left:
        heading("What they look for")
        names = [f"component {axis + 1}: {percent(share, 0)}" for axis, share in enumerate(explained.tolist())]
        table = filters_frame(axes.numpy(), names, columns=2)
        st.altair_chart(filters_chart(table, dark=is_dark(), unit=30), width="content", key="filter_components")
        st.caption(
            "The directions in which the filters differ most, and the share of their variance along each: "
            + "; ".join(names)
            + "."
        )
        lines = [
            "from xformer.analysis.images import filter_components, patch_filters",
            "from xformer.viz.images import filters_chart, filters_frame",
            "axes, explained = filter_components(patch_filters(checkpoint.model))",
            f"filters_chart(filters_frame(axes.numpy(), {names!r}, columns=2), unit=30, dark={is_dark()})",
        ]
        footer(view, lines, table, "components", changed=False)
    with right:
        heading(f"The {n} filters")
        order = filters.flatten(1).norm(dim=1).argsort(descending=True)
        names = [f"dimension {index}" for index in order.tolist()]
        table = filters_frame(filters[order].numpy(), names)
        st.altair_chart(filters_chart(table, dark=is_dark(), unit=UNIT), width="content", key="filters")
        st.caption(
            "What each number of a patch’s vector adds up, the strongest first: blue pixels count for it, orange ones against "
            "it. Hover for the dimension."
        )
        lines = [
            "from xformer.analysis.images import patch_filters",
            "from xformer.viz.images import filters_chart, filters_frame",
            "filters = patch_filters(checkpoint.model)",
            "order = filters.flatten(1).norm(dim=1).argsort(descending=True)",
            'names = [f"dimension {index}" for index in order.tolist()]',
            f"filters_chart(filters_frame(filters[order].numpy(), names), unit={UNIT}, dark={is_dark()})",
        ]
        footer(view, lines, table, "filters", changed=False)


def where_patches_come_from(view: View) -> str:
    """How an image becomes vectors, in two sentences."""
    config = view.checkpoint.config
    return (
        f"There is no table of tokens here: each of the {config.n_patches} patches of {config.patch}×{config.patch} pixels is "
        f"mapped to {config.d_model} numbers by one learned matrix [{config.d_model} × {config.patch**2}] and a bias. Before "
        "them goes a learned **class** token, the same for every image, where the answer is gathered."
    )


def patch_notes(view: View, parts: Mapping[str, Tensor]) -> None:
    """What to notice in the vectors of this image."""
    pixels = view.original().example.stream
    embedding = view.checkpoint.model.embedding
    assert isinstance(embedding, PatchEmbedding)
    blank = [
        name
        for name, inside in zip(
            view.task.position_names([])[1:],
            embedding.patches(pixels)[0].tolist(),
            strict=True,
        )
        if not any(inside)
    ]
    n = view.checkpoint.config.n_patches
    shown = ", ".join(blank[:6]) + (", …" if len(blank) > 6 else "")
    notes = []
    if len(blank) > 1:
        apart = " Only their **positions** tell them apart." if "positions" in parts else ""
        notes.append(
            f"{len(blank)} of the {n} patches of this image are blank ({shown}): their vectors are equal, the bias "
            f"alone.{apart}"
        )
    else:
        notes.append(f"{len(blank) or 'None'} of the {n} patches of this image {'is' if blank else 'are'} blank.")
    if "positions" in parts:
        token, added = (parts[name][1:].double().norm(dim=-1).mean().item() for name in ("tokens", "positions"))
        notes.append(
            f"A patch’s vector has a length of {token:.3f} on average here, a position’s {added:.3f}. Switch to "
            "**positions**, then to **sum**, and see which pattern wins."
        )
    what_to_notice(notes)
