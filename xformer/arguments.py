"""Check the arguments of public functions by their annotations, so that a wrong value is refused in one sentence.

`xformer.analysis` and `xformer.viz` apply `checked` to each of their functions. What depends on the run, such as the number of
heads, is checked by the function itself.
"""

from __future__ import annotations

import inspect
import math
import numbers
import operator
import re
from collections.abc import Sequence
from functools import cache, wraps
from typing import Any, TypeVar

from xformer.errors import InputError

T = TypeVar("T")
COUNTS = {
    "n", "k", "d", "samples", "groups", "most", "max_blocks", "n_heads", "n_columns", "n_keys", "n_tokens", "d_model", "height",
}  # fmt: skip
"""Arguments that count something, of which there is at least one."""
SIZES = {"limit", "unit"}
"""Numbers that must be above 0."""


@cache
def checked(function: Any) -> Any:
    """Return a function that checks its arguments first; classes and modules are returned as they are."""
    if not inspect.isfunction(function):
        return function
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            _check(name, value, str(signature.parameters[name].annotation))
        return function(*args, **kwargs)

    return call


def two(name: str, values: Sequence[T]) -> tuple[T, T]:
    """Return the two values of an argument. Raises `InputError` unless there are two."""
    if len(values) != 2:
        raise InputError(f"{name} must be two, got {len(values)}.")
    return values[0], values[1]


def _check(name: str, value: Any, kind: str) -> None:
    if (value is None and "None" in kind) or (isinstance(value, bool) and "bool" in kind):
        return
    if found := re.search(r"Sequence\[(int|float)\]", kind):
        items = _items(name, value)
        if not items and "bool" not in kind:
            raise InputError(f"{name} must not be empty.")
        for item in items:
            (_check_whole if found[1] == "int" else _check_finite)(name, item)
    elif "tuple[int, int]" in kind:
        for item in two(name, _items(name, value)):
            _check_whole(name, item, least=0)
    elif re.match(r"int\b", kind):
        _check_whole(name, value, least=1 if name in COUNTS else 0 if name == "seed" else None)
    elif re.match(r"float\b", kind):
        _check_finite(name, value, is_size=name in SIZES)
    elif kind == "Sequence[Reading]" and not len(_items(name, value)):
        raise InputError(f"{name} must have at least one run, got none.")


def _items(name: str, value: Any) -> list[Any]:
    try:
        return list(value)
    except TypeError:
        raise InputError(f"{name} must be a list, got {value!r:.100}.") from None


def _check_whole(name: str, value: Any, *, least: int | None = None) -> None:
    try:
        is_valid = not isinstance(value, bool) and (least is None or operator.index(value) >= least)
        operator.index(value)
    except TypeError:
        is_valid = False
    if not is_valid:
        bound = "" if least is None else f" of at least {least}"
        raise InputError(f"{name} must be a whole number{bound}, got {value!r:.100}.")


def _check_finite(name: str, value: Any, *, is_size: bool = False) -> None:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value!r:.100}.")
    if is_size and value <= 0:
        raise InputError(f"{name} must be above 0, got {value!r:.100}.")
