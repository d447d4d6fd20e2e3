"""Find the bug: each planted fault is found by the doctor, and graded by its name and by the repaired model."""

from __future__ import annotations

from pathlib import Path

import pytest

import xformer
from xformer.assignments.bugs import BUGS, PLANTED
from xformer.assignments.grading import LocalCode, Result, cases, grade_bug
from xformer.assignments.student import Problem
from xformer.assignments.worker import loaded


def graded(name: str, text: str, folder: Path) -> Result:
    path = folder / f"{name}.py"
    path.write_text(text)
    return grade_bug(BUGS[name], PLANTED[name], LocalCode(vars(loaded(path))))


def test_there_are_enough_bugs_of_different_kinds() -> None:
    assert len(BUGS) >= 12
    assert len({bug.cause for bug in PLANTED.values()}) == len(BUGS)


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_graded_by_its_name_and_by_the_repaired_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = PLANTED[name]
    monkeypatch.setattr("xformer.assignments.grading.diagnosed", lambda *model: None)  # below, for each right model
    untouched = graded(name, bug.text, tmp_path)
    assert (untouched.status, untouched.cause) == ("failed", "not_repaired")
    assert untouched.cell is not None
    assert bug.where in untouched.hints[0]
    assert bug.cause not in f"{untouched.hints[:1]}{untouched.sentence}"
    named = bug.text.replace('CAUSE = ""', f'CAUSE = "{bug.cause}"')
    assert "Its name is right" in graded(name, named, tmp_path).sentence

    repaired = bug.text.replace(bug.new, bug.old) if bug.new else _with_missing_line(bug.text, bug.old)
    assert graded(name, repaired, tmp_path).cause == "not_named"
    assert graded(name, repaired.replace('CAUSE = ""', 'CAUSE = "mask_is_fine"'), tmp_path).cause == "not_named"
    assert graded(name, repaired.replace('CAUSE = ""', f'CAUSE = "{bug.cause}"'), tmp_path).status == "passed"


@pytest.mark.parametrize("name", ["bug_01", "bug_09", "bug_12"])
def test_a_repaired_model_must_be_clean(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One model of each kind."""
    bug = PLANTED[name]
    assert len({PLANTED[one].base for one in ("bug_01", "bug_09", "bug_12")}) == 3
    repaired = bug.text.replace(bug.new, bug.old) if bug.new else _with_missing_line(bug.text, bug.old)
    repaired = repaired.replace('CAUSE = ""', f'CAUSE = "{bug.cause}"')
    assert graded(name, repaired, tmp_path).status == "passed"
    found = Problem("dropout_in_eval", "Dropout is applied in eval mode.")
    monkeypatch.setattr("xformer.assignments.grading.diagnosed", lambda *model: found)
    assert (graded(name, repaired, tmp_path).cause, found.sentence in graded(name, repaired, tmp_path).sentence) == (
        "not_clean", True,
    )  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_the_doctor_names_the_bug(name: str, tmp_path: Path) -> None:
    """Otherwise the name could not be found by somebody who uses the tools of this library."""
    bug, [part] = PLANTED[name], BUGS[name].parts
    path = tmp_path / f"{name}.py"
    path.write_text(bug.text)
    given = cases(part)[0].inputs
    assert part.make is not None
    model, right = (part.make(one, given) for one in (loaded(path).Model, part.right))
    inputs = {name: one for name, one in given.items() if name in ("tokens", "valid")}
    loss = {"loss": lambda model, tokens: model.loss(tokens)} if bug.cause == "targets_not_shifted" else {}
    checks = ["formula", "loss", "batch", "right_padding", "cache"]
    first, *_ = xformer.diagnose(model, inputs, checks=checks, spec=right, **loss).broken
    assert first.cause in (bug.cause, *bug.also)
    assert first.line.startswith(f"{name}.py:")


def _with_missing_line(text: str, line: str) -> str:
    before = "        future = torch.ones"
    assert text.count(before) == 1
    return text.replace(before, line + before)
