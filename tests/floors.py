"""Tries the lowest versions that requirements.txt allows: an environment of their own, and a fast part of the tests in it.

    python -m tests.floors            builds .venv-floors where it is not there yet, and runs the tests

The versions are read from requirements.txt (what the app runs with) and pyproject.toml (the tests' own), nowhere repeated.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".venv-floors"
NEEDED = ("pytest", "beartype")
"""Of the packages for tests, those that the part below needs."""
PART = (
    "tests/layers/test_attention.py",  # jaxtyping
    "tests/test_config.py",  # pydantic
    "tests/test_checkpoints.py",  # safetensors
    "tests/test_main.py",  # rich
    "tests/analysis/test_embeddings.py",  # pandas, scikit-learn
    "tests/viz/test_positions.py",  # plotly
    "tests/viz/test_training.py",  # altair
    "tests/viz/test_export.py",  # vl-convert
    "tests/widgets/test_attention_view.py",  # anywidget
    "tests/training/test_metric_files.py",  # tensorboardX
    "tests/pages/test_navigation.py",  # streamlit
    "tests/pages/test_run_commands.py",
    "tests/serving",
)


def lowest(requirement: str) -> str:
    """A requirement as its lowest version: "numpy>=2.2.6,<3" becomes "numpy==2.2.6"; a pinned one stays as it is."""
    name, how, version = re.match(r"([\w.-]+)\s*(==|>=)\s*([\w.]+)", requirement).groups()  # type: ignore[union-attr]
    return f"{name}=={version}" if how == ">=" else f"{name}{how}{version}"


def floors() -> list[str]:
    """The lowest of all that the app runs with, and what the tests need beside it."""
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    ours = [line for line in lines if line.strip() and not line.startswith("#")]
    tests = [line for line in project["optional-dependencies"]["test"] if re.split(r"[<>=]", line)[0] in NEEDED]
    return [*map(lowest, ours), *tests]


def main() -> int:
    """Build, install, test; the exit code of the tests."""
    python, wanted = ENVIRONMENT / "bin" / "python", "\n".join(floors())
    done = ENVIRONMENT / "floors.txt"
    if not done.exists() or done.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        subprocess.run([*pip, *wanted.splitlines()], check=True)
        done.write_text(wanted)
    print(wanted.replace("\n", " "), flush=True)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *PART]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode


if __name__ == "__main__":
    sys.exit(main())
