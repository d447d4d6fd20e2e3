"""“Do the numbers go round in circles?”: the spectrum of their embeddings, and the plane of one frequency."""

from __future__ import annotations

import streamlit as st
from torch import Tensor

from pages.embeddings.vocabulary import stack_of, vocabulary
from pages.shared.ask import choose
from pages.shared.byte_cache import kept
from pages.shared.layout import is_dark
from pages.shared.notebook import footer, heading
from pages.shared.view import View
from xformer.analysis import spectrum as analysis
from xformer.viz import spectrum as viz
from xformer.words import percent

STRONGEST = 4
"""Among so many frequencies one can choose."""


def has_waves(view: View) -> bool:
    """Whether the model reads enough numbers for a spectrum."""
    return view.task.rule.n_numbers >= analysis.FEWEST


def number_spectrum(view: View, side: str | None) -> analysis.Spectrum:
    """The spectrum of the model's numbers, the tokens 1, 2, …, worked out once."""
    return _spectrum(view.model, stack_of(view, side), view.task.rule.n_numbers, vocabulary(view, side))


@kept
def _spectrum(name: str, stack: str, n: int, _vectors: Tensor) -> analysis.Spectrum:
    return analysis.spectrum(_vectors[1 : n + 1])


def number_waves_panel(view: View, side: str | None) -> None:
    """Draw both, side by side."""
    found = number_spectrum(view, side)
    strongest = 1 + found.shares.argsort(descending=True)[: max(STRONGEST, len(found.peaks))]
    names = {str(k): f"{k}: {percent(float(found.shares[k - 1]), 0)}" for k in strongest.tolist()}
    wave = choose("wave", names, next(iter(names)), "Frequency", key="number_wave")
    n, k, dark = found.n, int(wave), is_dark()
    numbers = vocabulary(view, side)[1 : n + 1]
    lines = [
        "from xformer.analysis import spectrum as analysis",
        "from xformer.analysis.embeddings import vocabulary_vectors",
        "from xformer.viz import spectrum as viz",
        f"numbers = vocabulary_vectors(checkpoint.model, {side or 'encoder'!r})[1:{n + 1}]",
    ]
    left, right = st.columns([3, 2], gap="large")
    with left:
        heading("How much turns how often")
        table = analysis.spectrum_table(found)
        st.altair_chart(viz.spectrum_chart(table, dark=dark, chosen=k), width="stretch", key="spectrum")
        st.caption(
            f"The vectors of the {n} numbers, read in their order, as a sum of waves (discrete Fourier transform over the "
            f"numbers). {_verdict(found)}"
        )
        draw = f"viz.spectrum_chart(analysis.spectrum_table(analysis.spectrum(numbers)), dark={dark}, chosen={k})"
        footer(view, [*lines, draw], table, "spectrum")
    with right:
        heading(f"Frequency {k}")
        seen = analysis.circle(numbers, k)
        labels = list(view.task.vocabulary.labels[1 : n + 1])
        table = analysis.circle_table(seen, labels)
        st.altair_chart(viz.circle_chart(table, dark=dark, frequency=k), width="content", key="circle")
        st.caption(
            f"The same vectors seen where this wave turns: {percent(seen.explained, 1)} of their variance. The distance from "
            f"the middle varies by {seen.uneven:.0%} around its mean (on a circle: 0%)."
        )
        draw = [
            f"table = analysis.circle_table(analysis.circle(numbers, {k}), {labels})",
            f"viz.circle_chart(table, dark={dark}, frequency={k})",
        ]
        footer(view, [*lines, *draw], table, "circle")


def _verdict(found: analysis.Spectrum) -> str:
    run_commands = f"in {found.n_shuffles} random orders of the same vectors"
    if found.peaks:
        words = peaks_in_words(found)
        return f"{words[0].upper()}{words[1:]}; {run_commands} no frequency holds more than {percent(found.chance, 1)}."
    best = found.shares.max().item()
    chance = percent(found.chance, 1)
    return f"No frequency stands out clearly: the strongest holds {percent(best, 1)}, and {run_commands} one held {chance}."


def peaks_in_words(found: analysis.Spectrum) -> str:
    """ "2 of the 29 frequencies, 1 and 17, hold 79 % of the variance"; only where there are peaks."""
    names = [str(k) for k in found.peaks]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    hold = "holds" if len(names) == 1 else "hold"
    share = percent(found.share_of_peaks, 0)
    return f"{len(names)} of the {len(found.shares)} frequencies, {listed}, {hold} {share} of the variance"
