"""Activations of large runs: few are kept, and the rest are recomputed on request.

attention   from its inputs (q, k, v), with the same arithmetic and edits
the rest    in another run, unless the first run kept them

A pattern is [head, query, key]: 30 layers of 9 heads take 4.5 GB at 2,048 tokens, their inputs 0.2 GB. Each pattern is reduced
to a thumbnail while it exists. It has one byte per cell: q encodes the weight (q / 253)² · peak, 254 NaN, 255 a masked cell. If
there are too many cells, each block of cells is represented by its largest.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, KeysView, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped, UInt8
from torch import Tensor

from xformer.adapters.attention import MaskLimits, Terms, attend
from xformer.edits import Edit
from xformer.memory import BYTES_PER_FLOAT
from xformer.model_shape import ModelShape
from xformer.program.record import tensors_in
from xformer.tape import SILENT, AnyTape, StopForward, Tape, TapeAt
from xformer.tasks.task import Example

MAX_GROUPS = 2
"""The largest number of groups of recomputed activations kept at once."""


@dataclass(frozen=True, eq=False)
class DeferredAttention:
    """The inputs of one attention, from which its activations can be recomputed."""

    q: Tensor
    k: Tensor
    v: Tensor
    terms: Terms
    limits: MaskLimits
    names: tuple[str, ...]
    """The names of its activations, in the order in which they reach the tape."""
    reduced: Any

    def recompute(self, names: Sequence[str], path: str, edits: Sequence[Edit]) -> dict[str, Tensor]:
        """Recompute activations by their full names."""
        tape = EarlyStopTape(edits, names)
        with suppress(StopForward):
            attend(self.q, self.k, self.v, self.terms, tape.at(path), self.limits)
        return {name: value.cpu() for name, value in tape.activations.items()}

    @property
    def held(self) -> list[Tensor]:
        return [self.q, self.k, self.v]


def attend_and_reduce(
    q: Float[Tensor, "1 head query d_head"],
    k: Float[Tensor, "1 group key d_head"],
    v: Float[Tensor, "1 group key d_value"],
    terms: Terms,
    limits: MaskLimits,
    tape: AnyTape,
    most: int,
) -> tuple[Float[Tensor, "1 head query d_value"], list[str], Reduced]:
    """z, the names of the activations, and the pattern reduced to planes of at most `most` cells a side.

    Without edits, and where heads share all terms, the heads of one group are computed for a few queries at a time and the keys
    that any of them may attend to: the memory of one part is used again for the next.
    """
    (n_heads, n_query), (n_groups, n_key) = q.shape[1:3], k.shape[1:3]
    size = -(-n_query // most), -(-n_key // most)
    masks = (limits.forbidden, limits.empty, limits.bias, limits.added)
    is_shared = all(one is None or one.dim() < 3 or one.shape[-3] == 1 for one in masks)
    if tape is not SILENT or not is_shared or terms.bias is not None or terms.sinks is not None:
        spy = SpyTape(tape)
        z, pattern = attend(q, k, v, terms, spy, limits)
        return z, spy.names, reduced(*blocks(pattern[0], size), z[0], ReducedMask.of(spy.mask, size), n_key)
    z, parts = (
        v.new_empty(1, n_heads, n_query, v.shape[-1]),
        limits.cached(("parts", size), lambda: list(limits.parts(size))),
    )
    high = q.new_zeros((n_heads, -(-n_query // size[0]), -(-n_key // size[1])), dtype=torch.float32)
    column = torch.zeros_like(high[:, :, 0])
    per = n_heads // n_groups
    for group in range(n_groups):
        heads = slice(group * per, (group + 1) * per)
        for queries, keys, part in parts:
            given = q[:, heads, queries], k[:, group, None, keys], v[:, group, None, keys]
            z[:, heads, queries], pattern = attend(*given, terms, SILENT, part)
            rows, cols = (
                slice(one.start // side, -(-one.stop // side)) for one, side in zip((queries, keys), size, strict=True)
            )
            high[heads, rows, cols], of_column = blocks(pattern[0], size)
            if keys.start == 0:
                column[heads, rows] = of_column
    of_all = limits.allowed.expand(1, n_heads, n_query, n_key)
    mask = limits.cached(("mask", size), lambda: ReducedMask.of(of_all, size))
    names = ["q", "k", "v", *(["causal"] if n_query == n_key else []), "mask", "scores", "pattern", "z"]
    return z, names, reduced(high, column, z[0], mask, n_key)


class Calls(dict[tuple[str, int], tuple[tuple[Any, ...], dict[str, Any]]]):
    """The arguments of each call of an attention module, without the stream, by module name and call number."""

    def keep(self, module: str, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Store one call."""
        others = {name: None if name == "hidden_states" else value for name, value in kwargs.items()}
        self[module, number] = ((None, *args[1:]) if args else (), others)


