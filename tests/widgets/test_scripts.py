"""The bundles of the widgets are current, complete and self-contained."""

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


def sources_of(entry: Path) -> set[Path]:
    """Return an entry point and the scripts that it imports, directly or not."""
    reached, waiting = set(), [entry]
    while waiting:
        file = waiting.pop()
        if file not in reached:
            reached.add(file)
            paths = re.findall(r'^import .*"(\..+)";$', file.read_text(encoding="utf-8"), re.MULTILINE)
            waiting += [(file.parent / path).resolve() for path in paths]
    return reached


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_bundles_are_built_from_their_current_sources(entry: Path) -> None:
    sources = sorted(sources_of(entry), key=lambda file: file.relative_to(FOLDER).as_posix())
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    bundle = FOLDER / "bundles" / entry.relative_to(FOLDER)
    first = bundle.read_text(encoding="utf-8").partition("\n")[0]
    assert first.endswith(f": {digest}"), f"{bundle.relative_to(FOLDER)} is outdated: run `make bundle`"


def test_every_entry_point_has_a_bundle() -> None:
    assert {file.relative_to(FOLDER / "bundles") for file in BUNDLES} == {file.relative_to(FOLDER) for file in ENTRIES}
    assert {"attention_view", "training_player", "step_ruler"} <= set(WIDGETS)


def test_every_source_is_imported_by_an_entry_point() -> None:
    reached = {file for entry in ENTRIES for file in sources_of(entry)}
    assert reached == {*FOLDER.glob("*.js"), *FOLDER.glob("*/*.js")}


@pytest.mark.parametrize("file", BUNDLES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_bundles_are_self_contained(file: Path) -> None:
    text = scripts.script(file.parent.name, file.stem)
    without_names = text.replace("http://www.w3.org/2000/svg", "")  # a namespace, never requested
    if file.parent.name == "classroom":  # served with the model, which it fetches
        without_names = re.sub(r"fetch\(`\$\{this\.base\}/", "", without_names)
    assert not re.search(r"\bimport\b|https?://|fetch\(|</script", without_names)
    assert len(re.findall(r"export\s*\{\w+ as default\}", text)) == (file.stem != "page")


@pytest.mark.parametrize("widget", sorted({file.parent.name for file in ENTRIES if file.stem == "page"}))
def test_themes_define_every_style_variable(widget: str) -> None:
    used = set(re.findall(r"--st-([a-z-]+)", scripts.style(widget) + scripts.script(widget, "page")))
    for theme in scripts.themes():
        assert used <= set(re.findall(r"--st-([a-z-]+):", theme)), "undefined in pages and notebooks"
