"""The inputs of a module: by name, and at other sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from xformer.program.module_state import on_device

Inputs = dict[str, Any]
"""Arguments by name, or by position as a string."""
Call = Callable[[nn.Module, Inputs], Any]
"""Calls a module with its inputs."""
ModuleInputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
"""One tensor, several positional arguments, or named arguments."""


def named_inputs(inputs: ModuleInputs | Sequence[Any]) -> Inputs:
    """Arguments by name, or by position as a string. Lists of integers are token ids, of one text or of several in rows."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    if not isinstance(inputs, Tensor) and _is_ids(inputs):
        inputs = torch.tensor(inputs)
    if isinstance(inputs, Tensor):
        is_one = inputs.dim() == 1 and not inputs.is_floating_point()
        return {"0": inputs[None] if is_one else inputs}
    return {str(index): value for index, value in enumerate(inputs)}


def _is_ids(inputs: Any) -> bool:
    """Whether a value is a list of integers, or several of equal length."""
    if not isinstance(inputs, list | tuple) or not inputs:
        return False
    if all(isinstance(one, list) for one in inputs):
        return len({len(one) for one in inputs}) == 1 and all(_is_ids(one) for one in inputs)
    return all(isinstance(one, int) for one in inputs)


def call_module(module: nn.Module, inputs: Inputs) -> Any:
    """Call a module with copies of its inputs, on its device."""
    return call_plainly(module, on_device(inputs, module))


def call_plainly(module: nn.Module, inputs: Inputs) -> Any:
    """Call a module with these very inputs."""
    args = [value for name, value in inputs.items() if name.isdigit()]
    return module(*args, **{name: value for name, value in inputs.items() if not name.isdigit()})


def larger(inputs: Inputs) -> Iterator[list[Inputs]]:
    """For each of the first two axes, inputs in which it is longer: with the same axis of all others, or of some."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor) and value.dim()}
    if not tensors:
        return
    main = next(
        (one for one in tensors.values() if one.dim() >= 2 and one.dtype != torch.bool), next(iter(tensors.values()))
    )
    sizes = main.shape[:2]
    for axis, size in enumerate(sizes):
        alike = [name for name, one in tensors.items() if one.dim() > axis and one.shape[axis] == size]
        same = [name for name in alike if tensors[name].shape[:2] == sizes]
        choices = dict.fromkeys((tuple(alike), tuple(same)))
        yield [_lengthened(inputs, names, axis, size) for names in choices]


def _lengthened(inputs: Inputs, names: Sequence[str], axis: int, size: int) -> Inputs:
    """Inputs of which some are longer along an axis, and square masks along both. Inputs that are one object stay so."""
    longer: dict[int, Tensor] = {}
    for name in names:
        value = inputs[name]
        if id(value) not in longer:
            is_square = value.shape == (size, size) and axis == 1 and len(names) > 1
            one = _longer(value, axis)
            longer[id(value)] = _longer(one, 0) if is_square else one
    return {name: longer[id(value)] if name in names else value for name, value in inputs.items()}


def _longer(value: Tensor, axis: int) -> Tensor:
    """One more entry along an axis, a copy of the last."""
    return torch.cat([value, value.narrow(axis, value.shape[axis] - 1, 1)], dim=axis)
