"""Which two of three or four players are laid side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pages.compare.comparison import Comparison
from pages.shared.link_widgets import choose
from xformer.reading import Reading


def ask_pair(comparison: Comparison) -> str:
    """Which two are laid side by side; of two players these two."""
    pairs = {pair: " | ".join(pair) for pair in comparison.pairs}
    if len(pairs) == 1:
        return comparison.pairs[0]
    look: dict[str, Any] = {"label_visibility": "collapsed", "help": "Which two are laid side by side."}
    return choose("pair", pairs, comparison.pairs[0], "Two of them", key="compare_pair", **look)


def places_of(pair: str, readings: Sequence[Reading]) -> tuple[int, int] | None:
    """Where the chosen two stand among those that take a step, or the first two; None where only one does."""
    places = {reading.subject.name[0]: index for index, reading in enumerate(readings)}
    if all(letter in places for letter in pair):
        return places[pair[0]], places[pair[1]]
    return (0, 1) if len(readings) > 1 else None
