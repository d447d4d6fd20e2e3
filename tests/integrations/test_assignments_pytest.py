"""The pytest plugin: a test for each task, without importing the student's file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.assignments import PLAIN

ROOT = Path(__file__).parents[2]


def test_each_task_is_a_test(tmp_path: Path) -> None:
    solution = tmp_path / "solution.py"
    solution.write_text(
        PLAIN.replace("tril()", "tril(1)") + "\n\nimport os\nif '_pytest.main' in os.sys.modules: os._exit(9)\n"
    )
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    options = [
        "-p",
        "xformer.integrations.assignments_pytest",
        "-p",
        "no:cacheprovider",
        "-v",
        "--rootdir",
        str(tmp_path),
    ]
    command = [sys.executable, "-m", "pytest", *options, str(solution), str(tmp_path / "test_other.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert "1 failed, 10 passed" in done.stdout, done.stdout
    assert "solution.py::causal_mask" in done.stdout
    assert "mask_off_by_one" in done.stdout
    assert "Traceback" not in done.stdout
