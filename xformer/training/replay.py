"""A recorded computation that is repeated without what led up to it: modules, autograd, storage for each result.

Of a small model's step that is a quarter. Repeated, a step is its products and sums alone, one after the other, on tensors that
stay where they are. Results lie in one piece of memory, where a place is taken again as soon as nobody reads it any more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from xformer.training.recording import Call, Recording, place_of, tensors_in

COPIES = {torch.ops.aten.clone.default, torch.ops.aten._to_copy.default}
"""Operations that are a copy, into another layout or type."""


class Replay:
    """A recording, which it uses up, as operations to do again; others that are not repeated meanwhile may share `memory`."""

    def __init__(self, recording: Recording, memory: torch.UntypedStorage | None = None) -> None:
        self.results = recording.results
        """Where each repetition leaves them."""
        offsets, size = recording.layout()
        recording.free()
        self.memory = torch.UntypedStorage(size) if memory is None or memory.nbytes() < size else memory

        def placed(tensor: Tensor) -> Tensor:
            offset = offsets.get(place_of(tensor))
            if offset is None:
                return tensor.detach()
            first = offset // tensor.element_size() + tensor.storage_offset()
            return tensor.new_empty(0).set_(self.memory, first, tensor.size(), tensor.stride())

        with torch.no_grad():
            self.operations = [_operation(call, placed) for call in recording.calls]

    @torch.inference_mode()
    def __call__(self) -> None:
        """Do it all again, with the numbers that are now in the tensors from outside."""
        for operation in self.operations:
            operation()


def _operation(call: Call, placed: Callable[[Tensor], Tensor]) -> Callable[[], Any]:
    """What was called, so that it writes its results where they lie from now on."""
    args, kwargs = _mapped(call.args, placed), _mapped(call.kwargs, placed)
    if not call.made:
        return partial(call.operation._op, *args, **kwargs)
    into = [placed(one) for one in call.results]
    if call.operation in COPIES:
        return partial(into[0].copy_, args[0])
    if (found := _writing_operation(call.operation, len(into))) is not None:
        writing, names = found
        return partial(writing._op, *args, **kwargs, **dict(zip(names, into, strict=True)))

    def compute_and_copy() -> None:
        for mine, one in zip(into, tensors_in(call.operation(*args, **kwargs)), strict=True):
            mine.copy_(one)

    return compute_and_copy


def _writing_operation(operation: Any, n_results: int) -> tuple[Any, list[str]] | None:
    """The same operation that writes into what it is given, and what it calls that; None where there is none."""
    wanted = [(one.name, str(one.type)) for one in operation._schema.arguments]
    packet = operation._overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        outs = [one.name for one in other._schema.arguments if one.is_out]
        own = [(one.name, str(one.type)) for one in other._schema.arguments if not one.is_out]
        if own == wanted and len(outs) == n_results:
            return other, outs
    return None


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(one, change) for one in value)
    if isinstance(value, dict):
        return {name: _mapped(one, change) for name, one in value.items()}
    return value
