"""The exercises of CONTRIBUTING.md work as written: they are performed in a copy of the repository, and their tests pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
EXERCISES = {part.partition("\n")[0]: part for part in TEXT.split("\n### ")[1:]}
BLOCK = re.compile(r"^(?:(New file|Change) `([^`]+)`:\n\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git tracks or would add, with their current content."""
    if not (ROOT / ".git").exists():
        pytest.skip("no repository")
    copy = tmp_path_factory.mktemp("copy")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():  # git also lists deleted files
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    for compiled in (ROOT / "xformer").rglob("__pycache__"):  # avoids compiling everything again
        shutil.copytree(compiled, copy / compiled.relative_to(ROOT))
    return copy


def changed(text: str, diff: str) -> str:
    """Apply a diff to a text. Fails unless the old lines occur exactly once."""
    lines = diff.splitlines(keepends=True)
    before, after = ("".join(line[1:] for line in lines if line[0] != sign) for sign in "+-")
    assert text.count(before) == 1, f"the file has these lines {text.count(before)} times:\n{before}"
    return text.replace(before, after)


def apply(title: str, repository: Path) -> tuple[list[str], list[str]]:
    """Make the changes of an exercise; return its commands and its Python files."""
    commands, files = [], []
    for kind, name, language, body in BLOCK.findall(EXERCISES[title]):
        if not kind:
            commands += body.splitlines()
            continue
        path = repository / name
        if kind == "New file":
            assert not path.exists()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, "utf-8")
            files += [name] * (language == "python")
        else:
            assert language == "diff"
            path.write_text(changed(path.read_text("utf-8"), body), "utf-8")
    return commands, files


def test_exercises_work_as_written(repository: Path) -> None:
    """Perform the exercises in turn in one copy, and run their tests in one process."""
    assert [title.partition(":")[0] for title in EXERCISES] == ["A task", "An attention variant", "A screen", "A norm"]
    pytest_command, tests, files = ".venv/bin/python -m pytest -n 0 -q ", list[str](), list[str]()
    for title in EXERCISES:
        commands, made = apply(title, repository)
        assert commands, title
        assert all(command.startswith(pytest_command) for command in commands)
        tests += [command.removeprefix(pytest_command) for command in commands]
        files += made
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "XFORMER"))}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shown = run(sys.executable, "-m", "pytest", "-n", "0", "-v", *tests)
    assert all(f"{test}::" in shown for test in tests)
    ruff = str(Path(sys.executable).with_name("ruff"))
    run(ruff, "check", *files)
    run(ruff, "format", "--check", *files)
