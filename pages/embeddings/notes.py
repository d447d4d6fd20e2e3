"""What to say about a model's embeddings: where they come from, and what to notice in them; silent where chance would do."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st
from torch import Tensor

from pages.embeddings.number_waves import has_waves, number_spectrum, peaks_in_words
from pages.embeddings.vocabulary import stack_of, vocabulary
from pages.shared.layout import what_to_notice
from pages.shared.view import View
from xformer.analysis import embeddings as analysis
from xformer.analysis.nearness import N_SHUFFLES, Nearness, kinds_together, numbers_in_order
from xformer.analysis.spectrum import circle
from xformer.reading import Reading
from xformer.words import percent

ROUND = 0.2
"""Where the distances from the middle vary by less than this share of their mean, we speak of a circle."""
STANDARD_ERRORS = 4.0
"""What is further from chance is said not to be chance."""
KINDS = {
    "digits": "0123456789",
    "vowels": "aeiou",
    "other small letters": "bcdfghjklmnpqrstvwxyz",
    "capitals": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
}


def where_from(view: View, side: str | None, parts: Mapping[str, Tensor]) -> str:
    """Which matrix the tokens are looked up in, who shares it, and what is added."""
    config = view.checkpoint.config
    said = []
    if side:
        said.append(
            "Source and target **share** one embedding matrix."
            if config.tied_source
            else "Source and target have **their own** embedding matrices."
        )
    said.append(
        "The output reads its logits with the same matrix."
        if config.tied_output
        else "The output has a matrix of its own."
    )
    if "positions" not in parts:
        why = config.position_kind.instead or _without_any(view, side)
        said.append(f"This model adds no positions: {why}, so what enters layer 1 is the token vectors alone.")
    scale = f" × √{config.d_model}" if config.scale_embeddings else ""
    return f"A token looks up its row of a learned matrix [{config.vocab_size} × {config.d_model}]{scale}. {' '.join(said)}"


def _without_any(view: View, side: str | None) -> str:
    """What a model without positions goes by."""
    if view.checkpoint.config.causal or side == "decoder":
        return "its causal mask is all that tells it where a token is"
    return "nothing tells it where a token is"


def embedding_notes(view: View, parts: Mapping[str, Tensor], side: str | None, show: str) -> None:
    """What to notice in what is shown, of the model's own run: "vectors", "vocabulary" or "waves"."""
    notes = []
    if show == "vectors":
        notes += [_about_lengths(parts), _about_repeats(view.original(), parts, side)]
    if show == "vocabulary":
        notes += [_about_order(view, side), _about_distance(view, side), _about_kinds(view, side)]
    notes.append(_about_waves(view, side, show))
    if notes := [note for note in notes if note]:
        what_to_notice(notes)


def _about_order(view: View, side: str | None) -> str:
    n = view.task.rule.n_numbers
    found = _order(view.model, stack_of(view, side), vocabulary(view, side)[1 : n + 1]) if n else None
    if found is None or not found.is_above_chance:
        return ""
    return (
        f"For {percent(found.share, 0)} of the {n} numbers the nearest other number is one more or one less (chance: "
        f"{percent(found.chance, 0)}, and never more than {percent(found.most_by_chance, 0)} in {N_SHUFFLES} shuffles). "
        "Nothing in the input says that 7 comes before 8: training **put the numbers in order**."
    )


@st.cache_data(max_entries=64, show_spinner=False)
def _order(name: str, stack: str, _vectors: Tensor) -> Nearness:
    return numbers_in_order(_vectors)


