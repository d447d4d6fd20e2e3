"""What the blocks and the positions of well-known architectures are, and where a model differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from xformer.doctor.formulas.formula import Formula
from xformer.doctor.formulas.positions import LEARNED, NONE, SINUSOIDS

_ROTARY = "q and k rotated by their positions"
_POSITIONS = {"positions", "rotary", "bias"}
_BLOCKS = {
    "vaswani": ("layer norm", "after", SINUSOIDS),  # Vaswani et al. 2017, arXiv:1706.03762
    "gpt": ("layer norm", "before", LEARNED),  # Radford et al. 2019
    "bert": ("layer norm", "after", LEARNED),  # Devlin et al. 2019, arXiv:1810.04805
    "llama": ("RMS norm", "before", _ROTARY),  # Touvron et al. 2023, arXiv:2302.13971
}
"""The kind of norm, its place before or after a sub-layer, and the positions, by specification."""


def against(found: Sequence[Formula], spec: str | Sequence[Formula]) -> Iterator[Formula]:
    """The formulas, with the causes of those that differ from a specification or from the formulas of a reference."""
    if not isinstance(spec, str):
        yield from _against_reference(found, spec)
        return
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


def _against_reference(found: Sequence[Formula], reference: Sequence[Formula]) -> Iterator[Formula]:
    """What differs from the same part of the same layer; what a reference means is no fault. A missing part says nothing."""
    left, wanted = defaultdict[tuple[int | None, str], list[Formula]](list), {one.part for one in reference}
    for one in reference:
        left[one.layer, one.part].append(one)
    for one in found:
        same = left[one.layer, one.part]
        if same:
            other = same.pop(0)
            is_same = one.formula == other.formula or (
                one.part == "scale" and one.cause == other.cause != "scale_other"
            )
            cause = one.cause or _difference(one, other)
            yield replace(one, cause="" if is_same else cause, usual=other.formula)
        elif one.part in _POSITIONS and one.part not in wanted and (meant := wanted & _POSITIONS):
            other = next(other for other in reference if other.part in meant)
            cause = one.cause or ("positions_missing" if one.formula == NONE else "positions_other")
            yield replace(one, cause=cause, usual=other.formula)
        else:
            yield one


def _difference(one: Formula, other: Formula) -> str:
    """The name of how a part differs from that of a reference."""
    if one.part == "norm":
        return "norm_kind" if one.formula.partition(" over")[0] != other.formula.partition(" over")[0] else "norm_place"
    return "positions_missing" if one.formula == NONE else "other_than_reference"


def _positions_of(one: Formula) -> str:
    """How a part tells positions apart, as in `_BLOCKS`; "" for another way."""
    if one.part == "rotary":
        return _ROTARY
    return SINUSOIDS if one.formula.startswith("sin and cos") else one.formula if one.part == "positions" else ""
