"""What the blocks and the positions of well-known architectures are, and where a model differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from xformer.doctor.formulas.formula import Formula
from xformer.doctor.formulas.positions import LEARNED, NONE, SINUSOIDS

_ROTARY = "q and k rotated by their positions"
_BLOCKS = {
    "vaswani": ("layer norm", "after", SINUSOIDS),  # Vaswani et al. 2017, arXiv:1706.03762
    "gpt": ("layer norm", "before", LEARNED),  # Radford et al. 2019
    "bert": ("layer norm", "after", LEARNED),  # Devlin et al. 2019, arXiv:1810.04805
    "llama": ("RMS norm", "before", _ROTARY),  # Touvron et al. 2023, arXiv:2302.13971
}
"""The kind of norm, its place before or after a sub-layer, and the positions, by specification."""


def against(found: Sequence[Formula], spec: str) -> Iterator[Formula]:
    """The formulas, with the causes of those that differ from a specification."""
    if spec not in _BLOCKS:
        yield from found
        return
    kind, place, positions = _BLOCKS[spec]
    for one in found:
        if one.cause:
            yield one
        elif one.part == "norm":
            cause = (
                "norm_kind"
                if not one.formula.startswith(kind)
                else "norm_place"
                if f", {place} " not in one.formula
                else ""
            )
            yield replace(one, cause=cause, usual=f"{kind} over the features, {place} each sub-layer")
        elif one.part in ("positions", "rotary", "bias"):
            cause = (
                ""
                if _positions_of(one) == positions
                else "positions_missing"
                if one.formula == NONE
                else "positions_other"
            )
            if not cause and positions == SINUSOIDS != one.formula:
                cause = "sinusoid_exponent"
            yield replace(one, cause=cause, usual=positions)
        else:
            yield one


def _positions_of(one: Formula) -> str:
    """How a part tells positions apart, as in `_BLOCKS`; "" for another way."""
    if one.part == "rotary":
        return _ROTARY
    return SINUSOIDS if one.formula.startswith("sin and cos") else one.formula if one.part == "positions" else ""
