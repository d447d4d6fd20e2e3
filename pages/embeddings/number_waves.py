"""“Do the numbers go round in circles?”: the spectrum of their embeddings, and the plane of one frequency."""

from __future__ import annotations

import streamlit as st

from pages.embeddings.vocabulary import once_a_model
from pages.shared.byte_cache import shared
from pages.shared.patience import patience
from pages.shared.picture import heading, picture
from pages.shared.view import View
from pages.shared.widgets import choose
from xformer import viz
from xformer.analysis.number_waves import (
    FEWEST_NUMBERS,
    N_SHUFFLES,
    Spectrum,
    circle_of,
    number_spectrum,
    number_vectors,
)
from xformer.formatting import percent, percent_at_most

N_STRONGEST = 4
"""Among so many frequencies one can choose."""
ROUND_WITHIN = 0.2
"""Where the distances from the middle vary by less than this share of their mean, we speak of a circle."""


def has_waves(view: View) -> bool:
    """Whether the model reads enough numbers for a spectrum."""
    return view.task is not None and view.task.rule.n_numbers >= FEWEST_NUMBERS


def number_waves_panel(view: View, stack: str | None) -> None:
    """Draw both, side by side."""
    found = _spectrum(view, stack)
    strongest = 1 + found.shares.argsort(descending=True)[: max(N_STRONGEST, len(found.peaks))]
    names = {str(k): f"{k}: {percent(float(found.shares[k - 1]), 0)}" for k in strongest.tolist()}
    k = int(choose("wave", names, next(iter(names)), "Frequency", key="number_wave"))
    left, right = st.columns([3, 2], gap="large")
    with left:
        heading("How much turns how often")
        picture(view, "spectrum", viz.spectrum, view.original(), stack=stack, chosen=k)
        st.caption(
            f"The vectors of the {found.n} numbers, read in their order, as a sum of waves (discrete Fourier transform over "
            f"the numbers). {_verdict(found)}"
        )
    with right:
        heading(f"Frequency {k}")
        picture(view, "circle", viz.circle, view.original(), frequency=k, stack=stack)
        seen = circle_of(once_a_model(view, stack, number_vectors), k)
        st.caption(
            f"The same vectors seen where this wave turns: {percent(seen.explained, 1)} of their variance. The distance from "
            f"the middle varies by {seen.uneven:.0%} around its mean (on a circle: 0%)."
        )


def _spectrum(view: View, stack: str | None) -> Spectrum:
    """The numbers' spectrum; of very many numbers that takes seconds, and ends where the visitor goes on."""
    with patience("Comparing with random orders") as step:
        key = ("number_spectrum", view.model, stack)
        return shared.get(key, lambda: number_spectrum(view.original(), stack, step=step))


def _verdict(found: Spectrum) -> str:
    orders = f"in {found.n_shuffles} random orders of the same vectors"
    few = f" For so many numbers fewer than the usual {N_SHUFFLES} are tried." if found.n_shuffles < N_SHUFFLES else ""
    if found.peaks:
        words = _peaks_in_words(found)
        return f"{words[0].upper()}{words[1:]}; {orders} no frequency holds more than {percent_at_most(found.chance, 1)}.{few}"
    best = found.shares.max().item()
    chance = percent(found.chance, 1)
    return (
        f"No frequency stands out clearly: the strongest holds {percent(best, 1)}, and {orders} one held {chance}.{few}"
    )


def _peaks_in_words(found: Spectrum) -> str:
    """ "2 of the 29 frequencies, 1 and 17, hold 79 % of the variance"; only where there are peaks."""
    names = [str(k) for k in found.peaks]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    hold = "holds" if len(names) == 1 else "hold"
    share = percent(found.share_of_peaks, 0)
    return f"{len(names)} of the {len(found.shares)} frequencies, {listed}, {hold} {share} of the variance"


def about_waves(view: View, stack: str | None, show: str) -> str:
    """On which frequencies the numbers lie; nothing where none stands out from shuffled numbers."""
    if not has_waves(view) or not (found := _spectrum(view, stack)).peaks:
        return ""
    vectors = once_a_model(view, stack, number_vectors)
    makes = "each makes" if len(found.peaks) > 1 else "it makes"
    is_round = all(circle_of(vectors, k).uneven < ROUND_WITHIN for k in found.peaks)
    drawn = f": {makes} the numbers stand on a **circle**" if is_round else ""
    see = "" if show == "waves" else " See **numbers as waves**."
    return (
        f"Read in their order, the vectors of the {found.n} numbers are waves: {_peaks_in_words(found)} (shuffled, none holds "
        f"more than {percent_at_most(found.chance, 0)}){drawn}.{see}"
    )
