"""The inputs of a module: by name, and at other sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from xformer.program.module_state import detect_randomness, on_device, preserve_state

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
        return {"0": inputs}
    return {str(index): value for index, value in enumerate(inputs)}


def text_without_batch(inputs: Inputs) -> str | None:
    """The name of the argument if the only tensor is the ids of one text, [pos]; else None."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    name, value = next(iter(tensors.items()), ("", torch.empty(())))
    return name if len(tensors) == 1 and value.dim() == 1 and not value.is_floating_point() else None


def accepted(module: nn.Module, inputs: Inputs) -> Iterator[Inputs]:
    """The ids of one text as they are, in a row and in a column, where the module takes that; all other inputs as they are."""
    name = text_without_batch(inputs)
    if name is None:
        yield inputs
        return
    for ids in (inputs[name], inputs[name][None], inputs[name][:, None]):
        if runs(module, call_module, inputs | {name: ids}):
            yield inputs | {name: ids}


def runs(module: nn.Module, call: Call, inputs: Inputs) -> bool:
    """Whether the module can be called with these inputs."""
    try:
        with preserve_state(module), torch.no_grad(), detect_randomness(module):
            call(module, inputs)
    except Exception:  # a module may raise anything for inputs it cannot read
        return False
    return True


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


SMALL = 5
"""The largest number of texts or positions of inputs at other sizes, so that they cost little."""


def larger(inputs: Inputs, *, single_only: bool = False) -> Iterator[list[Inputs]]:
    """For each of the first two axes, small inputs in which it is longer, most likely ones first.

    `single_only`: leave out axes that have several entries.

    A module may refuse some: other inputs have the same axis, or not, and a model may take no shorter ones.
    """
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor) and value.dim()}
    if not tensors:
        return
    several = (one for one in tensors.values() if one.dim() >= 2 and one.dtype != torch.bool)
    main = next(several, next(iter(tensors.values())))
    choices: list[list[tuple[str, ...]]] = []
    for axis, size in enumerate(main.shape[:2]):
        alike = tuple(name for name, one in tensors.items() if one.dim() > axis and one.shape[axis] == size)
        same = tuple(name for name in alike if tensors[name].shape[:2] == main.shape[:2])
        choices.append(list(dict.fromkeys((alike, same))))
    small = inputs
    for axis, size in enumerate(main.shape[:2]):
        small = _resized(small, choices[axis][0], axis, size, min(size, SMALL))
    for axis, size in enumerate(main.shape[:2]):
        if single_only and size > 1:
            continue
        less = min(size, SMALL)
        attempts = [_resized(small, names, axis, less, less + 1) for names in choices[axis]]
        if any(size > SMALL for size in main.shape[:2]):
            attempts += [_resized(inputs, names, axis, size, size + 1) for names in choices[axis]]
        yield attempts


def _resized(inputs: Inputs, names: Sequence[str], axis: int, size: int, n: int) -> Inputs:
    """Inputs of which some have `n` entries along an axis, and square masks along both. Inputs that are one object stay so."""
    if n == size:
        return inputs
    changed: dict[int, Tensor] = {}
    for name in names:
        value = inputs[name]
        if id(value) not in changed:
            is_square = value.shape == (size, size) and axis == 1 and len(names) > 1
            one = _with_entries(value, axis, n)
            changed[id(value)] = _with_entries(one, 0, n) if is_square else one
    return {name: changed[id(value)] if name in names else value for name, value in inputs.items()}


def _with_entries(value: Tensor, axis: int, n: int) -> Tensor:
    """The first `n` entries along an axis, the last one repeated if there are fewer."""
    at = torch.arange(n, device=value.device).clamp(max=value.shape[axis] - 1)
    return value.index_select(axis, at)
