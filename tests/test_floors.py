"""How the lowest versions are read from the requirements."""

from __future__ import annotations

import pytest

from tests.floors import PART, ROOT, floors, lowest


@pytest.mark.parametrize(
    ("requirement", "version"),
    [
        ("numpy>=2.2.6,<3", "numpy==2.2.6"),
        ("torch==2.13.0", "torch==2.13.0"),
        ("vl-convert-python>=1.9,<2", "vl-convert-python==1.9"),
    ],
)
def test_a_requirement_becomes_its_lowest_version(requirement: str, version: str) -> None:
    assert lowest(requirement) == version


def test_every_requirement_has_a_floor_and_every_test_is_there() -> None:
    lines = [line for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines() if line[:1].isalpha()]
    assert len(lines) > 8
    assert sum("==" in line for line in floors()) == len(lines)
    assert all((ROOT / part).exists() for part in PART)