def _about_kinds(view: View, side: str | None) -> str:
    """Which kinds of characters lie together: how often the nearest other character is of the same kind."""
    if not view.task.rule.is_open_ended:
        return ""
    alphabet = view.task.config.alphabet
    found = _kinds(view.model, stack_of(view, side), alphabet, vocabulary(view, side)[1 : len(alphabet) + 1])
    together = {name: near for name, near in found.items() if near.is_above_chance}
    if not together:
        return ""
    ranked = sorted(together.items(), key=lambda item: item[1].chance - item[1].share)
    words = "; ".join(f"{name} {percent(near.share, 0)} (chance: {percent(near.chance, 0)})" for name, near in ranked)
    return (
        f"How often the nearest other character is of the same kind: {words}. The model was told nothing about characters but "
        "where they stand: what is used alike **ends up alike**."
    )


@st.cache_data(max_entries=64, show_spinner=False)
def _kinds(name: str, stack: str, alphabet: str, _vectors: Tensor) -> dict[str, Nearness]:
    kinds = {
        kind: [place for place, character in enumerate(alphabet) if character in characters]
        for kind, characters in KINDS.items()
    }
    return kinds_together(_vectors, {kind: places for kind, places in kinds.items() if len(places) >= 3})


def _about_distance(view: View, side: str | None) -> str:
    n = view.task.rule.n_numbers
    if n < 3:
        return ""
    numbers = vocabulary(view, side)[1 : n + 1]
    usual, errors = analysis.mean_alikeness(numbers)
    d = numbers.shape[1]
    said = (
        f"Two different numbers have |cosine| {usual:.3f} on average; random directions in {d} "
        f"dimensions have {analysis.random_cosine(d):.3f}"
    )
    if abs(errors) < STANDARD_ERRORS:
        return f"{said}: no sign that the numbers are more, or less, alike than that."
    way = "More alike" if errors > 0 else "Further apart"
    return f"{said}. {way} than chance would have them, by {abs(errors):.1f} standard errors."


def _about_waves(view: View, side: str | None, show: str) -> str:
    """On which frequencies the numbers lie; nothing where none stands out from shuffled numbers."""
    if not has_waves(view) or not (found := number_spectrum(view, side)).peaks:
        return ""
    numbers = vocabulary(view, side)[1 : found.n + 1]
    uneven = [circle(numbers, k).uneven for k in found.peaks]
    shape = (
        "each makes the numbers stand on a **circle**"
        if len(uneven) > 1
        else "it makes the numbers stand on a **circle**"
    )
    drawn = f": {shape}" if max(uneven) < ROUND else ""
    see = "" if show == "waves" else " See **numbers as waves**."
    return (
        f"Read in their order, the vectors of the {found.n} numbers are waves: {peaks_in_words(found)} (shuffled, none holds "
        f"more than {percent(found.chance, 0)}){drawn}.{see}"
    )


def _about_lengths(parts: Mapping[str, Tensor]) -> str:
    if "positions" not in parts:
        return ""
    token, added = (parts[name].double().norm(dim=-1).mean().item() for name in ("tokens", "positions"))
    times = f": {added / token:.1f} times as much" if token > 0 else ""
    return (
        f"A token’s vector has a length of {token:.3f} on average here, a position’s {added:.3f}{times}. "
        "Switch to **positions**, then to **sum**, and see which pattern wins."
    )


def _about_repeats(run: Reading, parts: Mapping[str, Tensor], side: str | None) -> str:
    """What adding positions does to the first token that comes twice."""
    if "sum" not in parts:
        return ""
    tokens = run.ids(side)
    for first, token in enumerate(tokens):
        if token in tokens[first + 1 :]:
            second = tokens.index(token, first + 1)
            before, after = (analysis.cosines(parts[name])[first, second].item() for name in ("tokens", "sum"))
            apart = (parts["sum"][first] - parts["sum"][second]).norm() > 1e-3 * parts["sum"][first].norm()
            return (
                f"Positions {first} and {second} hold the same token. Their vectors are one and the same (cosine "
                f"{before:.3f}); with positions added the cosine is {after:.3f}"
                + (": now the model can **tell them apart**." if apart else ": they are still as good as the same.")
            )
    return "Type a symbol twice: its two rows are equal until positions are added."
