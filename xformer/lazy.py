"""Lazy imports of a package's public names, so that `import xformer` does not import torch.

    if TYPE_CHECKING:
        from xformer.viz.residual import lens as lens
    else:
        __getattr__, __dir__, __all__ = attach(__name__, __file__)

Editors and type checkers read the imports; at run time `attach` parses the same lines. This is PEP 562 as scientific-python's
lazy_loader uses it (https://scientific-python.org/specs/spec-0001), with the imports in the file itself instead of a stub.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, built from its imports under `if TYPE_CHECKING`.

    Args:
        package: The package's `__name__`.
        file: Its `__file__`. No public name may equal the name of a submodule: importing the submodule would shadow it.
    """
    homes = {
        alias.asname or alias.name: (node.module or "", alias.name) for node in _imports(file) for alias in node.names
    }
    names = sorted(homes)

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}.")
        module, there = homes[name]
        return import_module(f"{package}.{there}") if module == package else getattr(import_module(module), there)

    return get, lambda: sorted({*vars(import_module(package)), *names}), names


def _imports(file: str) -> list[ast.ImportFrom]:
    body = ast.parse(Path(file).read_text(encoding="utf-8")).body
    checked = [node for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return [node for block in checked for node in block.body if isinstance(node, ast.ImportFrom)]
