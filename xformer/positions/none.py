"""No positions: an encoder then sees a set of tokens, not a sequence; a decoder still has its causal mask."""

from __future__ import annotations

from xformer.positions.kind import PositionKind


class NoPositions(PositionKind):
    """Nothing is added, rotated or biased."""

    name = "none"
    title = "None"
    summary = "Adds, rotates and subtracts nothing."
    note = "Every offset has the same effect: none."
    acts_on = "nothing"
