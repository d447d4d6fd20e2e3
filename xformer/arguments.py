"""Check the arguments of public functions by their annotations, so that a wrong value is refused in one sentence.

`xformer.analysis` and `xformer.viz` apply `checked` to each of their functions. What depends on the run, such as the number of
heads, is checked by the function itself.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Sequence
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from xformer.errors import InputError
from xformer.formatting import check_index

T = TypeVar("T")
Count = Annotated[int, "at least 1"]
"""A number of things, such as tokens, samples or pixels."""
Seed = Annotated[int, "at least 0"]
"""The seed of random numbers."""
Size = Annotated[float, "above 0"]
"""A size or a limit, such as the end of a colour scale."""
LEAST = {int: None, Seed: 0, Count: 1}
"""The least value of each kind of whole number."""


@cache
def checked(function: Any) -> Any:
    """Return a function that checks its arguments first; classes and modules are returned as they are."""
    if not inspect.isfunction(function):
        return function
    signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            kind = hints[name]
            _check(name, value, get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,))
        return function(*args, **kwargs)

    return call


def two(name: str, values: Sequence[T]) -> tuple[T, T]:
    """Return the two values of an argument. Raises `InputError` unless there are two."""
    if len(values) != 2:
        raise InputError(f"{name} must be two, got {len(values)}.")
    return values[0], values[1]


def _check(name: str, value: Any, kinds: Sequence[Any]) -> None:
    """Check an argument that may be of several kinds, as in `bool | Sequence[int] | None`."""
    if (value is None and NoneType in kinds) or (isinstance(value, bool) and bool in kinds):
        return
    for kind in kinds:
        inner = get_args(kind)
        if kind in LEAST:
            check_index(name, value, least=LEAST[kind])
        elif kind in (float, Size):
            _check_finite(name, value, is_size=kind is not float)
        elif inner == (int, int):
            for item in two(name, _items(name, value)):
                check_index(name, item)
        elif inner in ((int,), (float,)):
            items = _items(name, value)
            if not items and bool not in kinds:
                raise InputError(f"{name} must not be empty.")
            for item in items:
                _check(name, item, inner)
        elif [getattr(one, "__name__", "") for one in inner] == ["Reading"] and not len(_items(name, value)):
            raise InputError(f"{name} must have at least one run, got none.")


def _items(name: str, value: Any) -> list[Any]:
    try:
        return list(value)
    except TypeError:
        raise InputError(f"{name} must be a list, got {value!r:.100}.") from None


def _check_finite(name: str, value: Any, *, is_size: bool = False) -> None:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value!r:.100}.")
    if is_size and value <= 0:
        raise InputError(f"{name} must be above 0, got {value!r:.100}.")
