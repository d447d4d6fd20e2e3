"""What the blocks and the positions of well-known architectures are, and where a model differs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from xformer.doctor.formulas.formula import Formula
from xformer.doctor.formulas.positions import LEARNED, NONE, SINUSOIDS

_ROTARY = "q and k rotated by their positions"
_POSITIONS = {"positions", "rotary", "bias"}


@dataclass(frozen=True)
class Architecture:
    """A well-known architecture, whose attention is softmax(q·kᵀ / √d_head)·v with projections of its own for q, k and v."""

    norm: str
    place: str
    """Whether the norm is "before" or "after" a sub-layer."""
    positions: str
    causal_over: str
    """The input whose later tokens it does not see: "tokens", the "target" of a decoder, or ""."""


ARCHITECTURES = {
    "vaswani": Architecture("layer norm", "after", SINUSOIDS, "target"),  # Vaswani et al. 2017, arXiv:1706.03762
    "gpt": Architecture("layer norm", "before", LEARNED, "tokens"),  # Radford et al. 2019
    "bert": Architecture("layer norm", "after", LEARNED, ""),  # Devlin et al. 2019, arXiv:1810.04805
    "llama": Architecture("RMS norm", "before", _ROTARY, "tokens"),  # Touvron et al. 2023, arXiv:2302.13971
}
"""What a model can be meant to be, by name."""


def against(found: Sequence[Formula], spec: str | Sequence[Formula]) -> Iterator[Formula]:
    """The formulas, with the causes of those that differ from a specification or from the formulas of a reference."""
    if not isinstance(spec, str):
        yield from _against_reference(found, spec)
    elif spec in ARCHITECTURES:
        yield from (one if one.cause else _against(one, ARCHITECTURES[spec]) for one in found)
    else:
        yield from found


def _against(one: Formula, meant: Architecture) -> Formula:
    """A part without a cause, with that of its difference from an architecture."""
    if one.part == "norm":
        cause = "" if one.formula.startswith(meant.norm) else "norm_kind"
        return replace(one, cause=cause, usual=f"{meant.norm} over the features, {meant.place} each sub-layer")
    if one.part == "residual":
        name = next(name for name in ("attention", "feed_forward") if name in one.formula)
        usual = f"x + {name}(norm(x))" if meant.place == "before" else f"norm(x + {name}(x))"
        return replace(one, cause=_norms_apart(one.formula, usual), usual=usual)
    if one.part in _POSITIONS:
        cause = "" if _positions_of(one) == meant.positions else _other_positions(one)
        if not cause and meant.positions == SINUSOIDS != one.formula:
            cause = "sinusoid_exponent"
        return replace(one, cause=cause, usual=meant.positions)
    return one


def _other_positions(one: Formula) -> str:
    return "positions_missing" if one.formula.startswith(NONE) else "positions_other"


def _against_reference(found: Sequence[Formula], reference: Sequence[Formula]) -> Iterator[Formula]:
    """What differs from the same part of the same layer; what a reference means is no fault. A missing part says nothing."""
    left, wanted = defaultdict[tuple[int | None, str], list[Formula]](list), {one.part for one in reference}
    for one in reference:
        left[one.layer, _place(one)].append(one)
    has_places = any(one.part == "residual" for one in found)
    for one in found:
        same = left[one.layer, _place(one)]
        if same:
            other = same.pop(0)
            is_same = (
                one.formula == other.formula
                or (one.part == "scale" and one.cause == other.cause != "scale_other")
                or (one.part == "norm" and has_places and _kind(one) == _kind(other))
                or (one.part == "rotary" and not one.cause and _same_angles(one, other))
            )
            cause = one.cause or _difference(one, other)
            yield replace(one, cause="" if is_same else cause, usual=other.formula)
        elif one.part in _POSITIONS and one.part not in wanted and (meant := wanted & _POSITIONS):
            other = next(other for other in reference if other.part in meant)
            yield replace(one, cause=one.cause or _other_positions(one), usual=other.formula)
        else:
            is_lost = one.formula.startswith(NONE) and not any(other.formula.startswith(NONE) for other in reference)
            yield replace(one, cause="positions_missing") if is_lost and not one.cause else one


_NAMES = {
    "scale": "the scale of the scores",
    "mask": "the mask",
    "softmax": "the softmax",
    "projections": "the projections",
    "heads": "the split into heads",
    "residual of attention": "the sum after the attention",
    "residual of network": "the sum after the feed-forward network",
    "feed_forward": "the feed-forward network",
}
"""The parts that every layer should have, by `_place`."""
_FUSED = {"softmax", "projections", "heads"}
"""Those that a fused function computes."""


def unread(found: Sequence[Formula], reference: Sequence[Formula]) -> str:
    """Which parts of the reference have no counterpart, or which neither shows, in a sentence; "" for none.

    Layers that the model does not have are left out, and what a fused function computes.
    """
    own, its = (Counter((one.layer, _place(one)) for one in of) for of in (found, reference))
    layers = {layer for layer, _ in own}
    missing: dict[str, list[int | None]] = {}
    for layer, part in its - own:
        is_fused = part in _FUSED and (layer, "scale") in own and (layer, "softmax") not in own
        if part in _NAMES and layer in layers and not is_fused:
            missing.setdefault(part, []).append(layer)
    either = {part for _, part in (*own, *its)}
    neither = [name for part, name in _NAMES.items() if part not in either and part not in ("mask", *_FUSED)]
    known = {part: sorted(one for one in of if one is not None) for part, of in missing.items()}
    words = [" ".join([_NAMES[part], *([in_layers(of)] if of else [])]) for part, of in known.items()]
    sentences = [f"Not checked, because the code of the model does not show it: {', '.join(words)}."] if words else []
    if neither and any(one.part == "scale" for one in reference):
        sentences.append(f"Read in neither model: {', '.join(neither)}.")
    return " ".join(sentences)


def in_layers(layers: Sequence[int]) -> str:
    """Name layers: "in layer 0", "in layers 0, 1"."""
    return f"in {'layer' if len(layers) == 1 else 'layers'} {', '.join(map(str, layers))}"


def _place(one: Formula) -> str:
    """The part, and for a residual or a norm its sub-layer."""
    is_of_sublayer = one.part in ("residual", "norm")
    return one.part + (" of attention" if "attention" in one.formula else " of network") * is_of_sublayer


def _difference(one: Formula, other: Formula) -> str:
    """The name of how a part differs from that of a reference."""
    if one.part == "norm":
        return "norm_kind" if _kind(one) != _kind(other) else "norm_place"
    if one.part == "mask":
        sizes = [re.fullmatch(r"query − (\d+) < keys ≤ query", it.formula) for it in (one, other)]
        widths = [int(size[1]) for size in sizes if size]
        return "window_off_by_one" if len(widths) == 2 and abs(widths[0] - widths[1]) == 1 else "other_than_reference"
    if one.part == "residual":
        return _norms_apart(one.formula, other.formula)
    if one.formula.startswith("sin and cos") and other.formula.startswith("sin and cos"):
        return "sinusoid_exponent"
    return "positions_missing" if one.formula.startswith(NONE) else "other_than_reference"


def _same_angles(one: Formula, other: Formula) -> bool:
    """Whether two rotations have the same angles, as far as they are known; first position and order of pairs are free."""
    angles = [re.sub(r"\(pos \+ \d+\)", "pos", it.formula).partition(", in pairs")[0] for it in (one, other)]
    return angles[0] == angles[1] or any(it.endswith("their positions") for it in angles)


def _kind(norm: Formula) -> str:
    return norm.formula.partition(", ")[0]


def _norms_apart(formula: str, meant: str) -> str:
    """The cause of a residual that is another but for its norms; "" for none."""
    if formula == meant:
        return ""
    return "norm_place" if "norm(" in formula else "norm_missing"


def _positions_of(one: Formula) -> str:
    """How a part tells positions apart, as in `ARCHITECTURES`; "" for another way."""
    if one.part == "rotary":
        return _ROTARY
    return SINUSOIDS if one.formula.startswith("sin and cos") else one.formula if one.part == "positions" else ""
