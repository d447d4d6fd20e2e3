"""Reads the formulas of a model from a recorded run.

    for one in formulas(token_model, token_model.base):
        one.part, one.formula, one.line                # "scale", "q·kᵀ / √16", "model.py:38"

A part is stated only if the recorded numbers agree with it. A part that is unusual has a `cause`, one of `CAUSES_OF_FORMULAS`.
Legal models may mean it, so it is a fault only against a specification.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from xformer.adapters.module_map import Layers
from xformer.doctor.formulas.attention import AttentionReader
from xformer.doctor.formulas.block import BlockReader
from xformer.doctor.formulas.flow import Flow
from xformer.doctor.formulas.formula import Formula, part_of
from xformer.doctor.formulas.heads import EQUAL, OWN, over_heads, wrong_reshapes
from xformer.doctor.formulas.positions import added, from_batch, no_positions
from xformer.doctor.formulas.rotary import RotaryReader
from xformer.doctor.model_call import ModelCall
from xformer.doctor.token_model import TokenModel
from xformer.doctor.watch import path_of, read_layer, recorded
from xformer.program.attention import PARTS, FoundAttention
from xformer.program.axes import argument
from xformer.program.operations import KEPT_BYTES
from xformer.program.record import Program, Recorder


@torch.no_grad()
def formulas(model: TokenModel, run: ModelCall) -> list[Formula]:
    """Return the formulas of a run: positions, attentions, blocks, each in forward order; what cannot be read is left out."""
    weights = sum(one.numel() * one.element_size() for one in (*model.module.parameters(), *model.module.buffers()))
    recorder = partial(Recorder, keep_bytes=weights + KEPT_BYTES, keep_of={*PARTS, "add"}, with_callers=True)
    _, last = recorded(model, run, recorder)
    program, every, flow = last.program, last.attentions, Flow(last.program, last.axes)
    over = "" if not model.causal else "tokens" if run.target is None else "target"
    read = AttentionReader(flow, causal_over=over)
    mixed = [*wrong_reshapes(flow), *over_heads(flow)]
    modules = [heads[0].first.address.module for heads in every]
    layers = Layers(model.module, [*modules, *(one.address.module for one, _ in mixed)])
    block = BlockReader(flow, every, layers)
    rotary = RotaryReader(flow, block)
    found = [
        replace(part, layer=layers.of(heads[0].first.running), path=path_of(heads))
        for heads in every
        for part in (*read.parts(heads), rotary.part(heads[0]))
        if part is not None
    ]
    if (
        run.target is not None
    ):  # the second attention of a layer with two to its own stream is meant to read the encoder
        masks = [one for one in found if one.part == "mask" and one.cause != "encoder_is_causal"]
        first_of = {one.layer: one for one in reversed(masks)}
        found = [one for one in found if one not in masks or one.layer is None or one is first_of[one.layer]]
    wrong = dict.fromkeys(replace(part, layer=layers.of(operation.running)) for operation, part in mixed)
    mixed_layers = {one.layer for one in wrong}
    found = [one for one in found if one.cause != "heads_interleaved" or one.layer not in mixed_layers]  # it follows
    found += wrong
    found += _repeated(every, layers)
    first = every[0][0].first.index if every else 0
    parts = [*block.parts()]
    if run.target is not None:  # of an encoder that nothing reads, another check knows more
        parts = [one for one in parts if one.cause != "output_unused"]
    return [*_positions(model, run, flow, first, found), *found, *parts, *_dropout(program)]


def _repeated(every: Sequence[Sequence[FoundAttention]], layers: Layers) -> Iterator[Formula]:
    """The attentions that a layer computes again: one module in place of several heads."""
    told = set[int | None]()
    for heads, others in ((one, other) for n, one in enumerate(every) for other in every[n + 1 :]):
        first, second = heads[0].first, others[0].first
        layer = layers.of(first.running)
        is_again = first.address.module == second.address.module != "" and first.line == second.line
        if layer in told or not is_again or layer != layers.of(second.running):
            continue
        parts = [(seen.q, seen.k, seen.v) for seen in map(read_layer, (heads, others)) if seen is not None]
        pairs = [*zip(*parts, strict=True)] if len(parts) == 2 else []
        if pairs and all(a is not None and b is not None and bool(a.any()) and torch.equal(a, b) for a, b in pairs):
            told.add(layer)
            part = part_of("heads", EQUAL, "heads_equal", None, OWN)
            yield replace(part, layer=layer, path=first.address.module)


def _positions(
    model: TokenModel, run: ModelCall, flow: Flow, first: int, attentions: list[Formula]
) -> Iterator[Formula]:
    """How a model knows the positions of its tokens, but for what is in its attentions."""
    weights = dict(model.module.named_parameters())
    sums = [one for one in flow.program.operations[:first] if one.name == "add"]
    found = next(filter(None, (added(one, weights) for one in sums)), None)
    if found is None and len(run.tokens) > 1:
        found = next(filter(None, (from_batch(flow, one, len(run.tokens)) for one in sums)), None)
    if found is not None:
        yield found
    is_elsewhere = found is not None and run.target is None
    if first and not is_elsewhere and not any(one.part in ("rotary", "bias") for one in attentions):
        yield from no_positions(model, run, flow, sums)


def _dropout(program: Program) -> Iterator[Formula]:
    """Dropout that is applied although the model is in eval mode."""
    for one in program.operations:
        name, p = one.name, 0.0
        if "dropout" in name and argument(one, 2, "training", True) and len(one.inputs) == 1:
            p = float(argument(one, 1, "p", 0.5))
        elif name == "scaled_dot_product_attention":
            p = float(argument(one, 4, "dropout_p", 0.0))
        if p > 0:
            usual = "dropout with training=self.training"
            yield part_of("dropout", f"dropout of {p:g} in eval mode", "dropout_in_eval", one, usual)
            return
