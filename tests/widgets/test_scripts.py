"""Tests of the widgets' scripts: the bundles belong to their sources, are complete, and load nothing from elsewhere."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from xformer.widgets import scripts

FOLDER = Path(scripts.__file__).parent
BUNDLES = sorted((FOLDER / "bundles").glob("*/*.js"))
HOSTS = ("streamlit", "streamlit_message", "notebook", "page")
ENTRIES = [file for file in sorted(FOLDER.glob("*/*.js")) if file.stem in HOSTS]
WIDGETS = sorted({file.parent.name for file in ENTRIES})


SOURCES = [*sorted(FOLDER.glob("*.js")), *sorted(FOLDER.glob("*/*.js"))]
"""The files that the bundles are made of, in the order in which `make bundle` reads them."""


def test_a_bundle_is_that_of_its_sources() -> None:
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES)).hexdigest()
    for file in BUNDLES:
        first = file.read_text(encoding="utf-8").partition("\n")[0]
        assert first.endswith(f": {digest}"), f"{file.relative_to(FOLDER)} is not of these sources: run `make bundle`"


def test_there_is_a_bundle_for_every_entry_point_and_no_other() -> None:
    assert {file.relative_to(FOLDER / "bundles") for file in BUNDLES} == {file.relative_to(FOLDER) for file in ENTRIES}
    assert {"attention_view", "training_player", "step_ruler"} <= set(WIDGETS)


def test_every_source_is_imported_by_an_entry_point() -> None:
    reached, waiting = set(), list(ENTRIES)
    while waiting:
        file = waiting.pop()
        if file not in reached:
            reached.add(file)
            paths = re.findall(r'^import .*"(.+)";$', file.read_text(encoding="utf-8"), re.MULTILINE)
            waiting += [(file.parent / path).resolve() for path in paths]
    assert {file for file in reached if file.suffix == ".js"} == set(SOURCES)


@pytest.mark.parametrize("file", BUNDLES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_bundle_is_complete_and_loads_nothing(file: Path) -> None:
    text = scripts.script(file.parent.name, file.stem)
    without_names = text.replace("http://www.w3.org/2000/svg", "")  # a namespace, which is never requested
    if file.parent.name == "classroom":  # a page of a server, which has the model too
        without_names = re.sub(r"fetch\(`\$\{this\.base\}/", "", without_names)
    assert not re.search(r"\bimport\b|https?://|fetch\(|</script", without_names)
    assert len(re.findall(r"export\s*\{\w+ as default\}", text)) == (file.stem != "page")


@pytest.mark.parametrize("widget", sorted({file.parent.name for file in ENTRIES if file.stem == "page"}))
def test_every_colour_and_font_of_a_style_is_given_outside_of_streamlit_too(widget: str) -> None:
    used = set(re.findall(r"--st-([a-z-]+)", scripts.style(widget) + scripts.script(widget, "page")))
    for theme in scripts.themes():
        assert used <= set(re.findall(r"--st-([a-z-]+):", theme)), "the picture would be drawn without it"
