"""Public names: type checkers see all of them, and none shadows a module."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

import xformer
from xformer import model_files, widgets

ROOT = Path(__file__).parents[1]
PACKAGES = (xformer, xformer.analysis, xformer.viz, widgets, model_files)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_type_checker_sees_every_public_name(package: ModuleType) -> None:
    """Type checkers treat `import name as name` as public; `make lint` finds names that do not exist."""
    tree = ast.parse(Path(str(package.__file__)).read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    written = {alias.name for node in imports for alias in node.names if alias.asname == alias.name}
    assert written == set(package.__all__)


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "xformer" / "py.typed").exists()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_exists_and_shadows_no_module(package: ModuleType) -> None:
    here = Path(str(package.__file__)).parent
    for name in package.__all__:
        value = getattr(package, name)
        is_module = (here / f"{name}.py").exists() or (here / name / "__init__.py").exists()
        assert isinstance(value, type(xformer)) == is_module, f"{name} is a module and a public name of {here.name}"
