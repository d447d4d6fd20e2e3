"""Write the folder of an assignment: the stubs as a file and as a notebook, or the models with bugs, and a README."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from xformer.assignments.bugs import PLANTED
from xformer.assignments.tasks import TASKS
from xformer.errors import InputError

STUBS = Path(__file__).with_name("solution.py")
_BEGIN, _END = "### BEGIN SOLUTION", "### END SOLUTION"
"""What nbgrader replaces by its own stub."""
_NBGRADER = (
    'c = get_config()  # noqa: F821\nc.CourseDirectory.course_id = "xformer"\nc.ExecutePreprocessor.timeout = 120\n'
)
_README = """# {title}

{what}

```
python -m xformer assignment check .              # all tasks: the first wrong cell, the mistake, the line
python -m xformer assignment check . --hint 2     # 1: where to look, 2: what is wrong, 3: how it should read
{more}```

Your code runs on this machine, in a process with limits of time and memory. Nothing is sent anywhere.
"""


def write(
    folder: str | Path, *, assignment: Literal["gpt", "bugs"] = "gpt", grader: Literal["", "nbgrader", "otter"] = ""
) -> tuple[Path, ...]:
    """Write a new folder for a student.

    Args:
        folder: The folder; it must not exist, or be empty.
        assignment: "gpt" for the ten tasks that build one GPT, "bugs" for the models to repair.
        grader: "nbgrader" for a course with the notebook as source version, "otter" for tests beside the notebook.

    Returns:
        The written files.

    Raises:
        InputError: There are files in the folder.

    Example:
        >>> import tempfile
        >>> from xformer import assignments
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [file.name for file in assignments.write(folder)]
        ['solution.py', 'assignment.ipynb', 'README.md']
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{str(folder)!r:.200} is not empty; nothing was written. Give a new folder.")
    if assignment == "gpt":
        title, what = (
            "Write a GPT",
            f"`solution.py` has {len(TASKS)} tasks; `assignment.ipynb` has the same in a notebook.",
        )
        more = "python -m xformer assignment check . --train      # train your GPT, and write its attention as a page\n"
        files = {
            "solution.py": STUBS.read_text(encoding="utf-8"),
            "assignment.ipynb": json.dumps(_notebook(), indent=1),
        }
    else:
        title, more = "Find the bug", ""
        what = f"{len(PLANTED)} small models with one fault each. Repair each, and write the name of the fault in its `CAUSE`."
        what += " The names are in the column *cause* of docs/is-my-attention-right.md of xformer."
        files = {f"{name}.py": bug.text for name, bug in PLANTED.items()}
    files["README.md"] = _README.format(title=title, what=what, more=more)
    if grader and assignment == "bugs":
        raise InputError("The bugs are files, not a notebook; grade them with assignment check.")
    if grader == "otter":
        files |= {f"tests/{name}.py": _otter_test(name) for name in TASKS}
    elif grader == "nbgrader":
        notebook = json.dumps(_notebook(with_marks=True), indent=1)
        files |= {"source/gpt/assignment.ipynb": notebook, "nbgrader_config.py": _NBGRADER}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return tuple(folder / name for name in files)


def _notebook(*, with_marks: bool = False) -> dict[str, Any]:
    """The stubs as a notebook, each followed by its check; with the metadata of nbgrader, and on request its marks."""
    head, *sections = re.split(r"^# ── (?:\d+\. )?(.+?) ──\n", STUBS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    imports = head.rpartition('"""')[2].strip()
    cells = [
        _text("# Write a GPT\n\nWrite each function and class, then run the check below it."),
        _code(f"{imports}\n\nimport xformer\nfrom xformer.assignments import check", "imports"),
    ]
    for title, source in zip(sections[::2], sections[1::2], strict=True):
        task = TASKS.get(title)
        cells.append(_text(f"## {title[0].upper()}{title[1:]}" if task is None else f"## {task.title}"))
        if with_marks:
            source = re.sub(
                r"^( *)(raise NotImplementedError)", rf"\1{_BEGIN}\n\1\2\n\1{_END}", source, flags=re.MULTILINE
            )
        cells.append(_code(source.strip(), title.partition(":")[0].replace(" ", "_"), is_solution=task is not None))
        if task is not None:
            check = f'report = check(globals(), task="{title}", hint=1)\ndisplay(report)\nassert report.ok'
            cells.append(_code(check, f"check_{title}", points=1))
    train = "from xformer.assignments.training import train\n\ntrained = train(GPT, next_token_loss, seconds=30)\n"
    train += 'print(f"It repeats {trained.accuracy:.0%} of new symbols after {trained.n_steps} steps.")\n'
    train += "xformer.attention_view(xformer.read(trained.model, trained.tokens))"
    show = "xformer.show(trained.model, trained.tokens)  # opens your model in the app"
    cells += [_text("## Train it"), _code(train, "train"), _code(f"# {show}", "show")]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _text(text: str) -> dict[str, Any]:
    name = re.sub(r"\W+", "-", text.split("\n")[0].lower()).strip("-")
    return {
        "cell_type": "markdown",
        "id": f"text-{name}"[:60],
        "metadata": {},
        "source": text.splitlines(keepends=True),
    }


def _code(text: str, name: str, *, is_solution: bool = False, points: int = 0) -> dict[str, Any]:
    """A code cell; a solution or a check with points is one for nbgrader, too (nbgrader's metadata, schema version 3)."""
    kinds: dict[str, Any] = {"grade": bool(points), "solution": is_solution, "locked": bool(points), "task": False}
    kinds |= {"schema_version": 3, "grade_id": name} | ({"points": points} if points else {})
    metadata = {"nbgrader": kinds} if is_solution or points else {}
    cell = {
        "cell_type": "code",
        "id": f"code-{name}"[:60],
        "metadata": metadata,
        "execution_count": None,
        "outputs": [],
    }
    return cell | {"source": text.splitlines(keepends=True)}


def _otter_test(task: str) -> str:
    """A test in the format of Otter-Grader; its code runs among the names of the student's notebook."""
    code = f'>>> from xformer.assignments import check\n>>> check(globals(), task="{task}").ok\nTrue'
    case = {"code": code, "hidden": False, "locked": False}
    suite = {"cases": [case], "scored": True, "setup": "", "teardown": "", "type": "doctest"}
    return f"OK_FORMAT = True\n\ntest = { ({'name': task, 'points': 1, 'suites': [suite]})!r}\n"
