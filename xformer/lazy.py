"""Public names of a package that are imported when they are first used: whoever needs one need not wait for the others.

__getattr__, __dir__, __all__ = attach(__name__, {"lens": "logit_lens", "norms": "stream"})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attach(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package (PEP 562); `homes` names the module of each public name.

    A name whose home has an empty name is itself a module. Names and modules must differ, else an import of the module
    would hide the name.
    """
    names = sorted(homes)

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}.")
        home = import_module(f"{package}.{homes[name] or name}")
        value = home if not homes[name] else getattr(home, name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *names}), names
