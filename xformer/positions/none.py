"""No positions: then an encoder sees a set of tokens, not a sequence; a decoder still has its causal mask."""

from __future__ import annotations

from xformer.positions.kind import PositionKind


class NoPositions(PositionKind):
    """Nothing is added, turned or biased."""

    name = "none"
    title = "None"
    does = "Nothing is added, turned or taken off."
    more = "Every offset counts 0."
    acts_on = "nothing"
