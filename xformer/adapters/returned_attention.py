"""Attention that a model returns beside its logits (rung 3): it can be looked at, and nothing in the run can be changed.

A model of Transformers is asked for it by `output_attentions`; any other module is read where it returns it by itself. What is
no weights, rows of numbers from 0 up that sum to 1, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.adapters.layout import Layout
from xformer.errors import InputError
from xformer.site import Kind, Site, Stack

Pattern = Float[Tensor, "batch head query key"]
_NAMED: tuple[tuple[str, Stack, Kind], ...] = (
    ("encoder_attentions", "encoder", "attn"),
    ("decoder_attentions", "decoder", "self_attn"),
    ("cross_attentions", "decoder", "cross_attn"),
)
"""What an encoder-decoder of Transformers calls it."""


def asking(module: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """The same inputs, with the wish for attention where a model of Transformers is to be called."""
    is_transformers = hasattr(getattr(module, "config", None), "output_attentions")
    return inputs | {"output_attentions": True} if is_transformers else inputs


def returned_patterns(output: Any, stack: Stack | None = None) -> dict[Site, Pattern]:
    """The weights in what a model returned, in the order of its layers; `stack` is that of a model with one.

    Without it, a model of which no weight is on a later key is a decoder.
    """
    found: dict[Site, Pattern] = {}
    if getattr(output, "encoder_attentions", None) is not None:
        for name, side, kind in _NAMED:
            given = getattr(output, name, None) or ()
            found |= {Site(side, layer, kind): one for layer, one in enumerate(given) if _is_pattern(one)}
    else:
        named = getattr(output, "attentions", None)
        every = [one for one in (_tensors(output) if named is None else named) if _is_pattern(one)]
        if stack is None:
            own = [one for one in every if one.shape[-1] == one.shape[-2] > 1]
            stack = "decoder" if own and not any(bool(one.triu(1).any()) for one in own) else "encoder"
        found = {Site(stack, at, "attn"): one if one.dim() == 4 else one[:, None] for at, one in enumerate(every)}
    return dict(sorted(found.items(), key=lambda one: (one[0].stack != "encoder", one[0].layer, one[0].is_cross)))


def returned_layout(output: Any) -> Layout:
    """The sites of what a model returns; nothing else of it is known. Raises `InputError` where it returns no weights."""
    sites = tuple(returned_patterns(output))
    if not sites:
        raise InputError("It returns no weights of attention either.")
    return Layout(sites, tuple(("", index) for index in range(len(sites))))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


def _is_pattern(one: Any) -> bool:
    """Whether each row is a distribution, or empty; heads that a module has averaged are one."""
    if not isinstance(one, Tensor) or one.dim() not in (3, 4) or not one.is_floating_point() or not one.numel():
        return False
    total = one.detach().float().sum(dim=-1)
    whole = torch.isclose(total, torch.ones(()), atol=1e-3) | (total == 0)
    return bool((one >= 0).all() and whole.all() and total.any())
