"""The residual stream before a layer as a sum over its sources: tokens, positions, every head, every feed-forward.

    pre-norm     x  =  token + position + Σ heads z W_O + Σ feed-forward + biases
    post-norm    likewise, each part carried through every norm that it passed, its divisor frozen at this run's value

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits". In float16 and bfloat16 each sum of the run is rounded;
the parts are computed in float32, and the difference is a part of its own, "rounding". Where a sublayer was not found, or an
edit changed the stream, the difference is larger: that part is called "unattributed".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.analysis.logit_attribution import check_told_apart, entering, projection_of, tolerance
from xformer.errors import UnavailableError
from xformer.memory import BYTES_PER_FLOAT, free_bytes
from xformer.names import layer_title
from xformer.reading import Reading
from xformer.room import megabytes
from xformer.site import Site, after
from xformer.subjects.frozen_norm import FrozenNorm

BIASES = "biases"
COPIES = 3
"""So many times the parts are in memory at once: joined, behind a norm, and on the way there."""


@dataclass(frozen=True)
class Writer:
    """A source: what wrote a part of the stream. `head` is None for what is no head, `site` for what is no layer."""

    name: str
    kind: str
    site: Site | None = None
    head: int | None = None


@dataclass(frozen=True, eq=False)
class StreamParts:
    """The stream at one point, part by part, of the first input; they sum to it."""

    writers: tuple[Writer, ...]
    vectors: Float[Tensor, "part pos d_model"]

    def through(self, norm: FrozenNorm) -> StreamParts:
        """The same behind a norm, whose shift goes to the biases."""
        vectors = norm(self.vectors)
        vectors[self.biases] += norm.shift
        return StreamParts(self.writers, vectors)

    @property
    def biases(self) -> int:
        """Which of the parts are the biases."""
        return [writer.name for writer in self.writers].index(BIASES)

    def total(self) -> Float[Tensor, "pos d_model"]:
        """The stream."""
        return self.vectors.sum(dim=0)


@torch.no_grad()
def stream_parts(reading: Reading, stack: str, until: Site | None = None) -> StreamParts:
    """The stream of a stack where layer `until` reads it, before that layer's own norm; None: its state after the last block.

    Raises `UnavailableError` where the stream or its parts are out of reach, or take too much room.
    """
    sites = [site for site in reading.subject.shape.sites if site.stack == stack]
    if not sites or f"{stack}.0.resid_pre" not in reading:
        raise UnavailableError(f"No residual stream was found in {reading.subject.name}.")
    before = sites[: sites.index(until)] if until in sites else sites
    check_told_apart(
        reading[f"{stack}.0.resid_pre"], [site for site in before if until is None or site.layer != until.layer]
    )
    _check_room(reading, stack, before)
    writers, vectors = _beginning(reading, stack)
    for site in before:
        more, added, bias = _added(reading, site)
        writers, vectors = [*writers, *more], [*vectors, *added]
        at = [writer.name for writer in writers].index(BIASES)
        vectors[at] = vectors[at] + bias
        norm = reading.subject.weights.norm_after(site.path)
        if norm is not None:
            parts = StreamParts(tuple(writers), torch.stack(vectors))
            vectors = [*parts.through(FrozenNorm.at(norm, parts.total())).vectors]
    return _with_difference(
        reading, StreamParts(tuple(writers), torch.stack(vectors)), _name_after(stack, before, until)
    )


def _check_room(reading: Reading, stack: str, before: list[Site]) -> None:
    """Raise `UnavailableError` where the parts written by these layers take more than half of what is free."""
    n_parts = 4 + sum(reading.subject.shape.heads.get(site.path, 1) for site in before)
    needed = COPIES * BYTES_PER_FLOAT * n_parts * reading[f"{stack}.0.resid_pre"][0].numel()
    if needed > (free := free_bytes() // 2):
        raise UnavailableError(
            f"Splitting the stream before this layer takes {megabytes(needed)} of memory, and {megabytes(free)} may be taken; "
            "choose an earlier layer, or type a shorter input."
        )


def _beginning(reading: Reading, stack: str) -> tuple[list[Writer], list[Tensor]]:
    """What enters the first layer; the biases begin at nothing."""
    found = [*reversed(entering(reading, f"{stack}.0.resid_pre"))]
    vectors = [part.to(_dtype(reading, stack)) for _, _, part in found]
    return [*(Writer(name, kind) for name, kind, _ in found), Writer(BIASES, "bias")], [*vectors, 0 * vectors[0]]


def _dtype(reading: Reading, stack: str) -> torch.dtype:
    """What the parts are computed in: the dtype of the run, at least float32."""
    return torch.promote_types(reading[f"{stack}.0.resid_pre"].dtype, torch.float32)


def _name_after(stack: str, before: list[Site], until: Site | None) -> str:
    """The name of the stream that layer `until` reads, after the layers `before`."""
    if not before:
        return f"{stack}.0.resid_pre"
    if until is None:
        return f"{stack}.{before[-1].layer}.resid_post"
    return after(before[-1]) if before[-1].layer == until.layer else f"{stack}.{until.layer}.resid_pre"


def _with_difference(reading: Reading, parts: StreamParts, name: str) -> StreamParts:
    """The parts with what they miss of the recorded stream as one more part, where that is more than float32 rounds."""
    if name not in reading:
        return parts
    recorded = reading[name][0]  # [pos, d_model]
    missing = recorded.to(parts.vectors.dtype) - parts.total()  # [pos, d_model]
    largest = torch.linalg.vector_norm(
        parts.vectors, ord=torch.inf, dim=(0, 2)
    )  # [pos]: of the parts, which may cancel
    is_rounding = bool((missing.abs().amax(dim=-1) <= tolerance(recorded) * largest).all())
    if is_rounding and recorded.dtype == parts.vectors.dtype:
        return parts
    kind = "rounding" if is_rounding else "unattributed"
    return StreamParts((*parts.writers, Writer(kind, kind)), torch.cat([parts.vectors, missing[None]]))


def _added(reading: Reading, site: Site) -> tuple[list[Writer], Tensor, Tensor]:
    """What a layer adds: its sources, their vectors [writer, pos, d_model], and its biases [pos, d_model]."""
    title = layer_title(site.path, is_pair=reading.is_pair)
    dtype = _dtype(reading, site.stack)
    out = reading[f"{site.path}.out"][0].to(dtype)  # [pos, d_model]
    own = projection_of(reading, site)
    zero = torch.zeros_like(out)
    if own is None:
        kind = "attention" if site.is_attention else "feed_forward"
        return [Writer(f"{title} · {site.does}", kind, site)], out[None], zero
    weight = own.weight.to(dtype)
    bias = zero if own.bias is None else own.bias.to(dtype).expand_as(out)
    if site.is_attention:
        z = reading[f"{site.path}.z"][0].to(dtype)  # [head, pos, d_value]
        inside = z @ weight.unflatten(0, (z.shape[0], z.shape[2]))  # [head, pos, d_model]
        writers = [Writer(f"{title} · head {head + 1}", "attention", site, head) for head in range(len(inside))]
    else:
        post = reading[f"{site.path}.post"][0].to(dtype) if own.norm is not None else None
        inside = (out / own.factor - bias if post is None else post @ weight)[None]
        writers = [Writer(f"{title} · feed-forward", "feed_forward", site)]
    if own.norm is not None:
        frozen = FrozenNorm.at(own.norm, inside.sum(dim=0) + bias)
        inside, bias = frozen(inside), frozen(bias[None])[0] + frozen.shift.to(bias.dtype)
    return writers, inside * own.factor, bias * own.factor
