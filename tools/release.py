"""Make a release: set its version, date and print its section of the changelog, and make the links of the README absolute.

python -m tools.release prepare 0.2.0     [Unreleased] becomes [0.2.0], dated; pyproject.toml and CITATION.cff get the version
python -m tools.release notes v0.2.0      print that section; fails unless the tag, pyproject.toml and the changelog agree
python -m tools.release readme URL        links of README.md that are relative now start with URL, as a package index needs

Pushing the tag `v0.2.0` then runs .github/workflows/release.yml.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["prepare", "notes", "readme"])
    parser.add_argument("value", help="a version like 0.2.0, a tag like v0.2.0, or a URL")
    options = parser.parse_args()
    project, changes, readme = ROOT / "pyproject.toml", ROOT / "CHANGELOG.md", ROOT / "README.md"
    citation = ROOT / "CITATION.cff"
    if options.action == "readme":
        readme.write_text(with_absolute_links(readme.read_text("utf-8"), options.value), "utf-8")
    elif options.action == "prepare":
        texts = prepared(project.read_text("utf-8"), changes.read_text("utf-8"), options.value, date.today())
        for path, text in zip((project, changes), texts, strict=True):
            path.write_text(text, "utf-8")
        citation.write_text(cited(citation.read_text("utf-8"), options.value, date.today()), "utf-8")
    else:
        print(notes(project.read_text("utf-8"), changes.read_text("utf-8"), options.value))


def prepared(project: str, changes: str, version: str, day: date) -> tuple[str, str]:
    """Return pyproject.toml with the version, and the changelog with [Unreleased] as the dated section of the version."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit(f"A version has three numbers, got {version!r:.40}; for example 0.2.0.")
    if f"\n## [{version}]" in changes:
        sys.exit(f"CHANGELOG.md already has a section [{version}].")
    heading = "## [Unreleased]"
    changes = changes.replace(f"{heading}\n", f"{heading}\n\n## [{version}] - {day.isoformat()}\n", 1)
    return re.sub(r'(?m)^version = ".*"$', f'version = "{version}"', project, count=1), changes


def cited(citation: str, version: str, day: date) -> str:
    """Return CITATION.cff with the version and the date of its release."""
    citation = re.sub(r"(?m)^version: .*$", f"version: {version}", citation)
    return re.sub(r"(?m)^date-released: .*$", f'date-released: "{day.isoformat()}"', citation)


def notes(project: str, changes: str, tag: str) -> str:
    """Return the section of a release in the changelog. Exits unless the tag is the version of pyproject.toml."""
    version = tomllib.loads(project)["project"]["version"]
    if tag != f"v{version}":
        sys.exit(f"The tag must be v{version}, the version of pyproject.toml, got {tag!r:.40}.")
    found = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)", changes, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        sys.exit(f"CHANGELOG.md has no section [{version}]; run: python -m tools.release prepare {version}")
    return found[1].strip()


def with_absolute_links(readme: str, url: str) -> str:
    """Return Markdown whose relative links and pictures start with `url`."""
    return re.sub(r"\]\((?!\w+:|#)", f"]({url.rstrip('/')}/", readme)


if __name__ == "__main__":
    main()
