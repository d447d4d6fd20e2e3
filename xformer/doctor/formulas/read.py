"""Reads the formulas of a model from a recorded run.

    for one in formulas(token_model, token_model.base):
        one.part, one.formula, one.line                # "scale", "q·kᵀ / √16", "model.py:38"

A part is stated only if the recorded numbers agree with it. A part that is unusual has a `cause`, one of `CAUSES_OF_FORMULAS`.
Legal models may mean it, so it is a fault only against a specification.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from xformer.adapters.module_map import Layers
from xformer.doctor.formulas.attention import AttentionReader
from xformer.doctor.formulas.formula import Formula
from xformer.doctor.formulas.heads import over_heads, wrong_reshapes
from xformer.doctor.formulas.positions import positions
from xformer.doctor.token_model import ModelCall, TokenModel
from xformer.doctor.watch import path_of
from xformer.program.attention import PARTS, AttentionFinder
from xformer.program.axis_tracker import AxisTracker
from xformer.program.heads import PATTERN
from xformer.program.plan import layers_of
from xformer.program.record import Recorder, watched


@torch.no_grad()
def formulas(model: TokenModel, run: ModelCall) -> list[Formula]:
    """Return the formulas of all attentions of a run, in forward order; parts that cannot be read are left out."""
    call, inputs = model.last_call(run)
    recorder = Recorder(model.module, inputs, keep_of={*PARTS, "add"})
    with watched(model.module, recorder):
        outputs = call()
    program = recorder.finish(outputs)
    axes = AxisTracker(program)
    every = layers_of(program, AttentionFinder(program, axes, over=PATTERN))[0]
    read = AttentionReader(program, axes, is_causal=model.causal and run.target is None)
    mixed = [*wrong_reshapes(program, axes, read.consumers), *over_heads(axes, read.consumers)]
    modules = [heads[0].first.address.module for heads in every]
    layers = Layers(model.module, [*modules, *(one.address.module for one, _ in mixed)])
    found = [
        replace(part, layer=layers.of(heads[0].first.running), path=path_of(heads))
        for heads in every
        for part in read.parts(heads)
    ]
    found += dict.fromkeys(replace(part, layer=layers.of(operation.running)) for operation, part in mixed)
    first = every[0][0].first.index if every else 0
    added = (positions(one) for one in program.operations[:first] if one.name == "add")
    return [*[one for one in added if one is not None][:1], *found]
