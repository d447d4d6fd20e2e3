"""Which part of an unknown model is what, under our names: found once, by watching one run.

layer        how many blocks of its stack were entered before, so that a layer that is shared counts by call
stack        "encoder" or "decoder"; cross-attention looks from the one into the other
taps         which module's input or output is which activation
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from xformer.site import Kind, Site, Stack
from xformer.subjects.foreign.block_layout import BlockLayout, Sublayer, block_layout
from xformer.subjects.foreign.neuron_layout import neuron_taps
from xformer.subjects.foreign.probe import Attention, Call, Probe
from xformer.subjects.foreign.projections import ProjectionPlace, heads_side_by_side, projection_place
from xformer.subjects.foreign.router import is_router

Side = Literal["in", "out", "adds", "angles", "experts"]
"""Where an activation is met: what a module takes, what it gives, what it adds to the stream, the angles of a rotation, the
choice of a router."""


@dataclass(frozen=True)
class Tap:
    """One activation at one call of a module."""

    module: str
    side: Side
    number: int
    name: str
    factor: float = 1.0
    """What it is multiplied with before it is added to the stream."""
    is_changed_later: bool = False
    """Whether a later part writes over it, so that what is kept has to be a copy."""


@dataclass
class Layout:
    """What was found."""

    attention: tuple[Site, ...]
    """The site of each attention, in the order of the calls."""
    owner_calls: tuple[tuple[str, int], ...]
    """For each attention the module that holds it, and which of its calls that is."""
    taps: list[Tap] = field(default_factory=list)
    feed_forward: list[Site] = field(default_factory=list)
    norms: dict[str, Literal["pre", "post", "parallel"]] = field(default_factory=dict)
    """How each block that could be taken apart uses its norms, by the path of its attention."""
    last: dict[Stack, str] = field(default_factory=dict)
    """The module that gives the last state of each stack's stream."""
    norm_before: dict[str, str] = field(default_factory=dict)
    """The norm between the stream and an attention, by the attention's path."""
    final_norm: dict[Stack, str] = field(default_factory=dict)
    projections: dict[str, ProjectionPlace] = field(default_factory=dict)
    """What maps the heads, or the neurons, of each layer back to the stream, by its path, where one matrix does."""
    norm_after: dict[str, str] = field(default_factory=dict)
    """The norm that stands on the stream after a layer's output was added, by its path, where there is one."""

    @property
    def owners(self) -> tuple[str, ...]:
        """The modules that hold an attention."""
        return tuple(dict.fromkeys(path for path, _ in self.owner_calls))

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(site.path for site in self.attention)

    @property
    def sites(self) -> tuple[Site, ...]:
        """Attention and feed-forward layers, in the order the input meets them."""
        order = {site: index for index, site in enumerate(self.attention)}
        stacks = list(dict.fromkeys(site.stack for site in self.attention))
        last = len(order)
        return tuple(
            sorted(
                dict.fromkeys([*self.attention, *self.feed_forward]),
                key=lambda site: (stacks.index(site.stack), site.layer, order.get(site, last)),
            )
        )


def find_layout(seen: Probe, ids: tuple[Tensor, ...], n_target: int | None, *, is_causal: bool) -> Layout:
    """Name what a watched run showed. `ids` are the tokens it read, `n_target` how many a decoder read beside an encoder."""
    blocks = _blocks(seen)
    if not _is_chain(seen, blocks):  # parts of one layer that lie in lists of their own are no blocks
        blocks = {}
    layout = Layout((), tuple(_owner(seen, one) for one in seen.attentions))
    sites: dict[int, Site] = {}
    depth: Counter[Stack] = Counter()
    numbers: dict[int, int] = {}
    for index, attention in enumerate(seen.attentions):
        stack = _stack_of(attention, n_target, is_causal=is_causal)
        block = blocks.get(index)
        is_cross = n_target is not None and stack == "decoder" and attention.n_key != n_target
        is_new = not is_cross if block is None else block not in numbers
        if is_new:
            if block is not None:
                numbers[block] = depth[stack]
            depth[stack] += 1
        layer = numbers[block] if block is not None else depth[stack] - 1
        kind: Kind = "attn"
        if n_target is not None and stack == "decoder":
            kind = "cross_attn" if is_cross else "self_attn"
        sites[index] = Site(stack, max(layer, 0), kind)
    layout.attention = tuple(sites[index] for index in range(len(seen.attentions)))
    for block, members in _grouped(blocks).items():
        _name_block(layout, seen, block, [(sites[index], seen.attentions[index]) for index in members])
    _name_ends(layout, seen, ids, n_target, blocks, sites)
    return layout


def _owner(seen: Probe, attention: Attention) -> tuple[str, int]:
    if not attention.parents:
        return "", 0
    call = seen.calls[attention.parents[-1]]
    return call.path, call.number


