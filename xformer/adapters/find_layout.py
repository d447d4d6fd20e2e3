"""Derive a `ModuleMap` from a probed run: sites of attention, parts of each block, embeddings, final norm and output head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.adapters.module_map import (
    ModuleMap,
    Side,
    Sublayer,
    Tap,
    block_layout,
    close,
    equal,
    feeds,
    grouped,
    heads_side_by_side,
    is_chain,
    neuron_taps,
    other_blocks,
    projection_place,
    routing,
)
from xformer.adapters.module_map import blocks as blocks_of
from xformer.adapters.probe import AttentionCall, ModuleCall, Origin, Origins, ProbeRun, Streams, is_causal, running
from xformer.errors import InputError
from xformer.layer_path import Kind, LayerPath, Stack
from xformer.program.offload import device_of, own_weight


def find_layout(
    seen: ProbeRun, ids: tuple[Tensor, ...], streams: Streams, origins: Sequence[Origins] | None = None
) -> ModuleMap:
    """Derive the layout from a probed run.

    Args:
        seen: The run.
        ids: The token ids it read, one tensor per stack that reads tokens.
        streams: The streams that it read.
        origins: The stream that the queries and the keys of each attention come from; None: unknown.
    """
    n_target, decoder = streams.n_target, streams.decoder
    has_memory = streams.has_memory or {("source", "source"), ("source", None)} <= {*(origins or ())}
    if n_target is not None and decoder is not None and not ids[1:]:  # the decoder's positions are the model's own
        inside = [one for one in seen.attentions if _stack_of(seen, one, n_target, decoder) == "decoder"]
        n_target = inside[0].n_query if inside else n_target
    is_even = n_target is not None and decoder is not None and all(one.n_key == n_target for one in seen.attentions)
    alone = _single_stacks(seen, origins)
    blocks = blocks_of(seen, n_square=2 if is_even else 1)
    others = other_blocks(seen, blocks)
    if not is_chain(seen, sorted({*blocks.values(), *others})):  # module lists of the parts of one layer, not blocks
        blocks, others = {}, {}
    layout = ModuleMap((), tuple(_owner(seen, one) for one in seen.attentions), is_encoder_decoder=n_target is not None)
    sites: dict[int, LayerPath] = {}
    depth: Counter[Stack] = Counter()
    numbers: dict[int, int] = {}

    def name_others(found: Iterable[int], stack: Stack) -> None:
        for one in found:
            layout.taps += _stream_taps(seen.calls[one], f"{stack}.{depth[stack]}")
            layout.without_attention.append((stack, depth[stack]))
            depth[stack] += 1

    for index, attention in enumerate(seen.attentions):
        stack = alone[index] if n_target is None else _stack_of(seen, attention, n_target, decoder)
        block = blocks.get(index)
        is_cross = False
        if stack == "decoder" and (n_target is not None or has_memory):
            if origins is not None and (n_target is None or "target" in origins[index]):
                is_cross = origins[index][0] != origins[index][1]
            else:  # with two streams of one length, self-attention comes first in a decoder block
                is_cross = attention.n_key != n_target or (block is not None and block in numbers)
        is_new = not is_cross if block is None else block not in numbers
        if is_new:
            if block is not None:
                name_others([one for one, of in others.items() if one < block == of], stack)
                numbers[block] = depth[stack]
            depth[stack] += 1
        layer = numbers[block] if block is not None else depth[stack] - 1
        kind: Kind = "attn"
        if stack == "decoder" and (n_target is not None or has_memory):
            kind = "cross_attn" if is_cross else "self_attn"
        sites[index] = site = LayerPath(stack, max(layer, 0), kind)
        if kind == "attn" and site in [sites[one] for one in range(index)]:  # a second attention in an encoder's block
            sites[index] = LayerPath(stack, depth[stack], kind)
            depth[stack] += 1
    layout.attention = tuple(sites[index] for index in range(len(seen.attentions)))
    sizes = [(one.n_query, one.n_key) for one in seen.attentions]
    layout.numbered = numbered_axes(layout.attention, sizes, origins, streams)
    for block, members in grouped(blocks).items():
        name_block(layout, seen, block, [(sites[index], seen.attentions[index]) for index in members])
        if after_it := [one for one, of in others.items() if one > block == of]:
            stack = sites[members[0]].stack
            name_others(after_it, stack)
            layout.last[stack] = seen.calls[after_it[-1]].path
    name_ends(layout, seen, ids, n_target, {*blocks.values(), *others})
    return layout


def _owner(seen: ProbeRun, attention: AttentionCall) -> tuple[str, int]:
    if not attention.parents:
        return "", 0
    call = seen.calls[attention.parents[-1]]
    return call.path, call.number


def numbered_axes(
    sites: Sequence[LayerPath], sizes: Sequence[tuple[int, int]], origins: Sequence[Origins] | None, streams: Streams
) -> frozenset[str]:
    """The axes of attentions whose positions are not those that their stack reads, as "encoder.0.attn.key".

    Args:
        sites: The site of each attention.
        sizes: The number of queries and of keys of each attention.
        origins: The stream that they come from; None: unknown.
        streams: The streams of the inputs.
    """
    is_even = len({n for size in sizes for n in size}) == 1
    found: set[str] = set()
    for index, site in enumerate(sites):
        stacks = {"query": site.query_stack, "key": site.key_stack}
        for axis, (name, stack) in enumerate(stacks.items()):
            is_target = streams.n_target is not None and stack == "decoder" and "target" in streams.moved
            wanted: Origin = "target" if is_target else "source"  # a decoder input may be derived from the source
            if (
                streams.n_target is None and site.is_cross and name == "key"
            ):  # of vectors that the caller gave, or an image
                is_other = True
            elif origins is None:
                is_other = streams.n_target is None and (streams.are_several or not is_even)
            elif wanted in streams.moved:
                is_other = origins[index][axis] != wanted
            else:  # an image or a sound, whose length was not changed
                is_other = origins[index][axis] is not None or not is_even
            if is_other:
                found.add(f"{site.path}.{name}")
    return frozenset(found)


def _single_stacks(seen: ProbeRun, origins: Sequence[Origins] | None) -> list[Stack]:
    """The stack of each attention in a model that is no encoder-decoder: "decoder" if no token attends to a later one.

    Attention over other positions than the tokens', as of an image, is judged apart.
    """
    of: list[Origin] = [one[0] for one in origins] if origins else [None for _ in seen.attentions]
    groups: dict[Origin, list[AttentionCall]] = {}
    for index, attention in enumerate(seen.attentions):
        if origins is None or origins[index][0] == origins[index][1]:
            groups.setdefault(of[index], []).append(attention)
    return ["decoder" if is_causal(groups.get(one, ())) else "encoder" for one in of]


def _stack_of(seen: ProbeRun, attention: AttentionCall, n_target: int, decoder: str | None) -> Stack:
    if decoder is not None:
        return "decoder" if any(seen.calls[at].path == decoder for at in attention.parents) else "encoder"
    return "decoder" if attention.n_query == n_target else "encoder"


def name_block(layout: ModuleMap, seen: ProbeRun, block: int, members: list[tuple[LayerPath, AttentionCall]]) -> None:
    """Add the taps, norms and projections of one block."""
    call, site = seen.calls[block], members[0][0]
    at = f"{site.stack}.{site.layer}"
    layout.taps += _stream_taps(call, at)
    layout.last[site.stack] = call.path
    parts = block_layout(seen, block, [attention for _, attention in members])
    if (
        parts is not None
        and layout.without_attention
        and not all(
            _is_of(seen, layer, attention) for layer, (_, attention) in zip(parts.attention, members, strict=True)
        )
    ):  # a hybrid's block may add attention and a recurrent layer together
        parts = None
    after = ["resid_mid", "resid_cross"]
    for index, (one, attention) in enumerate(members):
        if parts is None:
            if (out := _projection(seen, attention, call)) is not None:
                layout.taps.append(Tap.at(out, "out", f"{one.path}.out"))
            continue
        layer = parts.attention[index]
        layout.taps.append(_output(layer, one.path))
        inside = heads_side_by_side(attention.z)
        _name_projection(layout, seen, one.path, layer, inside, attention.begin)
        if parts.feed_forward is not None and not parts.is_parallel:
            tapped = layer.adds if layer.mid is None else layer.mid
            side: Side = "adds" if layer.mid is None else "out"
            factor = layer.factor if layer.mid is None else 1.0
            layout.taps.append(Tap.at(tapped, side, f"{at}.{after[index]}", factor))
    layout.taps += list(_attention_inputs(layout, seen, call, members))
    if parts is None:
        return
    is_pre = parts.attention[0].mid is None
    layout.norms[site.path] = "parallel" if parts.is_parallel else "pre" if is_pre else "post"
    if layout.norms[site.path] == "post":  # the outputs of its norms are the stream itself
        for one, _ in members:
            layout.norm_before.pop(one.path, None)
    if parts.feed_forward is not None:
        ffn = LayerPath(site.stack, site.layer, "ffn")
        layout.feed_forward.append(ffn)
        adds = parts.feed_forward.adds
        layout.taps.append(_output(parts.feed_forward, ffn.path))
        after_attention = 0 if parts.is_parallel else parts.attention[-1].adds.end
        routers = (one for one in seen.inside(block) if after_attention < one.begin < adds.end and routing(one.outputs))
        layout.taps += [Tap.at(one, "experts", f"{ffn.path}.experts") for one in routers][:1]
        for module, side, number, name in neuron_taps(seen, block, adds, after_attention, members[-1][1]):
            layout.taps.append(Tap(module, side, number, f"{ffn.path}.{name}"))
            if name == "post":
                neurons = next(one for one in seen.calls if (one.path, one.number) == (module, number))
                _name_projection(layout, seen, ffn.path, parts.feed_forward, neurons.input, after_attention)


def _is_of(seen: ProbeRun, layer: Sublayer, attention: AttentionCall) -> bool:
    """Whether what a sublayer adds comes from the module that holds an attention, or from the projection of its heads."""
    inside = heads_side_by_side(attention.z)
    is_own = attention.parents[-1] in layer.adds.parents or seen.calls[attention.parents[-1]] is layer.adds
    return is_own or projection_place(seen, inside, attention.begin, layer.adds, layer.factor) is not None


def _stream_taps(block: ModuleCall, at: str) -> list[Tap]:
    return [Tap.at(block, "in", f"{at}.resid_pre"), Tap.at(block, "out", f"{at}.resid_post")]


def _output(layer: Sublayer, path: str) -> Tap:
    """The tap of the output that a sublayer adds to the stream."""
    return Tap.at(layer.adds, "out", f"{path}.out", layer.factor)


def _name_projection(layout: ModuleMap, seen: ProbeRun, path: str, layer: Sublayer, inside: Tensor, after: int) -> None:
    place = projection_place(seen, inside, after, layer.adds, layer.factor)
    if place is not None:
        layout.projections[path] = place
    if layer.mid is not None:
        layout.norm_after[path] = layer.mid.path


def _projection(seen: ProbeRun, attention: AttentionCall, block: ModuleCall) -> ModuleCall | None:
    """The module that maps z back to the stream: the first leaf with weights after the attention."""
    after = (call for call in seen.calls if attention.end < call.begin < block.end and call.is_leaf)
    return next((call for call in after if call.output.numel()), None) if attention.z.numel() else None


def _attention_inputs(
    layout: ModuleMap, seen: ProbeRun, block: ModuleCall, members: list[tuple[LayerPath, AttentionCall]]
) -> Iterator[Tap]:
    """Taps for the input of each query projection: the first matrix in the module that holds the attention."""
    for site, attention in members:
        for call in seen.inside(attention.parents[-1]):
            reads = call.input.is_floating_point() and call.input.numel() == block.input.numel()
            if call.begin < attention.begin and reads and call.is_matrix:
                layout.norm_before |= _norm_giving(seen, call, block, site)
                yield Tap.at(call, "in", f"{site.path}.in")
                break


def _norm_giving(seen: ProbeRun, reads: ModuleCall, block: ModuleCall, site: LayerPath) -> dict[str, str]:
    """The norm within a block whose output a module reads, by the site's path; empty if it reads the stream itself."""
    within = (call for call in seen.calls if block.begin < call.begin < reads.begin)
    return next(({site.path: call.path} for call in within if call.is_norm and feeds(call, reads)), {})


