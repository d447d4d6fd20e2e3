"""A release has one version, and notes from the changelog."""

from __future__ import annotations

import re
import tomllib
from datetime import date

import pytest

from tools.release import ROOT, cited, notes, prepared, with_absolute_links

PROJECT = 'name = "a"\n[project]\nversion = "0.1.0"\nneeds = ["b>=0.1.0"]\n'
CHANGES = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- new\n\n## [0.1.0] - 2026-01-02\n\n- old\n"


def test_a_release_sets_the_version_and_dates_the_changes() -> None:
    project, changes = prepared(PROJECT, CHANGES, "0.2.0", date(2026, 3, 4))
    assert project == PROJECT.replace('version = "0.1.0"', 'version = "0.2.0"')
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-03-04\n\n### Added\n\n- new\n\n## [0.1.0]" in changes
    assert notes(project, changes, "v0.2.0") == "### Added\n\n- new"
    assert notes(PROJECT, changes, "v0.1.0") == "- old"


@pytest.mark.parametrize("version", ["0.2", "v0.2.0", "0.1.0"])
def test_an_invalid_or_known_version_is_refused(version: str) -> None:
    with pytest.raises(SystemExit):
        prepared(PROJECT, CHANGES, version, date(2026, 3, 4))


@pytest.mark.parametrize(("changes", "tag"), [(CHANGES, "v0.2.0"), (CHANGES, "0.1.0"), ("# Changelog\n", "v0.1.0")])
def test_notes_of_another_version_or_without_a_section_are_refused(changes: str, tag: str) -> None:
    with pytest.raises(SystemExit):
        notes(PROJECT, changes, tag)


def test_this_version_has_notes() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    version = tomllib.loads(project)["project"]["version"]
    assert notes(project, (ROOT / "CHANGELOG.md").read_text("utf-8"), f"v{version}")


def test_the_citation_names_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    citation, changes = (ROOT / "CITATION.cff").read_text("utf-8"), (ROOT / "CHANGELOG.md").read_text("utf-8")
    [day] = re.findall(rf"^## \[{re.escape(version)}\] - (\S+)$", changes, re.MULTILINE)
    assert cited(citation, version, date.fromisoformat(day)) == citation
    assert 'version: 9.8.7\ndate-released: "2026-03-04"' in cited(citation, "9.8.7", date(2026, 3, 4))


def test_relative_links_become_absolute() -> None:
    text = "![a](docs/a.png) [b](docs/b.md#c) [d](#e) [f](mailto:g)"
    assert with_absolute_links(text, "x:/y/") == "![a](x:/y/docs/a.png) [b](x:/y/docs/b.md#c) [d](#e) [f](mailto:g)"
    readme = with_absolute_links((ROOT / "README.md").read_text("utf-8"), "https://h")
    assert all(re.match(r"https?:|#", link) for link in re.findall(r"\]\(([^)]+)\)", readme))