def _blocks(seen: Probe) -> dict[int, int]:
    """For each attention the call that is its block: the outermost member of a list of modules with one self-attention."""
    found: dict[int, int] = {}
    holds: Counter[int] = Counter(
        parent for one in seen.attentions if one.n_query == one.n_key for parent in one.parents
    )
    for index, attention in enumerate(seen.attentions):
        for parent in attention.parents:
            call = seen.calls[parent]
            if holds[parent] <= 1 and _is_member_of_list(call.path) and _is_stream(call):
                found[index] = parent
                break
    return found


def _is_chain(seen: Probe, blocks: dict[int, int]) -> bool:
    """Whether most blocks begin with what the one before them gave."""
    calls = [seen.calls[index] for index in dict.fromkeys(blocks.values())]
    links = [
        one.given is not None
        and other.taken is not None
        and one.given.shape == other.taken.shape
        and torch.equal(one.given, other.taken)
        for one, other in pairwise(calls)
    ]
    return 2 * sum(links) >= len(links)


def _is_member_of_list(path: str) -> bool:
    return path.rpartition(".")[2].isdigit()


def _is_stream(call: Call) -> bool:
    return call.taken is not None and call.given is not None and call.taken.shape == call.given.shape


def _stack_of(attention: Attention, n_target: int | None, *, is_causal: bool) -> Stack:
    if n_target is None:
        return "decoder" if is_causal else "encoder"
    return "decoder" if attention.n_query == n_target else "encoder"