def name_ends(
    layout: ModuleMap, seen: ProbeRun, ids: tuple[Tensor, ...], n_target: int | None, blocks: set[int]
) -> None:
    """Add the taps before the first block and after the last."""
    is_encoder_decoder = n_target is not None
    for stack, call, name in _embeddings(seen, ids, blocks, n_target, alone=layout.attention[0].stack):
        layout.taps.append(Tap.at(call, "out", f"{stack}.{name}" if is_encoder_decoder else name))
    for number, call in enumerate(filter(_is_rotation, seen.calls), start=1):
        layout.taps.append(Tap.at(call, "angles", "pos_angles" if number == 1 else f"pos_angles_{number}"))
    stacks: list[Stack] = list(dict.fromkeys(site.stack for site in layout.attention))
    for stack in stacks:
        if stack not in layout.last:
            continue
        last = [call for call in seen.calls if call.path == layout.last[stack]][-1]
        for call in seen.calls:
            if call.begin < last.end or not call.is_leaf:
                continue
            if call.is_norm and feeds(last, call):
                name = f"{stack}.final_norm" if stack != stacks[-1] else "final_norm"
                layout.taps.append(Tap.at(call, "out", name))
                layout.final_norm[stack] = call.path
            break


def _embeddings(
    seen: ProbeRun, ids: tuple[Tensor, ...], blocks: set[int], n_target: int | None, *, alone: Stack
) -> Iterator[tuple[Stack, ModuleCall, str]]:
    """The embedding tables, indexed by token or by position."""
    used: set[str] = set()
    for call in seen.calls:
        is_biases = set(call.parents) & blocks
        if not isinstance(call.module, nn.Embedding) or call.output.dim() < 2 or is_biases:
            continue
        n = call.output.shape[-2]
        by_token = [index for index, read in enumerate(ids) if any(equal(value, read) for value in call.inputs)]
        stack: Stack = alone
        if n_target is not None:
            stack = "decoder" if n == n_target else "encoder"
        name = "embed" if by_token else "pos_embed" if _is_by_place(call, n) else "type_embed"
        if f"{stack}.{name}" not in used:
            used.add(f"{stack}.{name}")
            yield stack, call, name


