"""What a user meets: every public name is seen by type checkers, and no name hides a module."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import xformer
from xformer import model_files, widgets

ROOT = Path(__file__).parents[1]
PACKAGES = (xformer, xformer.analysis, xformer.viz, widgets, model_files)
PYRIGHT = Path(sys.executable).with_name("pyright")


@pytest.mark.skipif(not PYRIGHT.exists(), reason="pyright is not installed")
def test_a_type_checker_sees_every_public_name_and_no_other(tmp_path: Path) -> None:
    lines = ["import xformer", "import xformer.model_files, xformer.widgets"]
    lines += [f"reveal_type({package.__name__}.{name})" for package in PACKAGES for name in package.__all__]
    lines += ["print(xformer.viz.nothing, xformer.analysis.nothing, xformer.nothing)"]
    file = tmp_path / "use.py"
    file.write_text("\n".join(lines))
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"})
    )
    command = [str(PYRIGHT), "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [(one["range"]["start"]["line"], one["message"]) for one in found if one["severity"] == "error"]
    assert len(errors) == 3, errors
    assert all(line == len(lines) - 1 and '"nothing"' in message for line, message in errors), errors
    revealed = [one["message"] for one in found if one["severity"] == "information"]
    assert len(revealed) == len(lines) - 3
    assert not [message for message in revealed if message.endswith('is "Unknown"')]


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "xformer" / "py.typed").exists()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_there_and_hides_no_module(package: object) -> None:
    here = Path(package.__file__).parent  # type: ignore[attr-defined]
    for name in package.__all__:  # type: ignore[attr-defined]
        value = getattr(package, name)
        is_module = (here / f"{name}.py").exists() or (here / name / "__init__.py").exists()
        assert isinstance(value, type(xformer)) == is_module, f"{name} is a module and a public name of {here.name}"