def _grouped(blocks: dict[int, int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for attention, block in blocks.items():
        groups.setdefault(block, []).append(attention)
    return groups


def _name_block(layout: Layout, seen: Probe, block: int, members: list[tuple[Site, Attention]]) -> None:
    call, site = seen.calls[block], members[0][0]
    at = f"{site.stack}.{site.layer}"
    layout.taps += [
        Tap(call.path, "in", call.number, f"{at}.resid_pre"),
        Tap(call.path, "out", call.number, f"{at}.resid_post"),
    ]
    layout.last[site.stack] = call.path
    parts = block_layout(seen, block, [attention for _, attention in members])
    after = ["resid_mid", "resid_cross"]
    for index, (one, attention) in enumerate(members):
        if parts is None:
            if (out := _projection(seen, attention, call)) is not None:
                layout.taps.append(Tap(out.path, "out", out.number, f"{one.path}.out"))
            continue
        layer = parts.attention[index]
        layout.taps.append(
            Tap(layer.adds.path, "out", layer.adds.number, f"{one.path}.out", layer.factor, layer.adds.is_changed_later)
        )
        _name_projection(
            layout, seen, one.path, layer, heads_side_by_side(attention.z, attention.n_query), attention.begin
        )
        if parts.feed_forward is not None and not parts.is_parallel:
            where = layer.adds if layer.mid is None else layer.mid
            side: Side = "adds" if layer.mid is None else "out"
            factor = layer.factor if layer.mid is None else 1.0
            layout.taps.append(Tap(where.path, side, where.number, f"{at}.{after[index]}", factor))
    layout.taps += list(_attention_inputs(layout, seen, call, members))
    if parts is None:
        return
    layout.norms[site.path] = "parallel" if parts.is_parallel else _norm_of(parts)
    if layout.norms[site.path] == "post":  # what its norms give is the stream itself
        for one, _ in members:
            layout.norm_before.pop(one.path, None)
    if parts.feed_forward is not None:
        ffn = Site(site.stack, site.layer, "ffn")
        layout.feed_forward.append(ffn)
        adds = parts.feed_forward.adds
        layout.taps.append(
            Tap(adds.path, "out", adds.number, f"{ffn.path}.out", parts.feed_forward.factor, adds.is_changed_later)
        )
        after_attention = 0 if parts.is_parallel else parts.attention[-1].adds.end
        routers = (call for call in seen.inside(block) if after_attention < call.begin < adds.end and is_router(call))
        layout.taps += [Tap(call.path, "experts", call.number, f"{ffn.path}.experts") for call in routers][:1]
        for module, side, number, name in neuron_taps(seen, block, adds, after_attention, members[-1][1]):
            layout.taps.append(Tap(module, side, number, f"{ffn.path}.{name}"))
            if name == "post":
                neurons = next(one for one in seen.calls if (one.path, one.number) == (module, number))
                _name_projection(layout, seen, ffn.path, parts.feed_forward, neurons.taken, after_attention)


def _name_projection(
    layout: Layout, seen: Probe, path: str, layer: Sublayer, inside: Tensor | None, after: int
) -> None:
    place = projection_place(seen, inside, after, layer.adds, layer.factor)
    if place is not None:
        layout.projections[path] = place
    if layer.mid is not None:
        layout.norm_after[path] = layer.mid.path


def _norm_of(parts: BlockLayout) -> Literal["pre", "post"]:
    return "pre" if parts.attention[0].mid is None else "post"


def _projection(seen: Probe, attention: Attention, block: Call) -> Call | None:
    """The part that maps the heads' z back to the stream: the first with weights that reads z."""
    if attention.z is None:
        return None
    for call in seen.calls:
        if (
            attention.end < call.begin < block.end
            and call.is_leaf
            and call.taken is not None
            and call.given is not None
        ):
            return call
    return None


def _attention_inputs(layout: Layout, seen: Probe, block: Call, members: list[tuple[Site, Attention]]) -> Iterator[Tap]:
    """What the query's projection of each attention reads: the first matrix in the module that holds it."""
    size = 0 if block.taken is None else block.taken.numel()
    for site, attention in members:
        for call in seen.inside(attention.parents[-1]):
            reads = call.taken is not None and call.taken.is_floating_point() and call.taken.numel() == size
            if call.begin < attention.begin and reads and call.is_matrix:
                layout.norm_before |= _norm_giving(seen, call, block, site)
                yield Tap(call.path, "in", call.number, f"{site.path}.in")
                break


def _norm_giving(seen: Probe, reads: Call, block: Call, site: Site) -> dict[str, str]:
    """The norm within a block that gives what a part reads; nothing where that is the stream itself."""
    within = (call for call in seen.calls if block.begin < call.begin < reads.begin)
    return next(({site.path: call.path} for call in within if call.is_norm and _gives(call, reads)), {})


def _gives(one: Call, other: Call) -> bool:
    """Whether one part gives what another one reads."""
    given, taken = one.given, other.taken
    return given is not None and taken is not None and given.shape == taken.shape and torch.equal(given, taken)


def _name_ends(
    layout: Layout,
    seen: Probe,
    ids: tuple[Tensor, ...],
    n_target: int | None,
    blocks: dict[int, int],
    sites: dict[int, Site],
) -> None:
    """What stands before the first block and after the last."""
    is_pair = n_target is not None
    for stack, call, name in _embeddings(
        seen, ids, set(blocks.values()), is_pair=is_pair, alone=layout.attention[0].stack
    ):
        layout.taps.append(Tap(call.path, "out", call.number, f"{stack}.{name}" if is_pair else name))
    n_rotations = 0
    for call in seen.calls:
        if _is_rotation(call):
            suffix = f"_{n_rotations + 1}" if n_rotations else ""
            layout.taps.append(Tap(call.path, "angles", call.number, f"pos_angles{suffix}"))
            n_rotations += 1
    stacks: list[Stack] = list(dict.fromkeys(site.stack for site in layout.attention))
    for stack in stacks:
        members = [block for index, block in blocks.items() if sites[index].stack == stack]
        if not members:
            continue
        last = seen.calls[max(members)]
        for call in seen.calls:
            if call.begin < last.end or not call.is_leaf:
                continue
            if call.is_norm and _gives(last, call):
                name = f"{stack}.final_norm" if is_pair and stack == "encoder" else "final_norm"
                layout.taps.append(Tap(call.path, "out", call.number, name))
                layout.final_norm[stack] = call.path
            break


def _embeddings(
    seen: Probe, ids: tuple[Tensor, ...], blocks: set[int], *, is_pair: bool, alone: Stack
) -> Iterator[tuple[Stack, Call, str]]:
    """The tables that are looked up: by token, or by place."""
    used: set[str] = set()
    for call in seen.calls:
        if not isinstance(call.module, nn.Embedding) or call.given is None or call.given.dim() < 2:
            continue
        if set(call.parents) & blocks:  # a table of biases
            continue
        n = call.given.shape[-2]
        by_token = [index for index, read in enumerate(ids) if any(_is_equal(value, read) for value in call.inputs)]
        stack: Stack = alone
        if is_pair:
            stack = "encoder" if n == ids[0].shape[-1] else "decoder"
        name = "embed" if by_token else "pos_embed" if _is_by_place(call, n) else "type_embed"
        if f"{stack}.{name}" not in used:
            used.add(f"{stack}.{name}")
            yield stack, call, name


def _is_equal(value: Tensor, read: Tensor) -> bool:
    return value.shape == read.shape and bool((value == read).all())


def _is_by_place(call: Call, n: int) -> bool:
    """Whether the rows are those of places that follow each other, wherever a family begins to count."""
    table, rows = call.module.get_parameter("weight"), call.given
    assert rows is not None
    rows = rows.reshape(-1, n, rows.shape[-1])[0]
    return any(
        len(table) >= start + n and torch.allclose(rows, table[start : start + n], atol=1e-6) for start in range(4)
    )


def _is_rotation(call: Call) -> bool:
    """Whether it gives cosines and sines of one shape: what rotary positions turn queries and keys with."""
    if len(call.outputs) != 2 or "rot" not in f"{call.path}{type(call.module).__name__}".lower():
        return False
    cosine, sine = call.outputs
    if cosine.shape != sine.shape or not cosine.is_floating_point():
        return False
    length = cosine.double() ** 2 + sine.double() ** 2
    return bool(torch.allclose(length, length.flatten()[0].expand_as(length), rtol=1e-3))