def _is_by_place(call: ModuleCall, n: int) -> bool:
    """Whether the rows belong to consecutive positions, with any offset up to 3."""
    table = own_weight(call.module)
    assert table is not None
    rows = call.output.reshape(-1, n, call.output.shape[-1])[0]
    return any(len(table) >= at + n and torch.allclose(rows, table[at : at + n], atol=1e-6) for at in range(4))


def _is_rotation(call: ModuleCall) -> bool:
    """Whether the output is cosines and sines of one shape, as for rotary positions."""
    if len(call.outputs) != 2 or "rot" not in f"{call.path}{type(call.module).__name__}".lower():
        return False
    cosine, sine = call.outputs
    if cosine.shape != sine.shape or not cosine.is_floating_point():
        return False
    length = cosine.double() ** 2 + sine.double() ** 2
    tolerance = max(1e-3, 4 * torch.finfo(cosine.dtype).eps)
    return bool(torch.allclose(length, length.flatten()[0].expand_as(length), rtol=tolerance))


@dataclass(frozen=True, eq=False)
class OutputHead:
    """logits = cap · tanh(factor · parts(stream) / cap) + bias"""

    parts: tuple[nn.Module, ...]
    factor: float = 1.0
    bias: Tensor | None = None
    softcap: float | None = None

    @torch.no_grad()
    def __call__(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """The logits of a stream state, on its device."""
        device = stream.device
        stream = stream.to(device_of(*self.parts))
        with running(None):
            for part in self.parts:
                stream = part(stream)
        logits = stream * self.factor
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return (logits if self.bias is None else logits + self.bias).to(device)

    @property
    def norm(self) -> nn.Module | None:
        """The final norm if the head is a norm and one matrix, so that logits are sums of contributions; else None."""
        return self.parts[0] if len(self.parts) == 2 else None

    @property
    def output_matrix(self) -> Float[Tensor, "vocab d_model"] | None:
        """The matrix times the factor, if the head is one matrix after at most one norm; else None."""
        weight = own_weight(self.parts[-1]) if 1 <= len(self.parts) <= 2 else None
        if weight is None or weight.dim() != 2:
            return None
        return weight if self.factor == 1.0 else weight * self.factor


def find_output_head(seen: ProbeRun, last: str, logits: Tensor, softcap: float | None) -> OutputHead:
    """Find the head after the module `last`, also of logits at the last position only.

    Raises `InputError` if the logits are not a function of its output alone.
    """
    end = [call for call in seen.calls if call.path == last][-1]
    start = value = end.output
    parts: list[nn.Module] = []
    after, factor = end.end, 1.0
    while value.shape != logits.shape:
        is_last = value.dim() == 3 and not any(_input_scale(call, value) for call in seen.calls if call.begin > after)
        value = value[:, -1:] if is_last else value  # a model may compute the logits of the last position only
        step = next((call for call in seen.calls if call.begin > after and _input_scale(call, value) is not None), None)
        if step is None:
            raise InputError("This model's logits are not a function of its final stream state alone.")
        factor *= _input_scale(step, value) or 1.0
        if not torch.equal(step.output, value):  # dropout is the identity in eval mode
            parts.append(step.module)
        value, after = step.output, step.end
    for head in _candidates(tuple(parts), factor, value, logits, softcap):
        with suppress(Exception):  # a block that needs more than the stream may raise anything, and is not a head
            if close(head(start[:, -logits.shape[1] :] if start.dim() == 3 else start), logits):
                return head
    raise InputError("This model's logits are computed in an unsupported way.")


def _input_scale(call: ModuleCall, value: Tensor) -> float | None:
    """The constant c, usually 1, for which a module's input is c · value; None if it has another input."""
    if call.input.shape != value.shape:
        return None
    if torch.equal(call.input, value):
        return 1.0
    factor = float((value * call.input).sum() / (value * value).sum())
    return factor if factor > 0 and close(factor * value, call.input) else None


def _candidates(
    parts: tuple[nn.Module, ...], factor: float, value: Tensor, logits: Tensor, softcap: float | None
) -> Iterator[OutputHead]:
    """The possible forms of the last step before the logits, simplest first."""
    yield OutputHead(parts, factor, softcap=softcap)
    yield OutputHead(parts, factor * float((value * logits).sum() / (value * value).sum()))
    yield OutputHead(parts, factor, bias=(logits - value)[0, 0])