class SpyTape(TapeAt):
    """A tape that records the names of one attention's activations, and keeps its mask."""

    mask: Tensor

    def __init__(self, tape: AnyTape) -> None:
        self._inner = tape
        self.names: list[str] = []

    def __call__(self, name: str, value: Tensor) -> Tensor:
        value = self._inner(name, value)
        self.names.append(name)
        if name == "mask":
            self.mask = value
        return value


class OnDemand(dict[str, Tensor]):
    """Activations by name, in the order of the run. The dictionary itself holds those that are kept."""

    def __init__(
        self,
        kept: dict[str, Tensor],
        names: Sequence[str],
        later: dict[str, DeferredAttention],
        edits: Sequence[Edit],
        record: Callable[[Sequence[str]], dict[str, Tensor]],
        calls: Calls,
    ) -> None:
        super().__init__({name: value.cpu() for name, value in kept.items()})
        self.later, self.calls = later, calls
        self._names = dict.fromkeys(names)
        self._edits, self._record = tuple(edits), record
        self._groups: dict[str, dict[str, Tensor]] = {}
        self._last: dict[str, Tensor] = {}
        self._memory: dict[tuple[object, ...], Any] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Tensor:
        if dict.__contains__(self, name):
            return super().__getitem__(name)
        path, _, what = name.rpartition(".")
        with self._lock:
            if self._is_later(name):
                if name not in self._last:
                    pair = ("mask", "pattern")  # usually requested together
                    wanted = pair if what in pair else (what,)
                    names = [f"{path}.{one}" for one in self.later[path].names if one in wanted]
                    self._last = self.later[path].recompute(names, path, self._edits)
                return self._last[name]
            group = _group(what or name)
            if group not in self._groups:
                wanted = [one for one in self if not dict.__contains__(self, one) and not self._is_later(one)]
                found = self._record([one for one in wanted if _group(one.rpartition(".")[2]) == group])
                self._groups = dict([*self._groups.items(), (group, found)][-MAX_GROUPS:])
            return self._groups[group][name]

    def _is_later(self, name: str) -> bool:
        path, _, what = name.rpartition(".")
        return path in self.later and what in self.later[path].names

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        return self._names.keys()

    def values(self) -> Any:
        return (self[name] for name in self)

    def items(self) -> Any:
        return ((name, self[name]) for name in self)

    def held(self) -> list[Tensor]:
        """The tensors in memory."""
        groups = [tensor for group in self._groups.values() for tensor in group.values()]
        later = [tensor for one in self.later.values() for tensor in one.held]
        return [*dict.values(self), *later, *groups, *tensors_in(list(self.calls.values()))]

    def cached(self, key: tuple[object, ...], make: Callable[[], Any]) -> Any:
        """Cache a value derived from this run and `key`; runs in `key` are compared by identity."""
        at = tuple(id(one) if isinstance(one, OnDemand) else one for one in key)
        found = self._memory.get(at)
        alive = [weakref.ref(one) for one in key if isinstance(one, OnDemand)]
        if found is None or [one() for one in found[0]] != [one() for one in alive]:
            found = self._memory[at] = (alive, make())
        return found[1]

    def reduced(self, path: str) -> Any:
        """The reduced pattern of a layer, or None."""
        return self.later[path].reduced if path in self.later else None


