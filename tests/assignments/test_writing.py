"""The folder of an assignment: its stubs, its notebook solved step by step, and the files of graders."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from tests.assignments import PLAIN
from xformer import assignments
from xformer.assignments.bugs import BUGS
from xformer.assignments.tasks import TASKS
from xformer.assignments.worker import loaded
from xformer.cli.main import main
from xformer.errors import InputError


def solved(source: str) -> str:
    """The plain solution of the functions and classes in a cell."""
    names = re.findall(r"^(?:def|class) (\w+)", source, flags=re.MULTILINE)
    found = [
        re.search(rf"^(?:def|class) {name}\b.*?(?=^(?:def|class) |\Z)", PLAIN, re.DOTALL | re.MULTILINE)
        for name in names
    ]
    return "\n\n".join(one[0] for one in found if one is not None)


def is_stub(cell: Any) -> bool:
    return cell.metadata.get("nbgrader", {}).get("solution", False)


def test_no_stub_is_solved_and_every_part_has_one(tmp_path: Path) -> None:
    assignments.write(tmp_path / "new")
    report = assignments.check(loaded(tmp_path / "new" / "solution.py"))
    assert {one.status for one in report.results} == {"not_written"}
    assert not report.ok
    text = (tmp_path / "new" / "solution.py").read_text()
    assert all(f" {part.name}(" in text for task in TASKS.values() for part in task.parts)
    assert all(re.search(rf"^# ── {at}\. {name} ──$", text, re.MULTILINE) for at, name in enumerate(TASKS, 1))


def test_a_folder_with_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "solution.py").write_text("my work")
    with pytest.raises(InputError, match="is not empty"):
        assignments.write(tmp_path)
    assert main(["assignment", "new", str(tmp_path)]) == 2
    assert (tmp_path / "solution.py").read_text() == "my work"


def test_the_notebook_is_solved_step_by_step(tmp_path: Path) -> None:
    """Each check fails before its function is written, and passes afterwards."""
    assignments.write(tmp_path / "new")
    notebook = nbformat.read(tmp_path / "new" / "assignment.ipynb", 4)
    nbformat.validate(notebook)
    notebook.cells = [
        cell for cell in notebook.cells if cell.cell_type == "code" and cell.id not in ("code-train", "code-show")
    ]
    for cell in notebook.cells:
        cell.source = cell.source.replace("display(report)\nassert report.ok", "print(report.n_passed)")
    told = []
    with (client := nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3")).setup_kernel():
        for at, cell in enumerate(notebook.cells):
            client.execute_cell(cell, at)
            if cell.id.startswith("code-check_"):
                told.append("".join(out.text for out in cell.outputs).strip())
                notebook.cells[at - 1].source = solved(notebook.cells[at - 1].source)
                client.execute_cell(notebook.cells[at - 1], at - 1)
                client.execute_cell(cell, at)
                told.append("".join(out.text for out in cell.outputs).strip())
    assert told == ["0", "1"] * len(TASKS)


def test_a_notebook_is_checked_as_a_file(tmp_path: Path) -> None:
    """Only its imports and definitions run: no check inside it, and no magic."""
    assignments.write(tmp_path / "new")
    notebook = nbformat.read(tmp_path / "new" / "assignment.ipynb", 4)
    for cell in notebook.cells:
        if is_stub(cell):
            cell.source = solved(cell.source).replace(".tril()", ".tril(1)")
    notebook.cells.insert(1, nbformat.v4.new_code_cell("%matplotlib inline\n!ls\nraise SystemExit"))
    nbformat.write(notebook, tmp_path / "mine.ipynb")
    report = assignments.check(tmp_path / "mine.ipynb")
    assert {one.task for one in report.results if one.status != "passed"} == {"causal_mask"}
    result = report.results[2]
    assert (result.cause, result.place.text) == ("mask_off_by_one", "return torch.ones(n, n, dtype=torch.bool).tril(1)")


def test_the_bugs_are_files_that_are_checked_by_their_names(tmp_path: Path) -> None:
    assert main(["assignment", "new", str(tmp_path / "bugs"), "--set", "bugs"]) == 0
    assert {path.stem for path in (tmp_path / "bugs").glob("*.py")} == set(BUGS)
    report = assignments.check(tmp_path / "bugs", task="bug_06", hint=3)
    assert [(one.task, one.cause) for one in report.results] == [("bug_06", "not_repaired")]
    assert "This is wrong: .triu(2)" in repr(report)


def test_the_tests_for_otter_run_among_the_names_of_the_notebook(tmp_path: Path) -> None:
    assignments.write(tmp_path / "new", grader="otter")
    with pytest.raises(InputError, match="not a notebook"):
        assignments.write(tmp_path / "bugs", assignment="bugs", grader="otter")
    for name, text in (("softmax", PLAIN), ("causal_mask", PLAIN.replace("tril()", "tril(1)"))):
        given: dict[str, Any] = {}
        exec((tmp_path / "new" / "tests" / f"{name}.py").read_text(), given)
        exec(text, names := {})
        code = given["test"]["suites"][0]["cases"][0]["code"]
        test = doctest.DocTestParser().get_doctest(code, names, name, None, None)
        failed = doctest.DocTestRunner(verbose=False).run(test, out=lambda line: None).failed
        assert failed == (name == "causal_mask")


def test_the_source_for_nbgrader_has_its_marks(tmp_path: Path) -> None:
    assignments.write(tmp_path / "new", grader="nbgrader")
    [source] = (tmp_path / "new" / "source").rglob("*.ipynb")
    cells = json.loads(source.read_text())["cells"]
    stubs = [cell for cell in cells if cell["metadata"].get("nbgrader", {}).get("solution")]
    assert len(stubs) == len(TASKS)
    assert all("### BEGIN SOLUTION" in "".join(cell["source"]) for cell in stubs)
    assert sum(cell["metadata"].get("nbgrader", {}).get("points", 0) for cell in cells) == len(TASKS)


def test_every_cause_is_documented() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = "".join((docs / name).read_text("utf-8") for name in ("assignments.md", "is-my-attention-right.md"))
    causes = {one.cause for task in TASKS.values() for part in task.parts for one in part.wrongs}
    assert not {cause for cause in causes if f"`{cause}`" not in text}
    own = (docs / "assignments.md").read_text("utf-8").split("## Causes")[1].split("\n\nWhere")[0]
    assert set(re.findall(r"^\| `(\w+)`", own, re.MULTILINE)) <= causes | {"cause"}
