"""Embeddings: the vectors of tokens, positions and image patches, and the vocabulary as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from torch import Tensor

from pages.components.elements import embedding_sum
from pages.compute.background_job import interruptible_progress
from pages.compute.byte_cache import shared
from pages.compute.call import picture_call
from pages.compute.picture import Mark, footer, heading, panel, picture, shown, toolbar
from pages.controls import embed
from pages.controls.text import escape_markdown, headline, what_to_notice
from pages.controls.widgets import MAX_LISTED, ask_side, ask_token, ask_window, choose
from pages.state.session import open_sidebar
from pages.state.view import ORIGINAL, View, run_title
from xformer import analysis, viz
from xformer.analysis.embeddings import (
    N_SHUFFLES,
    Nearness,
    cosine_matrix,
    input_vectors,
    kinds_together,
    most_alike,
    numbers_in_order,
    principal_axes,
    token_labels,
    vocabulary_vectors,
)
from xformer.analysis.number_waves import MIN_NUMBERS, Spectrum, circle_of, number_spectrum, number_vectors
from xformer.analysis.positions import found_positions
from xformer.errors import UnavailableError
from xformer.formatting import percent, percent_at_most
from xformer.layers.embedding import PatchEmbedding
from xformer.reading import Reading
from xformer.viz.embeddings import MAX_POINTS_DRAWN
from xformer.widgets.embedding_sum import MAX_ROWS, embedding_sum_data
from xformer.widgets.page import sum_page

AXES = {"2": "2-D", "3": "3-D"}
R = TypeVar("R")


def cached_per_model(view: View, stack: str | None, work: Callable[[Reading, str | None], R]) -> R:
    """Return a result that depends on the weights alone, computed once per model."""
    return shared.get((work.__qualname__, view.model, stack), lambda: work(view.original(), stack))


def vocabulary_panel(view: View, stack: str | None, controls: DeltaGenerator) -> None:
    """Draw the vocabulary along its principal axes, next to the nearest neighbours of one token."""
    run = view.changed() or view.original()
    vectors = cached_per_model(view, stack, vocabulary_vectors)
    with controls:
        axes = int(choose("axes", AXES if min(vectors.shape) > 2 else {"2": "2-D"}, "Axes", hide_label=True))
    left, right = st.columns([3, 2], gap="large")
    with right:
        heading("Nearest neighbours")
        near = _neighbours(view, run, stack)
    with left:
        heading("The whole vocabulary")
        look = {"axes": 3} if axes == 3 else {"token": near}
        call = picture_call(viz.projection, run, **look, stack=stack)
        shown(view, call, f"projection_{axes}", on_click=None if axes == 3 else _look_near, selection="point")
        explained = sum(cached_per_model(view, stack, principal_axes).explained.tolist()[:axes])
        sampled = f" About {MAX_POINTS_DRAWN:,} are drawn." if len(vectors) > MAX_POINTS_DRAWN else ""
        st.caption(
            f"{len(vectors):,} vectors of {vectors.shape[1]} numbers; the axes show {percent(explained, 1)} of their "
            f"variance.{sampled}"
        )
        footer(view, "projection", [call])


def _neighbours(view: View, run: Reading, stack: str | None) -> int:
    label, tokens = token_labels(view.adapter), run.ids(stack)
    if len(label) > MAX_LISTED:
        token = ask_token(label, "near", tokens[0], "Of token")
    else:
        names = {name: f"{name}{' · in the input' if token in tokens else ''}" for token, name in enumerate(label)}
        near = choose("near", names, "Of token", default=label[tokens[0]], widget=st.selectbox, hide_label=True)
        token = label.index(near)
    call = picture_call(analysis.neighbours, run, token=token, stack=stack)
    number = st.column_config.NumberColumn(format="%.6f")
    config = {"cosine": number, "distance": number}
    st.dataframe(call.make().drop(columns="id"), hide_index=True, key="neighbours", column_config=config)
    footer(view, "neighbours", [call])
    return token


def _look_near(point: Mark) -> None:
    """Show the neighbours of the clicked token. A callback."""
    st.session_state["near"] = point["token"]


MIN_OF_A_KIND = 3
"""Smallest number of characters of one kind in the alphabet for a note on that kind."""

KINDS = {
    "digits": "0123456789",
    "vowels": "aeiou",
    "other small letters": "bcdfghjklmnpqrstvwxyz",
    "capitals": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
}


def vocabulary_notes(view: View, stack: str | None) -> list[str]:
    """Return the notes on whether the numbers are in order and which kinds of characters are close together."""
    if view.task is None:
        return []
    n, alphabet = view.task.rule.n_numbers, view.task.config.alphabet
    order = about_order(n, cached_per_model(view, stack, _nearness_of_numbers)) if n else ""
    places = {kind: [at for at, one in enumerate(alphabet) if one in found] for kind, found in KINDS.items()}
    enough = {kind: found for kind, found in places.items() if len(found) >= MIN_OF_A_KIND}

    def nearness(reading: Reading, stack: str | None) -> dict[str, Nearness]:
        return kinds_together(vocabulary_vectors(reading, stack)[1 : len(alphabet) + 1], enough)

    return [order, about_kinds(cached_per_model(view, stack, nearness)) if alphabet else ""]


def _nearness_of_numbers(reading: Reading, stack: str | None) -> Nearness:
    return numbers_in_order(number_vectors(reading, stack))


def about_order(n: int, found: Nearness) -> str:
    """Describe how often the nearest other number is one more or one less; "" where that is no more than chance."""
    if not found.is_above_chance:
        return ""
    of = f"of {found.n_compared:,} of the {n:,} numbers" if found.n_compared < n else f"of the {n} numbers"
    return (
        f"For {percent(found.share, 1)} {of} the nearest other number is one more or one less (chance: "
        f"{percent(found.chance, 1)}, and never more than {percent_at_most(found.most_by_chance, 1)} in {N_SHUFFLES} "
        "shuffles). Nothing in the input says that 7 comes before 8: training **put the numbers in order**."
    )


def about_kinds(found: dict[str, Nearness]) -> str:
    """Describe how often the nearest other character is of the same kind, for kinds that exceed chance."""
    above_chance = {name: near for name, near in found.items() if near.is_above_chance}
    if not above_chance:
        return ""
    ranked = sorted(above_chance.items(), key=lambda item: item[1].chance - item[1].share)
    words = "; ".join(f"{name} {percent(near.share, 0)} (chance: {percent(near.chance, 0)})" for name, near in ranked)
    return (
        f"How often the nearest other character is of the same kind: {words}. The model sees only where characters occur: "
        "characters that are used alike **get similar vectors**."
    )


N_STRONGEST = 4
"""Smallest number of frequencies to choose from, the strongest ones."""

ROUND_WITHIN = 0.2
"""Points form a circle where their distances from the centre vary by less than this fraction of their mean."""


def has_waves(view: View) -> bool:
    """Whether the model reads enough numbers for a spectrum."""
    return view.task is not None and view.task.rule.n_numbers >= MIN_NUMBERS


def number_waves_panel(view: View, stack: str | None, controls: DeltaGenerator) -> None:
    """Draw the spectrum of the numbers, next to their vectors at one frequency."""
    found = _spectrum(view, stack)
    strongest = 1 + found.shares.argsort(descending=True)[: max(N_STRONGEST, len(found.peaks))]
    names = {str(k): f"{k}: {percent(float(found.shares[k - 1]), 0)}" for k in strongest.tolist()}
    with controls:
        k = int(choose("wave", names, "Frequency", key="number_wave", hide_label=True))
    left, right = st.columns([3, 2], gap="large")
    with left:
        heading("Variance by frequency")
        picture(view, "spectrum", viz.spectrum, view.original(), stack=stack, chosen=k)
        st.caption(_verdict(found))
    with right:
        heading(f"Frequency {k}")
        picture(view, "circle", viz.circle, view.original(), frequency=k, stack=stack)
        circle = circle_of(cached_per_model(view, stack, number_vectors), k)
        st.caption(f"{percent(circle.explained, 1)} of the variance; radii vary by {circle.uneven:.0%} (a circle: 0%).")


def _spectrum(view: View, stack: str | None) -> Spectrum:
    """Return the spectrum of the numbers. With many numbers this takes seconds; it stops when the visitor moves on."""
    with interruptible_progress("Comparing with random orders") as step:
        key = ("number_spectrum", view.model, stack)
        return shared.get(key, lambda: number_spectrum(view.original(), stack, step=step))


def _verdict(found: Spectrum) -> str:
    shuffled = f"in {found.n_shuffles} random orders of the same vectors"
    if found.peaks:
        return f"{_peaks_in_words(found)}; {shuffled} no frequency holds more than {percent_at_most(found.chance, 1)}."
    best = percent(found.shares.max().item(), 1)
    return f"No frequency stands out clearly: the strongest holds {best}, and {shuffled} one held {percent(found.chance, 1)}."


def _peaks_in_words(found: Spectrum) -> str:
    """Return a clause like "2 of the 29 frequencies, 1 and 17, hold 79% of the variance". Requires at least one peak."""
    names = [str(k) for k in found.peaks]
    listed, hold = (names[0], "holds") if len(names) == 1 else (f"{', '.join(names[:-1])} and {names[-1]}", "hold")
    share = percent(found.share_of_peaks, 0)
    return f"{len(names)} of the {len(found.shares)} frequencies, {listed}, {hold} {share} of the variance"


def about_waves(view: View, stack: str | None, show: str) -> str:
    """Describe the frequencies of the numbers; "" where none exceeds those of shuffled numbers."""
    if not has_waves(view) or not (found := _spectrum(view, stack)).peaks:
        return ""
    vectors = cached_per_model(view, stack, number_vectors)
    is_round = all(circle_of(vectors, k).uneven < ROUND_WITHIN for k in found.peaks)
    circles = "; at each, the numbers lie on a **circle**" if is_round else ""
    see = "" if show == "waves" else " See **Numbers as waves**."
    return (
        f"As a function of the number, the {found.n} vectors are waves: {_peaks_in_words(found)} (shuffled, none holds more "
        f"than {percent_at_most(found.chance, 0)}){circles}.{see}"
    )


CLEAR_RATIO = 1.5
"""A smaller ratio of two norms is not reported."""


def about_repeats(run: Reading, parts: Mapping[str, Tensor], stack: str | None) -> str:
    """Describe whether positions give the first repeated token two different vectors; "" without a repetition."""
    tokens, names = run.ids(stack), run.tokens_of(stack)
    for first, token in enumerate(tokens):
        if token not in tokens[first + 1 :]:
            continue
        second = tokens.index(token, first + 1)
        repeated = f"**{escape_markdown(names[first])}** is at positions {first} and {second}"
        if "sum" not in parts:
            return f"{repeated} and enters layer 1 as the same vector: this model adds no positions to its tokens."
        if (parts["sum"][first] - parts["sum"][second]).norm() > 1e-3 * parts["sum"][first].norm():
            cosine = cosine_matrix(parts["sum"])[first, second].item()
            return f"{repeated}: one token vector, but two different sums (cosine 1 → {cosine:.2f})."
        return f"{repeated} and enters layer 1 as the same vector both times."
    return ""


def about_alike(view: View, stack: str | None) -> str:
    """Name the two most similar tokens of the input; "" where they do not stand out from the vocabulary."""
    found = shared.get(("alike", *view.key(ORIGINAL), stack), lambda: most_alike(view.original(), stack))
    if found is None:
        return ""
    names = token_labels(view.adapter)
    one, other = (f"**{escape_markdown(names[token])}**" for token in found.tokens)
    return (
        f"{one} and {other} have the most similar vectors of this input: cosine {found.cosine:.2f}, while almost all pairs of "
        f"the vocabulary are below {found.usual:.2f}."
    )


def about_lengths(parts: Mapping[str, Tensor], one: str) -> str:
    """Compare the mean norms of tokens and positions; "" where they are close."""
    if "positions" not in parts:
        return ""
    token, position = (parts[name].double().norm(dim=-1).mean().item() for name in ("tokens", "positions"))
    if min(token, position) <= 0 or max(token, position) < CLEAR_RATIO * min(token, position):
        return ""
    (least, short), (most, long) = sorted([(token, one), (position, "position")])
    return f"The vector of a {long} is {most / least:.1f} times as long as that of a {short}, so the {long} dominates the sum."


def no_positions_sentence(view: View, parts: Mapping[str, Tensor], stack: str | None) -> str:
    """State that the model adds no positions, and what it does instead where that is known; else ""."""
    if "positions" in parts:
        return ""
    why = ""
    if view.task is not None:
        is_causal = view.shape.is_causal or stack == "decoder"
        without = "only its causal mask encodes the order" if is_causal else "nothing encodes the order"
        why = view.config.position_kind.alternative or without
    else:
        kinds = {"turned": "it rotates queries and keys instead", "biased": "it adds to the scores instead"}
        with suppress(UnavailableError):
            why = kinds.get(found_positions(view.original(), stack)[0], "")
    return f"This model adds no positions to its tokens{f': {why}' if why else ''}."


VECTORS, COSINES, VOCABULARY, WAVES, FILTERS = "vectors", "cosines", "vocabulary", "waves", "filters"
NAMES = {"tokens": "Tokens", "positions": "Positions", "sum": "Sum"}


def _embeddings(view: View) -> None:
    above, controls = st.container(), toolbar()
    with controls:
        show = choose("show", _panels(view), "Show", key="embeddings_show", hide_label=True)
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
        of_run = [picture_call(draw, run, part=part, **look) for part in parts]
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
        is_own = view.task is not None
        same = view.config.tied_output if is_own else weights.unembedding().matrix.data_ptr() == table.data_ptr()
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
    patches = f"Each of the {config.n_patches} patches of {config.patch}×{config.patch} pixels becomes {config.d_model} numbers"
    matrix = f"one learned matrix [{config.d_model} × {config.patch**2}]"
    return f"{patches} by {matrix}. A learned **class** token is prepended; the answer is read from it."


def about_blank_patches(view: View) -> str:
    """Count the blank patches of this image."""
    embedding, n = view.own.model.embedding, view.config.n_patches
    assert isinstance(embedding, PatchEmbedding)
    blank = int((embedding.patches(view.original().example.input_ids)[0] == 0).all(dim=-1).sum())
    return f"Of the {n} patches of this image {blank} are blank; only their **positions** tell blank patches apart."


if __name__ == "__main__":
    open_sidebar("Embeddings", "What vector does each token become?").on_each_change(_embeddings)