def _group(what: str) -> str:
    """The group of activations that are recomputed together: the stream and its summands, or one kind."""
    return "stream" if what.startswith(("resid", "pos_")) or what in ("embed", "in", "out", "final_norm") else what


class EarlyStopTape(Tape):
    """Keeps the named activations and ends the pass at the last of them."""

    def __init__(self, edits: Iterable[Edit], wanted: Sequence[str]) -> None:
        super().__init__(edits, wanted)
        self._missing = set(wanted)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        value = super().__call__(name, value)
        self._missing.discard(name)
        if not self._missing:
            raise StopForward
        return value


LEVELS, NAN, MASKED = 253, 254, 255
"""The largest code of a weight in a thumbnail, and the codes of NaN and of masked cells."""


@dataclass(frozen=True, eq=False)
class Thumbnail:
    """A small image of each head's pattern in a layer."""

    planes: UInt8[np.ndarray, "head row col"]
    peaks: Float[np.ndarray, " head"]
    rest: UInt8[np.ndarray, "head row"]
    """The first column of the planes without the first key."""
    rest_peaks: Float[np.ndarray, " head"]
    """The largest weight of each head on any key but the first."""

    @property
    def weights(self) -> Float[np.ndarray, "head row col"]:
        """The weights that the planes encode; 0 for masked cells and NaN."""
        share = np.where(self.planes <= LEVELS, self.planes, 0).astype(np.float32) / LEVELS
        return share**2 * self.peaks[:, None, None].astype(np.float32)


@dataclass(frozen=True, eq=False)
class Reduced:
    """The thumbnails of a layer, and whether heads are ablated or masked."""

    shape: tuple[int, ...]
    """[head, query, key] of the pattern."""
    thumbnail: Thumbnail
    z_size: tuple[float, ...]
    ablated: tuple[int, ...]
    is_masked: bool


def plane_side(n_heads: int, budget: int = 600_000) -> int:
    """The side length, from 32 to 64 cells, at which the planes of all heads take about `budget` bytes."""
    return max(32, min(64, int(math.sqrt(budget / max(1, n_heads)))))


@dataclass(frozen=True, eq=False)
class ReducedMask:
    """The blocks of cells of which the mask permits any, with and without the first key, and whether it hides a cell."""

    allowed: Bool[Tensor, "#head row col"]
    column: Bool[Tensor, "#head row"]
    """The first column without the first key."""
    is_masked: bool

    @classmethod
    def of(cls, mask: Bool[Tensor, "1 head query key"], size: tuple[int, int]) -> ReducedMask:
        """Reduce the mask of one input to blocks of `size` cells."""
        mask = mask[0, :1] if mask.stride(1) == 0 else mask[0]
        allowed, column = blocks(mask, size)
        return cls(allowed > 0, column > 0, not bool(mask.all()))


def blocks(
    cells: Shaped[Tensor, "head query key"], size: tuple[int, int]
) -> tuple[Float[Tensor, "head row col"], Float[Tensor, "head row"]]:
    """The largest cell of each block of `size` cells, and of those in the first column without the first key, else 0."""
    cells, (tall, wide) = cells.float(), size
    high = _largest(cells, tall, wide)
    column = _largest(cells[:, :, 1:wide], tall, wide - 1)[:, :, 0] if wide > 1 else torch.zeros_like(high[:, :, 0])
    return high, column


