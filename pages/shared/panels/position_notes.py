"""What to notice about positions: what goes without them, how slow the waves are, and what the curves share."""

from __future__ import annotations

from pages.shared.layout import what_to_notice
from pages.shared.panels.positions_off import with_and_without
from pages.shared.view import View
from xformer.analysis import positions as analysis


def position_notes(view: View, side: str | None) -> None:
    """The notes that fit this model's kind of positions, with the numbers of this run."""
    config = view.checkpoint.config
    notes = []
    if config.positions != "none":
        without, off = with_and_without(view)
        n = len(without.answer)
        notes.append(
            f"Without positions {off.n_right} of {n} are right instead of {without.n_right}, and the loss goes from "
            f"{without.loss:.4f} to {off.loss:.4f} nats. "
            + (
                "The tokens are all still there; only **where** they stand is gone."
                if not config.causal
                else "What order is left comes from the **causal mask**, which still tells how many tokens came before."
            )
        )
    if config.positions in ("sinusoidal", "rotary"):
        waves, longest = analysis.wavelengths(config), view.longest_trained(side)
        notes.append(
            f"The fastest wave turns once in {waves[0]:.2f} positions, the slowest in {waves[-1]:,.0f}. "
            f"{int((waves > 4 * longest).sum())} of the {len(waves)} waves do not get through a quarter of a turn in the "
            f"{longest} positions of the longest input in training: they hardly tell its positions apart."
        )
    if config.positions in ("learned", "mirror"):
        notes.append(
            "Look at the **band** of the dot products: a learned table is free to treat the same offset differently at "
            "different places, a sinusoidal one (below) is not."
        )
    notes.append(
        "The lower curves of **sinusoidal** and **rotary** are the same kind of sum, Σ cos(offset · ω): one adds its waves "
        "to the vectors, d_model wide; the other turns queries and keys by them, d_head wide (and here 1 at offset 0)."
    )
    what_to_notice(notes)
