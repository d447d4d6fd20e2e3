"""Opening a foreign module: its parts are found, its attention is taken over, and the result is held against the stock model.

The rungs, from the best one down:

    1   our attention in the place of the model's own       reads and changes every step
    2   its own attention, watched at its softmax           changes the pattern and what comes of it; q, k and v only where
                                                            a function of PyTorch does the attention
    3   what it returns of its attention                    changes nothing

A rung counts only where the logits are those of the stock model, and where no later token can change an earlier prediction of a
causal model. What is not equal is not shown.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from xformer.errors import InputError
from xformer.subjects.foreign.active_run import ActiveRun
from xformer.subjects.foreign.attention_function import register
from xformer.subjects.foreign.find_layout import find_layout
from xformer.subjects.foreign.opened import Inputs, OpenedModel, Rung
from xformer.subjects.foreign.output_head import find_output_head
from xformer.subjects.foreign.probe import Probe, probe
from xformer.subjects.foreign.returned_attention import asking, returned_layout
from xformer.subjects.foreign.softmax_mode import SoftmaxMode
from xformer.subjects.foreign.taps import set_taps

RUNGS: tuple[Rung, ...] = (1, 2, 3)
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 0.1, torch.float16: 0.02}
"""How far logits may be from the stock model's, as a share of the largest: rounding in another order, layer upon layer."""


@dataclass(frozen=True)
class Verification:
    """What was checked when a model was opened."""

    rung: Rung
    difference: float
    """The largest difference between its logits and the stock model's."""

    def __str__(self) -> str:
        how = {
            1: "attention read step by step (rung 1)",
            2: "attention read at its softmax (rung 2)",
            3: "attention only looked at, as the model returns it: nothing can be changed (rung 3)",
        }[self.rung]
        same = (
            "equal to the stock model"
            if self.difference == 0
            else f"equal to the stock model within {self.difference:.0e}"
        )
        return f"{same}; {how}"


def open_module(
    module: nn.Module,
    call: Callable[[nn.Module, Inputs], Any],
    logits_of: Callable[[Any], Tensor],
    examples: tuple[Inputs, ...],
    ids_of: Callable[[Inputs], tuple[Tensor, ...]],
    *,
    is_causal: bool,
    n_target: Callable[[Inputs], int | None] = lambda inputs: None,
) -> tuple[OpenedModel, Verification]:
    """Open a module. `examples` are inputs that it can read, the first of which is watched.

    Raises `InputError` where it cannot be read by any rung, with the reason.
    """
    module.eval()
    with torch.no_grad():
        stock = [logits_of(call(module, inputs)) for inputs in examples]
    why: list[str] = []
    for rung in RUNGS:
        if rung == 1 and not _take_over(module):
            continue
        try:
            opened = _opened(module, call, logits_of, examples[0], ids_of, rung, is_causal=is_causal, n_target=n_target)
            return opened, _verify(opened, examples, stock)
        except InputError as error:
            why.append(str(error))
            _give_back(module)
    raise InputError(f"The attention of this model ({type(module).__name__}) cannot be read. {' '.join(why)}")


def _opened(
    module: nn.Module,
    call: Callable[[nn.Module, Inputs], Any],
    logits_of: Callable[[Any], Tensor],
    inputs: Inputs,
    ids_of: Callable[[Inputs], tuple[Tensor, ...]],
    rung: Rung,
    *,
    is_causal: bool,
    n_target: Callable[[Inputs], int | None],
) -> OpenedModel:
    if rung == 3:
        with torch.no_grad():
            output = call(module, asking(module, inputs))
        layout = returned_layout(output, "decoder" if is_causal else "encoder")
        return OpenedModel(module, layout, rung, call, logits_of)

    def watched(run: ActiveRun) -> Any:
        if rung == 1:
            return call(module, inputs)
        with SoftmaxMode(run, everywhere=True):
            return call(module, inputs)

    ids = ids_of(inputs)
    seen: Probe = probe(module, watched, n_batch=ids[0].shape[0] if ids else 1)
    if not seen.attentions:
        raise InputError(
            "It calls no attention that can be seen." if rung == 2 else "It does not call a registered attention."
        )
    layout = find_layout(seen, ids, n_target(inputs), is_causal=is_causal)
    softcap = getattr(getattr(module, "config", None), "final_logit_softcapping", None)
    last = layout.last.get(layout.attention[-1].stack)
    head = None
    with suppress(InputError):
        head = None if last is None else find_output_head(seen, last, logits_of(seen.output), softcap)
    set_taps(module, layout, by_softmax=rung == 2)
    return OpenedModel(module, layout, rung, call, logits_of, head)


def _verify(opened: OpenedModel, examples: tuple[Inputs, ...], stock: list[Tensor]) -> Verification:
    """Hold a recorded run against the stock model's logits. Raises `InputError` where they differ by more than rounding."""
    worst = 0.0
    for inputs, wanted in zip(examples, stock, strict=True):
        found = opened.run(inputs, n_batch=len(wanted))["logits"]
        difference = float((found.double() - wanted.double()).abs().max())
        if not difference <= TOLERANCE[wanted.dtype] * max(1.0, float(wanted.abs().max())):
            raise InputError(f"At rung {opened.rung} its logits are off by {difference:.2g}.")
        worst = max(worst, difference)
    return Verification(opened.rung, worst)


def _take_over(module: nn.Module) -> bool:
    """Have a model of Transformers call our attention, where it can; others are left alone."""
    can = getattr(module, "_can_set_attn_implementation", None)
    if can is None or not can():
        return False
    try:
        module.set_attn_implementation(register())  # type: ignore[operator]
    except (ValueError, ImportError):
        return False
    return True


def _give_back(module: nn.Module) -> None:
    """Take our attention and the hooks off again."""
    if getattr(module, "set_attn_implementation", None) is not None:
        module.set_attn_implementation("eager")  # type: ignore[operator]
    for part in module.modules():
        part._forward_hooks.clear()
        part._forward_pre_hooks.clear()