def reduced(
    high: Float[Tensor, "head row col"],
    column: Float[Tensor, "head row"],
    z: Float[Tensor, "head query d_value"],
    mask: ReducedMask,
    n_key: int,
) -> Reduced:
    """Reduce one layer to codes of its `blocks`."""
    allowed, column_allowed = mask.allowed.expand(high.shape), mask.column.expand(high.shape[:2])
    weights = torch.where(allowed & high.isfinite(), high, 0.0)
    peaks = weights.amax(dim=(1, 2))  # [head]
    rest = torch.where(column_allowed & column.isfinite(), column, 0.0).amax(dim=1)
    if weights.shape[2] > 1:
        rest = torch.maximum(rest, weights[:, :, 1:].amax(dim=(1, 2)))
    size = z.float().norm(dim=-1).mean(dim=-1).tolist()
    planes, first = _codes(high, allowed, peaks[:, None, None]), _codes(column, column_allowed, peaks[:, None])
    thumbnail = Thumbnail(planes, peaks.numpy(force=True), first, rest.numpy(force=True))
    ablated = tuple(head for head, one in enumerate(size) if one == 0 and peaks[head] > 0)
    return Reduced((*z.shape[:2], n_key), thumbnail, tuple(size), ablated, mask.is_masked)


def _codes(weights: Tensor, allowed: Tensor, peaks: Tensor) -> UInt8[np.ndarray, "..."]:
    share = weights.nan_to_num(0.0, 0.0, 0.0).clamp(min=0) / torch.where(peaks > 0, peaks, 1.0)
    codes = (LEVELS * share.sqrt()).round().clamp(0, LEVELS)
    codes = torch.where(weights.isfinite(), codes, float(NAN))
    return torch.where(allowed, codes, float(MASKED)).to(torch.uint8).numpy(force=True)


def _largest(x: Tensor, tall: int, wide: int) -> Tensor:
    """The maximum of each block of [head, query, key]; blocks at the end may be smaller."""
    missing = -x.shape[1] % tall, -x.shape[2] % wide
    if any(missing):
        x = F.pad(x, (0, missing[1], 0, missing[0]), value=-math.inf)
    return x.unflatten(2, (-1, wide)).unflatten(1, (-1, tall)).amax(2).amax(-1)


def lengths(example: Example) -> tuple[int, int]:
    """The number of tokens of the main stream, and of the decoder of an encoder-decoder (else 0)."""
    return example.input_ids.shape[1], 0 if example.target is None else example.target.shape[1]


def recorded_bytes(shape: ModelShape, n: int, n_target: int = 0) -> int:
    """The bytes of a run that keeps everything: `n` positions, and `n_target` in the decoder of an encoder-decoder."""
    numbers = 2 * (n_target or n) * shape.vocab_size
    for site in shape.attention:
        queries = _queries(site.stack, n, n_target)
        keys = n if site.is_cross else queries
        # scores, pattern; q, k, v, z
        numbers += 2 * shape.heads[site.path] * queries * keys + 4 * queries * shape.d_model
    return BYTES_PER_FLOAT * numbers + added_bytes(shape, n, n_target)


def added_bytes(shape: ModelShape, n: int, n_target: int = 0) -> int:
    """The part of `recorded_bytes` outside attention: the stream, its summands and the neurons, without logits."""
    return BYTES_PER_FLOAT * sum(
        3 * _queries(site.stack, n, n_target) * (shape.d_model + shape.neurons.get(site.path, 0))
        for site in shape.layer_paths
    )


def on_demand_bytes(shape: ModelShape, n: int, n_target: int = 0) -> int:
    """The bytes of a run that keeps only the logits and the inputs of attention."""
    longest = max(n, n_target)
    widest = 4 * longest * longest * shape.n_heads  # one layer while it is computed
    held = len(shape.attention) * 3 * longest * shape.d_model
    return BYTES_PER_FLOAT * (widest + held + (n_target or n) * shape.vocab_size)


def _queries(stack: str, n: int, n_target: int) -> int:
    return n_target if n_target and stack == "decoder" else n
