"""Show the tokens that a model reads and predicts in rows; right and wrong differ in a sign as well as in colour.

prediction_strip([Lane("says", ("9", "12"), right=(True, False), probability=(0.99, 0.4))], key="strip")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from streamlit.components.v2 import component

_HERE = Path(__file__).parent
_component = component(
    "xformer_prediction_strip",
    css=(_HERE / "prediction_strip.css").read_text(encoding="utf-8"),
    js=(_HERE / "prediction_strip.js").read_text(encoding="utf-8"),
)


@dataclass(frozen=True)
class Lane:
    """One row of tokens beside its name. `right` is given for predictions, one for each token."""

    name: str
    tokens: tuple[str, ...]
    right: tuple[bool, ...] = ()
    probability: tuple[float | None, ...] = ()
    """The probability of each token; None where there is none."""
    offset: int = 0
    """How many columns stay free before the first token."""
    moved: tuple[bool, ...] = ()
    """Which tokens differ from the lane above."""


def prediction_strip(lanes: Sequence[Lane], *, key: str, width: Literal["stretch", "content"] = "stretch") -> None:
    """Draw the lanes under each other, token positions aligned."""
    shares = [[None if p is None else round(p, 4) for p in lane.probability] for lane in lanes]
    data = [asdict(lane) | {"probability": share} for lane, share in zip(lanes, shares, strict=True)]
    _component(key=key, data=data, width=width)
