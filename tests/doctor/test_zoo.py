"""Every bug of the zoo is named, at the line that was changed; the correct models have no finding."""

from __future__ import annotations

from pathlib import Path

import pytest

import xformer
from tests.doctor.checking import TOKENS
from tests.doctor.zoo.bugs import BUGS, SPECS, Bug, planted


def check_of(bug: Bug) -> str:
    """The check that names a bug; some need padding or a loss."""
    if bug.style == "encoder" and ("hidden_keys" in bug.new or bug.new.startswith("mask[")):
        return "batch"
    if bug.causes[0] in ("targets_not_shifted", "initial_loss"):
        return "loss"
    return "attention_rows" if "attention_over_batch" in bug.causes and bug.style == "encoder" else "formula"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_named_at_its_line(bug: Bug, tmp_path: Path) -> None:
    model, number = planted(bug, tmp_path)
    [finding] = xformer.diagnose(model, TOKENS, checks=[check_of(bug)], spec=SPECS[bug.style]).broken
    assert finding.cause in bug.causes
    near = 2 if bug.new == "pass" else 0  # the line itself is gone
    assert abs(int(finding.line.removeprefix(f"{bug.style}.py:")) - number) <= near


@pytest.mark.parametrize("spec", [True, False])
@pytest.mark.parametrize("style", SPECS)
def test_a_correct_model_has_no_finding(style: str, spec: bool, tmp_path: Path) -> None:
    diagnosis = xformer.diagnose(planted(style, tmp_path)[0], TOKENS, spec=SPECS[style] if spec else "")
    assert diagnosis.ok
    assert not diagnosis.unusual
