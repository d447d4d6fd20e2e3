"""Locate the parts of an external model from the values of one probed run, not from the names of its modules.

An attention's layer is the number of blocks of its stack entered before it, so a shared layer counts once per call. Blocks
without attention count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from xformer.adapters.probe import AttentionCall, ModuleCall, ProbeRun
from xformer.layer_path import LayerPath, Stack
from xformer.program.offload import own_weight

CLOSE = 1e-4
"""The largest allowed difference between two tensors that count as equal, relative to the largest entry."""


@dataclass(frozen=True)
class ProjectionPlace:
    """The location of a projection matrix."""

    module: str
    is_in_by_out: bool
    """Whether rows belong to the input, as in GPT-2's `Conv1D`; in `nn.Linear` they belong to the output."""
    norm: str | None = None
    """The norm between the matrix and the stream, or None."""
    factor: float = 1.0


def projection_place(
    seen: ProbeRun, inside: Tensor, after: int, adds: ModuleCall, factor: float
) -> ProjectionPlace | None:
    """Locate the matrix that maps `inside` [batch, pos, width] to the output that `adds` adds to the stream, or return None."""
    within = [call for call in seen.calls if after < call.begin and call.end <= adds.end]
    for call in within:
        side = _side(call) if call.is_matrix and close(call.input, inside) else None
        if side is None:
            continue
        if close(call.output, adds.output):
            return ProjectionPlace(call.path, side, None, factor)
        norms = [one for one in within if one.is_norm and call.begin < one.begin]
        for one in norms:
            if close(one.input, call.output) and close(one.output, adds.output):
                return ProjectionPlace(call.path, side, one.path, factor)
    return None


def heads_side_by_side(z: Tensor) -> Tensor:
    """Reshape z [batch, head, query, d_value] to the projection's input [batch, query, head · d_value]."""
    return z.transpose(1, 2).flatten(2) if z.dim() == 4 else z


def _side(call: ModuleCall) -> bool | None:
    """The orientation of a matrix; None if the module does more than multiply and add a bias."""
    weight, bias = own_weight(call.module), own_weight(call.module, "bias")
    assert weight is not None
    for is_in_by_out, matrix in ((False, weight.T), (True, weight)):
        if matrix.shape == (call.input.shape[-1], call.output.shape[-1]):
            product = call.input @ matrix + (0 if bias is None else bias)
            if close(product, call.output):
                return is_in_by_out
    return None


