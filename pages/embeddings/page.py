"""Embeddings: the vector of each token, of its position, and of each patch of an image; the whole vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import streamlit as st
import torch
from jaxtyping import Float
from torch import Tensor

from pages.embeddings.vocabulary import about_waves, has_waves, number_waves_panel, vocabulary_notes, vocabulary_panel
from pages.shared import frame
from pages.shared.layout import what_to_notice
from pages.shared.picture import heading, panel, picture, table
from pages.shared.session import open_sidebar
from pages.shared.view import View
from pages.shared.widgets import ask_side, ask_window, choose, every_nth, window_words
from xformer import analysis, viz
from xformer.analysis.embeddings import cosine_matrix, input_vectors, mean_cosines
from xformer.errors import UnavailableError
from xformer.layers.embedding import PatchEmbedding
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.embeddings import every

VECTORS, VOCABULARY, WAVES, FILTERS = "vectors", "vocabulary", "waves", "filters"


def page() -> None:
    open_sidebar("Embeddings", "What vector does each token become?").on_each_change(_embeddings)


def _embeddings(view: View) -> None:
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        show = choose("show", _panels(view), VECTORS, "Show", key="embeddings_show", label_visibility="collapsed")
        stack = ask_side() if view.is_pair else None
        if view.input.kind == "picture" and "embed" not in view.original():
            raise UnavailableError(
                "The patches of a picture become vectors by a convolution, and its output was not found in this model."
            )
        parts = input_vectors(view.original(), stack)
        part = ask_part(list(parts)) if show == VECTORS else ""
    if view.task is not None:
        st.caption(where_patches_come_from(view) if view.shape.image else where_from(view, stack, parts))
    elif text := which_table(view, stack):
        st.caption(text)
    with frame.picture():
        if show == VECTORS:
            vectors_panel(view, part, stack)
        elif show == VOCABULARY:
            panel(vocabulary_panel, view, stack)
        elif show == WAVES:
            number_waves_panel(view, stack)
        else:
            filters_panel(view)
    if view.shape.image:
        patch_notes(view, parts)
    else:
        panel(embedding_notes, view, parts, stack, show)
    view.share()


def _panels(view: View) -> dict[str, str]:
    """The panels of this model."""
    if view.shape.image:
        return {VECTORS: "this image", FILTERS: "filters"}
    waves = {WAVES: "numbers as waves"} if has_waves(view) else {}
    return {VECTORS: "this input", VOCABULARY: "whole vocabulary", **waves}


def where_from(view: View, stack: str | None, parts: Mapping[str, Tensor]) -> str:
    """The embedding matrix of one of our models, what shares it, and what is added."""
    config = view.config
    text = f"A token looks up its row of a learned matrix [{config.vocab_size} × {config.d_model}]"
    text += f" × √{config.d_model}." if config.scale_embeddings else "."
    if stack:
        text += f" Source and target {'**share** one' if config.tied_source else 'do not share this'} embedding matrix."
    text += f" The output uses {'the same matrix' if config.tied_output else 'a matrix of its own'}."
    if "positions" not in parts:
        is_causal = view.shape.is_causal or stack == "decoder"
        without = "only its causal mask encodes the order" if is_causal else "nothing encodes the order"
        why = config.position_kind.instead or without
        text += f" This model adds no positions: {why}, so only token vectors enter layer 1."
    return text


def which_table(view: View, stack: str | None) -> str:
    """The embedding matrix of an external model, as far as it was found."""
    weights = view.subject.weights
    try:
        table = weights.token_embedding(stack)
    except UnavailableError:
        return ""
    text = f"A token looks up its row of a learned matrix [{table.shape[0]:,} × {table.shape[1]:,}]."
    with suppress(UnavailableError):
        is_same = weights.unembedding().matrix.data_ptr() == table.data_ptr()
        text += f" The output uses {'the same matrix' if is_same else 'a matrix of its own'}."
    return text


def embedding_notes(view: View, parts: Mapping[str, Tensor], stack: str | None, show: str) -> None:
    """What to notice in a panel of the model's own run: "vectors", "vocabulary" or "waves"."""
    notes = []
    if show == "vectors":
        notes += [about_lengths(parts, "token"), _about_repeats(view.original(), parts, stack)]
    if show == "vocabulary":
        notes += vocabulary_notes(view, stack)
    notes.append(about_waves(view, stack, show))
    if notes := [note for note in notes if note]:
        what_to_notice(notes)


def about_lengths(parts: Mapping[str, Tensor], what: str) -> str:
    """The mean length of the vectors of tokens (or patches), and of their positions."""
    if "positions" not in parts:
        return ""
    token, added = (parts[name].double().norm(dim=-1).mean().item() for name in ("tokens", "positions"))
    times = f": {added / token:.1f} times as much" if token > 0 else ""
    return (
        f"A {what}’s vector has a length of {token:.3f} on average here, a position’s {added:.3f}{times}. "
        "Compare **positions** with **sum** to see which of the two dominates."
    )


def _about_repeats(run: Reading, parts: Mapping[str, Tensor], stack: str | None) -> str:
    """The cosine of the two vectors of the first repeated token, with and without positions."""
    if "sum" not in parts:
        return ""
    tokens = run.ids(stack)
    for first, token in enumerate(tokens):
        if token in tokens[first + 1 :]:
            second = tokens.index(token, first + 1)
            before, after = (cosine_matrix(parts[name])[first, second].item() for name in ("tokens", "sum"))
            apart = (parts["sum"][first] - parts["sum"][second]).norm() > 1e-3 * parts["sum"][first].norm()
            return (
                f"Positions {first} and {second} hold the same token. Their vectors are one and the same (cosine "
                f"{before:.3f}); with positions added the cosine is {after:.3f}"
                + (": now the model can **tell them apart**." if apart else ": they are still as good as the same.")
            )
    return "Type a symbol twice: its two rows are equal until positions are added."


