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


def test_every_range_holds_its_pin_and_is_no_pin_itself() -> None:
    asked = [Requirement(one) for one in ranges()]
    assert list(pins()) == [one.name for one in asked]
    for one in asked:
        assert one.specifier.contains(pins()[one.name]), one
        assert {limit.operator for limit in one.specifier} == {">=", "<"}, one


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_page_lists_all_packages_but_torch_for_an_install_without_dependencies(page: str) -> None:
    lines = (ROOT / page).read_text("utf-8").splitlines()
    [line] = [line for line in lines if line.startswith("pip install numpy ")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert ["torch", *line.split()[2:]] == [Requirement(one).name for one in project["dependencies"]]
