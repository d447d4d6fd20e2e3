"""The ranges of pyproject.toml and the pins of requirements.txt."""

from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement

from tests.floors import ROOT, ranges


def pins() -> dict[str, str]:
    """The version of each package in requirements.txt."""
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_every_range_contains_its_pin_and_has_both_ends() -> None:
    requirements = [Requirement(line) for line in ranges()]
    assert list(pins()) == [requirement.name for requirement in requirements]
    for requirement in requirements:
        assert requirement.specifier.contains(pins()[requirement.name]), requirement
        assert {limit.operator for limit in requirement.specifier} == {">=", "<"}, requirement


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_install_command_without_dependencies_lists_all_packages_but_torch(page: str) -> None:
    lines = (ROOT / page).read_text("utf-8").splitlines()
    [line] = [line for line in lines if line.startswith("pip install numpy ")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert ["torch", *line.split()[2:]] == [Requirement(one).name for one in project["dependencies"]]
