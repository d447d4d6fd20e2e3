"""nbgrader and Otter-Grader grade a solved and an empty notebook; `make packages` installs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from tests.assignments.test_writing import is_stub, solved
from xformer import assignments
from xformer.assignments.tasks import TASKS

ROOT = Path(__file__).parents[2]


def run(folder: Path, *command: str) -> None:
    """Run a module in a folder."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # nbgrader calls alembic
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path}
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def solve(source: Path, target: Path) -> None:
    """Write a solved copy of a notebook, without the training at its end."""
    notebook = nbformat.read(source, 4)
    for cell in notebook.cells:
        if is_stub(cell):
            cell.source = solved(cell.source)
        elif cell.cell_type == "code" and "train" in cell.source:
            cell.source = ""
    target.parent.mkdir(parents=True)
    nbformat.write(notebook, target)


@pytest.mark.skipif(find_spec("nbgrader") is None, reason="NOT RUN: nbgrader is not installed; make packages runs it")
def test_nbgrader_gives_a_point_for_each_solved_task(tmp_path: Path) -> None:
    course = tmp_path / "course"
    assignments.write(course, grader="nbgrader")
    run(course, "nbgrader", "generate_assignment", "gpt")
    released = course / "release" / "gpt" / "assignment.ipynb"
    assert "NotImplementedError" in released.read_text()
    solve(released, course / "submitted" / "ada" / "gpt" / "assignment.ipynb")
    (course / "submitted" / "bob" / "gpt").mkdir(parents=True)
    shutil.copy(released, course / "submitted" / "bob" / "gpt")
    run(course, "nbgrader", "autograde", "gpt")
    run(course, "nbgrader", "export")
    grades = pd.read_csv(course / "grades.csv").set_index("student_id")["score"]
    assert dict(grades) == {"ada": len(TASKS), "bob": 0}


@pytest.mark.skipif(find_spec("otter") is None, reason="NOT RUN: otter-grader is not installed; make packages runs it")
def test_otter_gives_a_point_for_each_solved_task(tmp_path: Path) -> None:
    assignments.write(tmp_path / "new", grader="otter")
    solve(tmp_path / "new" / "assignment.ipynb", tmp_path / "run" / "submission.ipynb")
    run(tmp_path / "run", "otter", "generate", "-t", str(tmp_path / "new" / "tests"), "-o", "autograder.zip")
    run(tmp_path / "run", "otter", "run", "-a", "autograder.zip", "-o", ".", "submission.ipynb")
    scores = {
        one["name"]: one.get("score") for one in json.loads((tmp_path / "run" / "results.json").read_text())["tests"]
    }
    assert {name: scores[name] for name in TASKS} == dict.fromkeys(TASKS, 1.0)