def close(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal up to rounding, in any shape; False for empty ones."""
    if one.numel() != other.numel() or not other.numel() or not other.is_floating_point():
        return False
    within = max(CLOSE, 4 * torch.finfo(other.dtype).eps) * float(other.abs().max())
    return bool(torch.allclose(one.flatten().to(other.dtype), other.flatten(), rtol=0, atol=within))


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are identical and not empty."""
    return (one.shape, one.dtype) == (other.shape, other.dtype) and bool(one.numel()) and torch.equal(one, other)


Side = Literal["in", "out", "adds", "angles", "experts"]
"""The value at a module: its input, its output, the stream after its output is added, rotation angles, or a router's choice."""


@dataclass(frozen=True)
class Tap:
    """One activation at one call of a module."""

    module: str
    side: Side
    number: int
    name: str
    factor: float = 1.0
    """The factor applied to the output before it is added to the stream."""

    @classmethod
    def at(cls, call: ModuleCall, side: Side, name: str, factor: float = 1.0) -> Tap:
        """The tap at one call of a probed run."""
        return cls(call.path, side, call.number, name, factor)


@dataclass
class ModuleMap:
    """The located parts of a model."""

    attention: tuple[LayerPath, ...]
    """The site of each attention, in call order."""
    owner_calls: tuple[tuple[str, int], ...]
    """The module that holds each attention, and the number of the call."""
    taps: list[Tap] = field(default_factory=list)
    feed_forward: list[LayerPath] = field(default_factory=list)
    without_attention: list[tuple[Stack, int]] = field(default_factory=list)
    """The stack and number of each block without attention."""
    norms: dict[str, Literal["pre", "post", "parallel"]] = field(default_factory=dict)
    """The use of norms in each block that could be decomposed, by the path of its attention."""
    last: dict[Stack, str] = field(default_factory=dict)
    """The module that outputs each stack's final stream state."""
    norm_before: dict[str, str] = field(default_factory=dict)
    """The norm between the stream and an attention, by the attention's path."""
    final_norm: dict[str, str] = field(default_factory=dict)
    projections: dict[str, ProjectionPlace] = field(default_factory=dict)
    """The output projection of each layer's heads or neurons, by its path, where it is one matrix."""
    norm_after: dict[str, str] = field(default_factory=dict)
    """The norm on the stream after a layer's output is added, by the layer's path."""
    is_encoder_decoder: bool = False
    """Whether the stacks are the encoder and the decoder of an encoder-decoder."""
    numbered: frozenset[str] = frozenset()
    """The axes of attentions whose positions are not those that their stack reads; see `find_layout.numbered_axes`."""

    @property
    def owners(self) -> tuple[str, ...]:
        """The modules that hold an attention."""
        return tuple(dict.fromkeys(path for path, _ in self.owner_calls))

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(site.path for site in self.attention)

    @property
    def layer_paths(self) -> tuple[LayerPath, ...]:
        """Attention and feed-forward layers, in the order of the computation."""
        order = {site: index for index, site in enumerate(self.attention)}
        stacks = list(dict.fromkeys(site.stack for site in self.attention))
        last = len(order)
        sites = dict.fromkeys([*self.attention, *self.feed_forward])
        return tuple(sorted(sites, key=lambda site: (stacks.index(site.stack), site.layer, order.get(site, last))))


ROUNDINGS = 16
"""The tolerance for matching sums, in rounding errors of their largest entry."""

SAME_SHARE = 0.99
"""The fraction of entries that must match within one rounding error in half precision, where `ROUNDINGS` can hide a layer."""


@dataclass(frozen=True)
class Sublayer:
    """The output that an attention or feed-forward layer adds, and the module that holds the stream afterwards."""

    adds: ModuleCall
    mid: ModuleCall | None
    """The post-norm whose output is the stream; None if the stream is the sum itself."""
    factor: float = 1.0
    """The factor applied to the output before it is added."""


@dataclass(frozen=True)
class BlockLayout:
    """A decomposed block. `attention[i]` belongs to its i-th attention."""

    attention: tuple[Sublayer, ...]
    feed_forward: Sublayer | None
    is_parallel: bool = False


def block_layout(seen: ProbeRun, index: int, attentions: list[AttentionCall]) -> BlockLayout | None:
    """Decompose call `index`, a block with these attentions; None if no sums explain it.

        pre-norm    mid = x + A            y = mid + F                 A: attention's output, F: the feed-forward layer's
                                                                       (some families scale them by a constant)
        post-norm   mid = norm(x + A)      y = norm(mid + F)
        parallel    y = x + A + F                                      (Wang & Komatsuzaki 2021)

    A and F are outputs of modules in the block, identified by x + A being the input of a later module, or the block's output.
    """
    x, y = seen.calls[index].input, seen.calls[index].output
    if x.shape != y.shape:
        return None
    parts = [call for call in seen.inside(index) if call.output.numel() == x.numel()]
    found, n = _walk(parts, x, y, [attention.end for attention in attentions], 0), len(attentions)
    if found is None:
        return _parallel(parts, x, y, attentions)
    return BlockLayout(tuple(found[:n]), found[n] if len(found) > n else None)


def _walk(parts: list[ModuleCall], x: Tensor, y: Tensor, ends: list[int], after: int) -> list[Sublayer] | None:
    """The sublayers that lead from x to y, one per attention and one feed-forward layer. Later modules are tried first."""
    later = [call for call in parts if call.begin > max([after, *ends[:1]])]
    for adds in reversed(later):
        if len(ends) > 1 and adds.end > ends[1]:
            continue
        following = [call for call in later if call.begin > adds.end]
        is_last = len(ends) <= 1
        if is_last and not (ends and any(call.is_leaf and call.has_weights for call in following)):
            factor = _factor(x, adds, y)
            if factor is not None:
                return [Sublayer(adds, None, factor)]
        for reads in following:
            same_size = reads.input.numel() == x.numel()
            factor = _factor(x, adds, reads.input.reshape(x.shape)) if same_size else None
            if factor is None:
                continue
            output = reads.output.reshape(x.shape)
            is_end = not any(call.is_leaf and call.has_weights and call.begin > reads.begin for call in parts)
            if is_last and reads.is_norm and is_end and _close(output, y):
                return [Sublayer(adds, reads, factor)]
            if ends:
                bases = [(x + factor * _as(adds, x), None), *([(output, reads)] if reads.is_norm else [])]
                for base, mid in bases:
                    rest = _walk(parts, base, y, ends[1:], reads.begin - 1 if mid is None else reads.end)
                    if rest is not None:
                        return [Sublayer(adds, mid, factor), *rest]
            break
    return None


def _parallel(parts: list[ModuleCall], x: Tensor, y: Tensor, attentions: list[AttentionCall]) -> BlockLayout | None:
    if len(attentions) != 1:
        return None
    begin, end = attentions[0].begin, attentions[0].end
    attending = [call for call in parts if call.begin < begin and call.end > end]
    others = [call for call in parts if call not in attending]
    for adds in attending or [call for call in parts if call.begin > end]:
        for neurons in reversed(others):
            if _close(x + _as(adds, x) + _as(neurons, x), y):
                return BlockLayout((Sublayer(adds, None),), Sublayer(neurons, None), is_parallel=True)
    return None


def _factor(x: Tensor, adds: ModuleCall, total: Tensor) -> float | None:
    """The constant c with x + c · adds = total, or None."""
    part = _as(adds, x)
    if _close(x + part, total):
        return 1.0
    length = float((part * part).sum())
    factor = float(((total - x) * part).sum()) / length if length > 0 else 0.0
    return factor if factor > 0 and _close(x + factor * part, total) and not _close(x, total) else None


def _as(call: ModuleCall, x: Tensor) -> Tensor:
    return call.output.reshape(x.shape)


def _close(one: Tensor, other: Tensor) -> bool:
    if not bool(torch.isfinite(one).all()):
        return False
    eps, apart = torch.finfo(other.dtype).eps, (one - other).abs()
    if other.dtype in (torch.bfloat16, torch.float16):
        same = apart <= eps * torch.maximum(one.abs(), other.abs())
        return float(same.float().mean()) >= SAME_SHARE
    return float(apart.max()) <= ROUNDINGS * eps * max(float(other.abs().max()), float(one.abs().max()))


Chain = tuple[tuple[str, int], ...]
"""The running modules, outermost first: the path of each, and the number of its earlier calls in this run."""


class Layers:
    """The layers of a model, told from where its attention is: a list of modules that contain attention is a list of layers.

    A layer's number is its index in an `nn.ModuleList`, and its rank in an `nn.Sequential`, which may begin with an embedding.
    """

    def __init__(self, module: nn.Module, attentions: Sequence[str]) -> None:
        self._starts: dict[
            str, tuple[int, int]
        ] = {}  # path of a layer → its number, and the number of layers in the list
        self.attentions = tuple(dict.fromkeys(attentions))
        for path in self.attentions:
            if not any(_is_within(path, start) for start in self._starts):
                self._starts |= self._list_of(module, path) or self._named_alike(path) or {path: (0, 1)}

    def of(self, chain: Chain) -> int | None:
        """Return the layer of the innermost running module; None outside the layers."""
        for path, number in chain:  # a module that is called again is the next layer
            if path in self._starts:
                layer, n_layers = self._starts[path]
                return layer + number * n_layers if layer >= 0 else None
        return None

    def is_layer(self, path: str) -> bool:
        """Return whether a module is a whole layer."""
        return path in self._starts and path not in self.attentions

    def of_path(self, path: str) -> int | None:
        """Return the layer of a module or parameter, as `of` does for the module's first call."""
        parts = path.split(".")
        return self.of(tuple((".".join(parts[:end]), 0) for end in range(1, len(parts) + 1)))

    def _list_of(self, module: nn.Module, path: str) -> dict[str, tuple[int, int]]:
        """Return the layers of the outermost list in which this attention is in one of several layers, or in the only one."""
        parts = path.split(".")
        for depth, part in enumerate(parts):
            if not part.isdigit():
                continue
            prefix = "".join(f"{one}." for one in parts[:depth])
            parent = module.get_submodule(".".join(parts[:depth]))
            children = [name for name, _ in parent.named_children() if name.isdigit()]  # shared modules once
            inside = [name for name in children if any(_is_within(one, prefix + name) for one in self.attentions)]
            if len(inside) > 1 or len(inside) == len(children):
                first = int(inside[0]) if isinstance(parent, nn.Sequential) else 0
                return {prefix + name: (int(name) - first, len(inside)) for name in children}
        return {}

    def _named_alike(self, path: str) -> dict[str, tuple[int, int]]:
        """Return layers that are numbered by their attributes' names: block1, block2."""
        parts = path.split(".")
        for depth, part in enumerate(parts):
            prefix, stem = "".join(f"{one}." for one in parts[:depth]), part.rstrip("0123456789")
            pattern = re.compile(rf"{re.escape(prefix + stem)}(\d+)(\.|$)")
            numbers = sorted({int(found[1]) for one in self.attentions if (found := pattern.match(one))})
            if stem and len(numbers) > 1:
                return {f"{prefix}{stem}{number}": (rank, len(numbers)) for rank, number in enumerate(numbers)}
        return {}


def _is_within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.")


def blocks(seen: ProbeRun, *, n_square: int = 1) -> dict[int, int]:
    """The block of each attention: the outermost member of a module list that contains one self-attention.

    `n_square`: the number of square attentions per block; two if a decoder's streams have the same length.
    """
    found: dict[int, int] = {}
    holds: Counter[int] = Counter(
        parent for one in seen.attentions if one.n_query == one.n_key for parent in one.parents
    )
    for index, attention in enumerate(seen.attentions):
        for parent in attention.parents:
            call = seen.calls[parent]
            is_stream = bool(call.input.numel()) and call.input.shape == call.output.shape
            if holds[parent] <= n_square and call.path.rpartition(".")[2].isdigit() and is_stream:
                found[index] = parent
                break
    return found


def other_blocks(seen: ProbeRun, blocks: dict[int, int]) -> dict[int, int]:
    """The blocks without attention in lists of blocks with attention, each with the next one that has it, or the last."""
    layers = Layers(seen.module, [seen.calls[one.parents[-1]].path for one in seen.attentions if one.parents])
    known = sorted({*blocks.values()})
    found: dict[int, int] = {}
    for index, call in enumerate(seen.calls):
        is_stream = bool(call.input.numel()) and call.input.shape == call.output.shape
        if index in known or call.is_leaf or not is_stream or not layers.is_layer(call.path):
            continue
        alike = [one for one in known if _list_of(seen.calls[one]) == _list_of(call)]
        if alike and layers.of_path(call.path) is not None:
            found[index] = next((one for one in alike if one > index), alike[-1])
    return found


def _list_of(call: ModuleCall) -> tuple[str, tuple[int, ...]]:
    return call.path.rpartition(".")[0], call.parents


def is_chain(seen: ProbeRun, blocks: Iterable[int]) -> bool:
    """Whether at least half of the blocks read the output of the previous block."""
    calls = [seen.calls[index] for index in blocks]
    links = [feeds(one, other) for one, other in pairwise(calls)]
    return 2 * sum(links) >= len(links)


def grouped(blocks: dict[int, int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for attention, block in blocks.items():
        groups.setdefault(block, []).append(attention)
    return groups


def feeds(one: ModuleCall, other: ModuleCall) -> bool:
    """Whether the output of one call is the input of another."""
    return equal(one.output, other.input)


def neuron_taps(
    seen: ProbeRun, block: int, adds: ModuleCall, after: int, attention: AttentionCall
) -> Iterator[tuple[str, Literal["in", "out"], int, str]]:
    """Yield the taps of the neurons that are summed to the output of `adds`: module, side, call number, name."""
    inner = attention.parents[attention.parents.index(block) + 1 :]
    only_attention = {index for index in inner if index not in adds.parents}
    parts = [
        call
        for call in seen.inside(block)
        if call.begin > after and call.end <= adds.end and not only_attention & {*call.parents}
    ]
    rows = adds.output.shape[:-1].numel()
    parts = [call for call in parts if call.input.dim() > 1 and call.input.shape[:-1].numel() == rows]
    mapped = [call for call in parts if call.is_matrix]
    if len(mapped) < 2:
        return
    down = mapped[-1]
    d_ff = down.input.shape[-1]
    yield down.path, "in", down.number, "post"
    ups = [call for call in mapped[:-1] if call.output.shape[-1] in (d_ff, 2 * d_ff)]
    if not ups:
        return
    yield ups[0].path, "in", ups[0].number, "in"
    acts = [
        call
        for call in parts
        if call.is_leaf
        and not isinstance(call.module, nn.Dropout | nn.Identity)
        and next(call.module.parameters(), None) is None
        and ups[0].begin < call.begin < down.begin
        and call.input.shape[-1] == call.output.shape[-1] == d_ff
    ]
    if acts:
        act = acts[0]
        yield act.path, "in", act.number, "pre"
        gate = next((call for call in ups if equal(call.output, act.input)), None)
        if len(ups) == 2:
            other = next(call for call in ups if call is not gate)
            yield other.path, "out", other.number, "up"
    elif len(ups) == 1 and ups[0].output.shape[-1] == d_ff:
        yield ups[0].path, "out", ups[0].number, "pre"


def routing(output: Any) -> tuple[int, int, int] | None:
    """The positions of scores, weights and expert numbers in a router's output, or None."""
    if not isinstance(output, tuple | list) or not all(isinstance(one, Tensor) and one.dim() >= 2 for one in output):
        return None
    numbers = [at for at, one in enumerate(output) if not one.is_floating_point()]
    if len(numbers) != 1:
        return None
    chosen = output[numbers[0]]
    weights = [at for at, one in enumerate(output) if at != numbers[0] and one.shape == chosen.shape]
    scores = [at for at, one in enumerate(output) if one.is_floating_point() and one.shape[-1] > chosen.shape[-1]]
    fits = len(weights) == 1 and len(scores) == 1 and int(chosen.max()) < output[scores[0]].shape[-1]
    return (scores[0], weights[0], numbers[0]) if fits else None
