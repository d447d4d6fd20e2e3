"""The vocabulary panels of Embeddings, and the sentences about the vectors of an input and of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from torch import Tensor

from pages.compute.background_job import interruptible_progress
from pages.compute.byte_cache import shared
from pages.compute.call import PictureCall
from pages.compute.picture import footer, heading, picture, shown
from pages.controls.text import escape_markdown
from pages.controls.widgets import MAX_LISTED, ask_token, choose
from pages.state.view import ORIGINAL, View
from xformer import analysis, viz
from xformer.analysis.embeddings import (
    N_SHUFFLES,
    Nearness,
    cosine_matrix,
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
from xformer.reading import Reading
from xformer.viz.embeddings import MAX_POINTS_DRAWN

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
        options = AXES if min(vectors.shape) > 2 else {"2": "2-D"}
        axes = int(choose("axes", options, "2", "Axes", label_visibility="collapsed"))
    left, right = st.columns([3, 2], gap="large")
    with right:
        heading("Nearest neighbours")
        near = _neighbours(view, run, stack)
    with left:
        heading("The whole vocabulary")
        look: dict[str, Any] = {"axes": 3} if axes == 3 else {"token": near}
        call = PictureCall(viz.projection, (run,), look | {"stack": stack})
        click: dict[str, Any] = {} if axes == 3 else {"on_select": _follow_click, "selection_mode": "point"}
        shown(view, call, f"projection_{axes}", **click)
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
        near = choose("near", names, label[tokens[0]], "Of token", widget=st.selectbox, label_visibility="collapsed")
        token = label.index(near)
    call = PictureCall(analysis.neighbours, (run,), {"token": token, "stack": stack})
    number = st.column_config.NumberColumn(format="%.6f")
    config = {"cosine": number, "distance": number}
    st.dataframe(call.make().drop(columns="id"), hide_index=True, key="neighbours", column_config=config)
    footer(view, "neighbours", [call])
    return token


def _follow_click() -> None:
    """Show the neighbours of the token that was clicked in the projection. A callback."""
    for point in st.session_state["projection_2"]["selection"].get("point", []):
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
        k = int(choose("wave", names, next(iter(names)), "Frequency", key="number_wave", label_visibility="collapsed"))
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
