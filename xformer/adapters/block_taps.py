"""The parts of one block under our names: what attention and neurons read and add, and where the stream stands between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from torch import Tensor

from xformer.adapters.layout import (
    BlockLayout,
    Layout,
    Side,
    Sublayer,
    Tap,
    block_layout,
    gives,
    heads_side_by_side,
    is_router,
    neuron_taps,
    projection_place,
)
from xformer.adapters.probe import Attention, Call, Probe
from xformer.site import Site


def name_block(layout: Layout, seen: Probe, block: int, members: list[tuple[Site, Attention]]) -> None:
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
    return next(({site.path: call.path} for call in within if call.is_norm and gives(call, reads)), {})
