"""The operations of a computation, written down while it runs: what each reads, makes and changes, and how long that counts.

Views are made once and stay; so does whatever comes out the same each time. What is left has to be done again in a repetition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ALIGNED = 64
"""Bytes: PyTorch's own storage begins at a multiple of it, and what a product comes to may depend on that."""
MAKE_ROOM = frozenset({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"})
READ_SHAPES = MAKE_ROOM | {"new_full", "new_zeros", "new_ones", "full_like", "zeros_like", "ones_like"}
"""Operations that do not look at the numbers in a tensor that they are given."""
UNREPEATABLE = {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class UnrepeatableError(Exception):
    """A computation draws by chance, or goes on as some number in it says; which operation it was."""


@dataclass(frozen=True, eq=False)
class Call:
    """One operation. It holds on to all that it met, so that no two tensors of a recording have one address."""

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Tensor]

    @property
    def name(self) -> str:
        return self.operation._overloadpacket.__name__

    @cached_property
    def given(self) -> list[Tensor]:
        return list(tensors_in((self.args, self.kwargs)))

    @cached_property
    def made(self) -> list[Tensor]:
        """Results in storage of their own: no views, and nothing that was changed in place."""
        before = {place_of(one) for one in self.given}
        return [one for one in self.results if place_of(one) not in before]

    @cached_property
    def changed(self) -> set[int]:
        """Where other numbers may be after it than before."""
        found = {place_of(one) for one in self.made}
        for number, argument in enumerate(self.operation._schema.arguments):
            if argument.is_write:
                given = self.args[number] if number < len(self.args) else self.kwargs.get(argument.name)
                found |= {place_of(one) for one in tensors_in(given)}
        return found


class Recording:
    """What `compute` does, once it has been done. Raises `UnrepeatableError` where that cannot be done again as it was, or
    makes more than `most` bytes, all of which are kept until it is done."""

    def __init__(self, compute: Callable[[], Sequence[Tensor]], most: float = math.inf) -> None:
        with _Recorder(most) as recorder:
            self.results = [result.detach() for result in compute()]
        made = {place_of(one) for call in recorder.calls for one in call.made}
        constant = made - _varying(recorder.calls)
        self.calls = [call for call in recorder.calls if call.name not in MAKE_ROOM and call.changed - constant]
        """What a repetition has to do."""
        self.passing = made - constant - {place_of(result) for result in self.results}
        """Storage that counts for a while in each repetition, and not between them."""

    def layout(self) -> tuple[dict[int, int], int]:
        """Where in one piece of memory passing storage lies while it counts, in bytes, and how large that piece is."""
        met = [{place_of(one): one for one in [*call.given, *call.made]} for call in self.calls]
        last = {place: number for number, places in enumerate(met) for place in places}
        offsets: dict[int, int] = {}
        taken: list[tuple[int, int, int]] = []  # (first byte, byte after, place), by first byte
        size = 0
        for number, places in enumerate(met):
            for place, one in places.items():
                if place in self.passing and place not in offsets:
                    n_bytes = -(-one.untyped_storage().nbytes() // ALIGNED) * ALIGNED
                    offsets[place] = first = _first_gap(taken, n_bytes)
                    taken = sorted([*taken, (first, first + n_bytes, place)])
                    size = max(size, first + n_bytes)
            taken = [one for one in taken if last[one[2]] > number]
        return offsets, size

    def free(self) -> None:
        """Give back what passing storage held: only its shapes are known from now on."""
        for call in self.calls:
            for one in call.made:
                if place_of(one) in self.passing:
                    one.untyped_storage().resize_(0)


class _Recorder(TorchDispatchMode):
    """Writes down each operation that is done while it is entered, those of a backward pass too."""

    def __init__(self, most: float) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.room = most

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: saying so to a compiler that nobody uses would import it, a second and 80 MB."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if UNREPEATABLE & set(func.tags) and not _draws_nothing(func, args, kwargs or {}):
            raise UnrepeatableError(str(func))
        result = func(*args, **(kwargs or {}))
        call = Call(func, args, kwargs or {}, list(tensors_in(result)))
        self.calls.append(call)
        self.room -= sum(one.untyped_storage().nbytes() for one in call.made)
        if self.room < 0:
            raise UnrepeatableError("too much to keep at once")
        return result


def _draws_nothing(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether it is one that could leave out some numbers by chance, and leaves out none: PyTorch's attention."""
    given = dict(zip((one.name for one in operation._schema.arguments), args, strict=False)) | dict(kwargs)
    names = {one.name for one in operation._schema.arguments}
    return "dropout_p" in names and given.get("dropout_p", 0.0) == 0.0


def place_of(tensor: Tensor) -> int:
    """Names the storage that a tensor is a view of, for as long as somebody holds on to it."""
    return tensor.untyped_storage()._cdata


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in what an operation is given, or gives."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one)


def _varying(calls: Sequence[Call]) -> set[int]:
    """The storages whose numbers may be others in a repetition: all that depends on what comes from outside."""
    known = {place_of(one) for call in calls for one in call.made}
    varying: set[int] = set()
    while True:
        found = {
            place
            for call in calls
            if call.name not in READ_SHAPES
            and any(place_of(one) in varying or place_of(one) not in known for one in call.given)
            for place in call.changed
        }
        if found <= varying:
            return varying
        varying |= found


def _first_gap(taken: Sequence[tuple[int, int, int]], size: int) -> int:
    end = 0
    for first, after, _ in taken:
        if first - end >= size:
            break
        end = after
    return end
