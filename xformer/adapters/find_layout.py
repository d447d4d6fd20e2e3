"""Name what a watched run showed: which stack and layer each attention is in, then the parts of each block, then the ends."""

from __future__ import annotations

from collections import Counter

from torch import Tensor

from xformer.adapters.block_taps import name_block
from xformer.adapters.end_taps import name_ends
from xformer.adapters.layout import Layout, grouped, is_chain
from xformer.adapters.layout import blocks as blocks_of
from xformer.adapters.probe import Attention, Probe
from xformer.site import Kind, Site, Stack


def find_layout(seen: Probe, ids: tuple[Tensor, ...], n_target: int | None, decoder: str | None = None) -> Layout:
    """Name what a watched run showed.

    Args:
        seen: The run.
        ids: The tokens it read, a tensor for each stack that reads some.
        n_target: How many positions the decoder read beside an encoder; None for a model of one stack.
        decoder: The name of the module that is this decoder, where that is known; else it is told by `n_target`.
    """
    is_even = n_target is not None and decoder is not None and all(one.n_key == n_target for one in seen.attentions)
    blocks = blocks_of(seen, n_square=2 if is_even else 1)
    if not is_chain(seen, blocks):  # parts of one layer that lie in lists of their own are no blocks
        blocks = {}
    layout = Layout((), tuple(_owner(seen, one) for one in seen.attentions))
    sites: dict[int, Site] = {}
    depth: Counter[Stack] = Counter()
    numbers: dict[int, int] = {}
    for index, attention in enumerate(seen.attentions):
        stack = _stack_of(seen, attention, n_target, decoder)
        block = blocks.get(index)
        is_cross = n_target is not None and stack == "decoder" and attention.n_key != n_target
        if n_target is not None and stack == "decoder" and not is_cross and block is not None and block in numbers:
            is_cross = True  # both streams are of one length; a decoder's block looks at its own first
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
    for block, members in grouped(blocks).items():
        name_block(layout, seen, block, [(sites[index], seen.attentions[index]) for index in members])
    name_ends(layout, seen, ids, n_target, blocks, sites)
    return layout


def _owner(seen: Probe, attention: Attention) -> tuple[str, int]:
    if not attention.parents:
        return "", 0
    call = seen.calls[attention.parents[-1]]
    return call.path, call.number


def _stack_of(seen: Probe, attention: Attention, n_target: int | None, decoder: str | None) -> Stack:
    if n_target is None:
        return "decoder" if seen.is_causal else "encoder"
    if decoder is not None:
        return "decoder" if any(seen.calls[at].path == decoder for at in attention.parents) else "encoder"
    return "decoder" if attention.n_query == n_target else "encoder"
