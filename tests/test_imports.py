"""Who may import whom: the library stands alone, its rooms look one way, and importing it does nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import xformer

PACKAGE = Path(xformer.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# What a room may import, besides itself.
FOUNDATION = {"errors", "positions", "task_limits", "config", "counting", "alphabet", "tape"}
MODEL = FOUNDATION | {"layers", "model"}
RECORDING = MODEL | {"edits", "trace", "files", "site", "counting"}
MAY_IMPORT = {
    "errors": set(),
    "alphabet": {"errors"},
    "positions": {"errors"},
    "task_limits": set(),
    "config": {"errors", "alphabet", "positions", "task_limits"},
    "counting": {"errors", "config"},
    "tape": {"errors", "config"},
    "files": set(),
    "words": set(),
    "places": set(),
    "room": {"errors"},
    "safe_header": {"errors"},
    "layers": FOUNDATION,
    "model": FOUNDATION | {"layers"},
    "edits": MODEL,
    "site": {"errors", "config"},
    "trace": MODEL | {"edits", "files", "site"},
    "subjects": RECORDING | {"site", "tasks"},
    "reading": RECORDING | {"site", "subjects", "tasks", "checkpoints"},
    "guarded_file": {"errors"},
    "memory": {"errors", "config"},
    "trace_file": RECORDING | {"files", "guarded_file", "safe_header"},
    "names": {"site"},
    "interventions": RECORDING | {"names"},
    "tasks": MODEL | {"files", "room", "site"},
    "decoding": RECORDING,
    "greedy": RECORDING | {"tasks"},
    "continuation": RECORDING | {"decoding"},
    "analysis": RECORDING | {"tasks", "subjects", "reading", "decoding", "greedy", "continuation", "memory", "words"},
    "diagnosis": RECORDING | {"tasks", "decoding", "greedy", "analysis", "words"},
    "presets": {"errors", "config", "counting"},
    "sources": set(),
    "checkpoints": MODEL | {"counting", "tasks", "files", "guarded_file", "places", "safe_header"},
    "training": RECORDING
    | {"tasks", "decoding", "greedy", "analysis", "presets", "checkpoints", "places", "words"}
    | {"files", "guarded_file", "safe_header", "memory", "room"},
    "bugs": RECORDING | {"tasks", "training", "presets"},
    "viz": {"errors", "config", "counting", "names", "site", "viz", "words"},
}


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(file: Path) -> Iterator[str]:
    """The modules that a file imports when it runs, at the top or inside a function; not those for type checkers alone."""
    tree = ast.parse(file.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def rooms_imported(file: Path) -> set[str]:
    """The parts of the library that a file imports."""
    parts = [name.split(".") for name in imports(file)]
    rooms = {part[1] for part in parts if part[0] == "xformer" and len(part) > 1}
    return {room for room in rooms if (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").exists()}


def test_there_is_something_to_check() -> None:
    assert len(FILES) > 30
    assert "layers" in rooms_imported(PACKAGE / "model.py")
    assert "task_limits" in rooms_imported(PACKAGE / "config.py")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_run_one_way(file: Path) -> None:
    room = room_of(file)
    if room in MAY_IMPORT:
        assert rooms_imported(file) - {room} <= MAY_IMPORT[room]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_the_library_knows_no_screen(file: Path) -> None:
    assert not {name.split(".")[0] for name in imports(file)} & {"streamlit", "pages", "app", "tests"}


def test_every_room_has_its_rule() -> None:
    """A new part of the library gets a line in `MAY_IMPORT`; the entrances may import everything."""
    entrances = {"__init__", "__main__", "cli", "integrations"}
    assert {room_of(file) for file in FILES} - entrances <= set(MAY_IMPORT)


def run_python(code: str) -> str:
    """What a fresh Python prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


EVERYTHING = """
import importlib, pkgutil
import xformer
for module in pkgutil.walk_packages(xformer.__path__, "xformer."):
    if not module.name.endswith("__main__") and ".integrations" not in module.name:  # those are other people's packages
        importlib.import_module(module.name)
"""


def test_importing_everything_loads_no_screen_and_touches_no_device_and_changes_nothing() -> None:
    code = f"""
import sys
import numpy as np
import torch

def forbidden(*_, **__):
    raise AssertionError("a device was asked for at import")

for name in ("is_available", "device_count", "init", "_lazy_init", "current_device", "get_device_name"):
    setattr(torch.cuda, name, forbidden)
before = (
    torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(),
    torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(),
)
{EVERYTHING}
after = (
    torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(),
    torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(),
)
assert before == after, "importing the library changed a global"
assert not torch.cuda.is_initialized()
print(*sorted(name for name in sys.modules if name.split(".")[0] in ("streamlit", "pages", "app", "tests")))
print(sum(name.startswith("xformer.") for name in sys.modules))
"""
    screens, count = run_python(code).splitlines()
    assert screens == ""
    assert int(count) > 30


def test_the_public_names_are_there() -> None:
    for name in xformer.__all__:
        assert hasattr(xformer, name)
        assert name in dir(xformer)
    with pytest.raises(AttributeError, match="module 'xformer' has no attribute 'nothing'"):
        _ = xformer.nothing  # pyright: ignore[reportAttributeAccessIssue]


def test_what_needs_no_torch_does_not_wait_for_it() -> None:
    """Three seconds on a slow machine: the names of the library, the settings, and all that can be asked of the book."""
    code = """
import sys
import xformer
import xformer.config, xformer.presets, xformer.training.book, xformer.training.glance, xformer.training.jobs
print(*sorted({"torch", "numpy", "pandas", "safetensors"} & set(sys.modules)))
print(xformer.ModelConfig is xformer.config.ModelConfig, "torch" in sys.modules)
print(xformer.load.__module__, "torch" in sys.modules)
"""
    assert run_python(code).splitlines() == ["", "True False", "xformer.checkpoints True"]
