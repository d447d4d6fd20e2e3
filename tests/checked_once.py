"""Run-time checks of types and shapes: in each test every call of a function is checked, but one that is like an earlier one.

Calls are alike where the shapes and types of their tensors are, the plain values, and the very objects besides: what a check
looks at. A test that runs a model a hundred times would spend half of its time on checking the same again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any

import jaxtyping
from torch import Tensor

_seen: set[Hashable] = set()
_check = jaxtyping.jaxtyped


def forget() -> None:
    """From now on every call is checked again."""
    _seen.clear()


def install(*modules: str) -> None:
    """Check the modules that are imported from now on, and all below them."""
    jaxtyping.jaxtyped = _once
    jaxtyping.install_import_hook(modules, "beartype.beartype")


def _once(*, typechecker: Any) -> Callable[[Any], Any]:
    def decorate(thing: Any) -> Any:
        checked = _check(thing, typechecker=typechecker)
        if not inspect.isfunction(thing):
            return checked

        @wraps(checked)
        def call(*args: Any, **more: Any) -> Any:
            __tracebackhide__ = True
            if jaxtyping.config.jaxtyping_disable:
                return thing(*args, **more)
            kind = (thing, *map(_kind, args), *((name, _kind(value)) for name, value in more.items()))
            if kind in _seen:
                return thing(*args, **more)
            result = checked(*args, **more)
            _seen.add(kind)
            return result

        return call

    return decorate


def _kind(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return type(value), value.shape, value.dtype
    if isinstance(value, (tuple, list)):
        return type(value), *map(_kind, value)
    return type(value), value if isinstance(value, (int, float, str)) else id(value)
