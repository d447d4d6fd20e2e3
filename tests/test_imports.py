"""Import rules: packages import only lower layers, the library does not import the app, importing has no side effects."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import xformer
from xformer.errors import MissingLibraryError

PACKAGE = Path(xformer.__file__).parent
PAGES = PACKAGE.parent / "pages"
SHARED = {"components", "compute", "controls", "server", "state"}
"""The folders of `pages/` that screens use; the others are screens, and the classroom."""
ENTRANCES = {"__init__", "__main__"}
OPTIONAL = {"tensorboardX", "scipy", "plotly", "sklearn", "streamlit", "transformers", "gguf", "ray", "mcp"}
"""Libraries that are not needed to import xformer."""


def module_of(file: Path) -> str:
    """Return the module name of a file of the library or the app."""
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}
SCREENS = {module_of(file): file for file in sorted(PAGES.rglob("*.py"))}


@cache
def names_imported(file: Path) -> set[str]:
    """Return all imports of a file, including those inside functions and for type checkers."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES or name in SCREENS else str(node.module) for name in names}
    return found


def graph(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Return the other ones of some modules that each of them imports."""
    return {module: (names_imported(file) & set(modules)) - {module} for module, file in modules.items()}


def package_of(module: str) -> str:
    """Return the folder or module at the top level that a module belongs to: "layers" for "xformer.layers.feed_forward"."""
    return module.split(".")[1] if "." in module else "__init__"


def levels() -> dict[str, int]:
    """Return the level of each package, from the list in docs/ARCHITECTURE.md: lowest first, a line for each level."""
    text = (PACKAGE.parent / "docs" / "ARCHITECTURE.md").read_text()
    listed = text.split("\nxformer/ ")[1].split("```")[0].splitlines()[1:]
    lines = [re.split(r"\s{2,}", line.strip())[0].replace("/", "").split() for line in listed]
    return {package: level for level, packages in enumerate(lines) for package in packages}


def test_packages_import_only_lower_levels() -> None:
    level = levels()
    wrong = [
        f"{module} (level {level[package_of(module)]}) imports {other} (level {level[package_of(other)]})"
        for module, others in graph(MODULES).items()
        for other in others
        if package_of(module) not in {package_of(other), *ENTRANCES}
        and level[package_of(other)] >= level[package_of(module)]
    ]
    assert not wrong, "\n".join(wrong)


def test_every_package_is_in_the_list_of_layers() -> None:
    """Every new package must be listed in docs/ARCHITECTURE.md; the entry points may import everything."""
    packages = {package_of(module) for module in MODULES} - ENTRANCES
    assert packages <= set(levels())
    assert set(levels()) - packages <= {"widgets"}
    assert len(MODULES) > 30


@pytest.mark.parametrize("modules", [MODULES, SCREENS], ids=["xformer", "pages"])
def test_there_are_no_circular_imports(modules: dict[str, Path]) -> None:
    order = TopologicalSorter(graph(modules)).static_order()  # raises CycleError, which names the cycle
    assert set(order) == set(modules)


def test_screens_import_no_other_screen_and_shared_folders_import_none() -> None:
    """Only the start-up, which loads everything, may import the classroom."""
    wrong = [
        f"{module} imports {other}"
        for module, others in graph(SCREENS).items()
        for other in others
        if package_of(other) not in SHARED | {package_of(module), "__init__"} and module != "pages.server.startup"
    ]
    assert not wrong, "\n".join(wrong)
    assert {package_of(module) for module in SCREENS} > SHARED


def test_the_library_does_not_import_the_app() -> None:
    screens = {"streamlit", "pages", "app", "tests"}
    assert not [str(file) for file in MODULES.values() if {n.split(".")[0] for n in names_imported(file)} & screens]


def run_python(code: str) -> str:
    """Return the output of a new Python process."""
    command = [sys.executable, "-c", f"import gc; gc.disable()\n{code}"]  # collection takes a fifth of the import time
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_light_modules_do_not_import_torch() -> None:
    """Public names, configurations and the run store work without importing torch, which takes three seconds if slow."""
    code = """
import sys
import xformer
import xformer.config, xformer.presets, xformer.training.run_store, xformer.training.jobs
assert xformer.ModelConfig is xformer.config.ModelConfig
print(*sorted({"torch", "numpy", "pandas", "safetensors"} & set(sys.modules)))
"""
    assert run_python(code).splitlines() == [""]


def test_a_chart_without_altair_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    monkeypatch.delitem(sys.modules, "xformer.viz.residual", raising=False)
    with pytest.raises(MissingLibraryError, match=r"A chart needs altair: pip install 'xformer-studio\[viz\]'"):
        _ = xformer.viz.lens


def test_everything_imports_without_optional_libraries(tmp_path: Path) -> None:
    """Importing initialises no device and changes no global state."""
    code = f"""
import importlib, pkgutil, sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in {OPTIONAL} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
import numpy as np
import torch
import xformer

def forbidden(*_, **__):
    raise AssertionError("a device was requested at import")

functions = ("is_available", "device_count", "init", "_lazy_init", "current_device", "get_device_name")
originals = {{name: getattr(torch.cuda, name) for name in functions}}
for name in originals:
    setattr(torch.cuda, name, forbidden)

def state():
    numbers = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    return numbers, torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()

before = state()
for module in pkgutil.walk_packages(xformer.__path__, "xformer."):
    if not module.name.endswith("__main__") and ".integrations" not in module.name:  # these need third-party packages
        importlib.import_module(module.name)
assert before == state(), "importing the library changed a global"
print(*sorted(name for name in sys.modules if name.split(".")[0] in ("pages", "app", "tests")))
print(sum(name.startswith("xformer.") for name in sys.modules) > 30)
for name, function in originals.items():
    setattr(torch.cuda, name, function)

from xformer.training.tables import event_files

reading = xformer.read("checkpoints/reverse", "3 7 12 9")
xformer.save_html(reading, {str(tmp_path / "view.html")!r})
print(tuple(reading.logits.shape), len(xformer.analysis.head_scores(reading)))
for fails in (
    lambda: xformer.viz.projection(reading, axes=3),
    lambda: event_files({{"a": [{{"step": 1}}]}}, {{"a": 0.0}}),
    xformer.tasks.images.digit_images,
    xformer.adapters.load.import_transformers,
):
    try:
        fails()
    except xformer.errors.MissingLibraryError as error:
        print(error)
sys.stderr = sys.stdout
assert xformer.cli.main.main(["app"]) == 1
"""
    assert run_python(code).splitlines() == [
        "",
        "True",
        "(1, 4, 20) 16",
        "The vocabulary in space needs plotly: pip install plotly",
        "A TensorBoard file needs tensorboardX: pip install 'xformer-studio[tensorboard]'",
        "The images of the digits come with scikit-learn: pip install scikit-learn",
        "A Hugging Face model needs transformers: pip install 'xformer-studio[models]'",
        "xformer: The app needs streamlit and plotly: pip install 'xformer-studio[app]'",
    ]
    assert "createElement" in (tmp_path / "view.html").read_text()