MOST_NAMED = 6
"""So many blank patches are named."""


def filters_panel(view: View) -> None:
    """The principal components of the filters, and the filters themselves, the longest first."""
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
    """How an image becomes vectors."""
    config = view.config
    return (
        f"Each of the {config.n_patches} patches of {config.patch}×{config.patch} pixels is mapped to {config.d_model} numbers "
        f"by one learned matrix [{config.d_model} × {config.patch**2}] and a bias. Before them stands a learned **class** "
        "token, from which the answer is read."
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


SHOWN = {"tokens": "token vectors", "positions": "positions", "sum": "sum: enters layer 1"}

ROWS_AT_A_TIME = 32
"""Of a longer input, so many positions are drawn at a time: more rows could not be read."""

_SAME = {"tokens": "token vectors are", "positions": "positions are", "sum": "sum is"}

_ROWS = {
    "tokens": "A row is what one {one} is to the model; equal {many} have equal rows.",
    "positions": "A row is what is added to the {one} that stands there.",
    "sum": "A row is what enters layer 1: the {one}’s own vector plus its position’s.",
}

_MIXED = "A row is what enters layer 1, which the model makes of the {one}’s own vector and its position’s."


def ask_part(parts: list[str]) -> str:
    """Which of a run's vectors to look at."""
    return choose("part", {name: SHOWN[name] for name in parts}, "tokens", "Vectors", label_visibility="collapsed")


def vectors_panel(view: View, part: str, stack: str | None) -> None:
    """Draw one part (of `SHOWN`) of what enters a stack, and beside it what a change makes of it."""
    original, changed = view.original(), view.changed()
    before = input_vectors(original, stack)
    after = before if changed is None else input_vectors(changed, stack)
    every_one = [vectors.flatten() for vectors in (*before.values(), *after.values())]
    limit = theme.signed_limit(torch.cat(every_one).numpy())  # one scale for all of them
    n = len(before[part])
    shown = ask_window(range(n), "vectors_from", most=ROWS_AT_A_TIME)
    look = {"part": part, "stack": stack, "positions": None if len(shown) == n else shown}
    if changed is None or after[part].equal(before[part]):
        if changed is not None:
            st.info(
                f"With {view.what_changed()} these vectors stay as they are: the {_SAME[part]} the same in both runs.",
                icon=":material/equal:",
            )
        left, right = st.columns([3, 2], gap="large")
        with left:
            _numbers(view, original, "", look, shown, limit)
        with right:
            _angles(view, original, "", look)
        return
    runs = [(" · the model’s own run", original), (f" · {view.what_changed()}", changed)]
    for column, (name, run) in zip(st.columns(2, gap="large"), runs, strict=True):
        with column:
            _numbers(view, run, name, look, shown, limit)
    for column, (name, run) in zip(st.columns(2, gap="large"), runs, strict=True):
        with column:
            _angles(view, run, name, look)


def _numbers(view: View, run: Reading, name: str, look: dict[str, Any], shown: Sequence[int], limit: float) -> None:
    """The vectors of one run as a heatmap."""
    part = look["part"]
    n, d = input_vectors(run, look["stack"])[part].shape
    heading(f"{SHOWN[part].partition(':')[0].capitalize()}{name}")
    picture(view, _file("vectors", view, run), viz.vectors, run, limit=limit, **look)
    one, many = ("patch", "patches") if view.shape.image else ("token", "tokens")
    parts = input_vectors(run, look["stack"])
    row = _MIXED if part == "sum" and view.task is None and not _is_the_sum(parts) else _ROWS[part]
    st.caption(
        f"{window_words(shown, n)} × {d} numbers{every_nth(every(len(shown), d))}. {row.format(one=one, many=many)} "
        f"One colour scale for every part, ±{limit:.3g}."
    )


def _is_the_sum(parts: dict[str, Float[Tensor, "pos d_model"]]) -> bool:
    """Whether nothing but the two is added up: some models normalise that, or map it to another width."""
    tokens, positions, whole = (parts[name] for name in ("tokens", "positions", "sum"))
    return tokens.shape == whole.shape and bool(torch.allclose(tokens + positions, whole, atol=1e-5))


def _angles(view: View, run: Reading, name: str, look: dict[str, Any]) -> None:
    """The cosine of every two of the vectors on show."""
    heading(f"How alike they are{name}")
    picture(view, _file("cosines", view, run), viz.cosines, run, **look)
    st.caption(_about_angles(input_vectors(run, look["stack"])[look["part"]]))


def _file(name: str, view: View, run: Reading) -> str:
    return name if run.recipe == view.original().recipe else f"{name}-changed"


def _about_angles(vectors: Float[Tensor, "pos d_model"]) -> str:
    """The cosine of neighbours beside that of all pairs, measured; where there are no vectors to speak of, that."""
    if not vectors.any():
        return "All these vectors are zero here, so they point nowhere: each cosine is given as 0."
    if len(vectors) < 3:
        return "Cosines: 1 is the same direction, 0 a right angle, −1 the opposite direction."
    beside, all_pairs = mean_cosines(vectors)
    return (
        f"Cosines: 1 is the same direction, 0 a right angle. Of two positions side by side {beside:.3f} on average, of any "
        f"two {all_pairs:.3f}."
    )


page()
