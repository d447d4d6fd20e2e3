"""Tests the lowest versions that pyproject.toml allows, in an environment of their own.

python -m tests.floors            builds .venv-floors where it is not there yet, and runs a fast part of the tests
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".venv-floors"
NEEDED = ("pytest", "pytest-xdist", "beartype", "scipy")
"""The packages of the extra "test" that the tests below import."""
PART = (
    "tests/layers/test_attention.py",  # jaxtyping
    "tests/test_config.py",  # pydantic
    "tests/test_checkpoints.py",  # safetensors
    "tests/test_main.py",  # rich
    "tests/analysis/test_embeddings.py",  # pandas, scikit-learn
    "tests/viz/test_positions.py",  # plotly
    "tests/viz/test_training_curves.py",  # altair
    "tests/viz/test_export.py",  # vl-convert
    "tests/widgets/test_attention_view.py",  # anywidget
    "tests/training/test_tables.py",  # tensorboardX
    "tests/pages/test_navigation.py",  # streamlit
    "tests/pages/compute/test_run_commands.py",
    "tests/pages/server",
    "tests/adapters",  # transformers
)

EXTRAS = ("viz", "tensorboard", "app", "models")


def lowest(requirement: str) -> str:
    """A range as its lowest version: "numpy>=2.2.6,<3" becomes "numpy==2.2.6"."""
    name, version = re.match(r"([\w.-]+)\s*>=\s*([\w.]+)", requirement).groups()  # type: ignore[union-attr]
    return f"{name}=={version}"


def ranges() -> list[str]:
    """What the library, charts, the app and external models need, as pyproject.toml says it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]
    return [line for line in lines if not line.startswith("xformer-studio[")]


def floors() -> list[str]:
    """The lowest version of each, and what the tests need beside it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    tests = [line for line in extras["test"] if re.split(r"[<>=]", line)[0] in NEEDED]
    return [*map(lowest, ranges()), *tests]


def main() -> int:
    """Build, install, test; the exit code of the tests."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    python, wanted = ENVIRONMENT / "bin" / "python", "\n".join(floors())
    done = ENVIRONMENT / "floors.txt"
    if not done.exists() or done.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        subprocess.run([*pip, *wanted.splitlines()], check=True)
        done.write_text(wanted)
    print(wanted.replace("\n", " "), flush=True)
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider", *PART]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode


if __name__ == "__main__":
    sys.exit(main())
