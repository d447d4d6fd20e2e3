"""The scripts of the pictures that run in a browser: every file is used, and nothing is fetched from anywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from xformer.widgets import scripts

FOLDER = Path(scripts.__file__).parent
HOSTS = {
    "attention_view": ("streamlit", "notebook", "page"),
    "training_player": ("streamlit", "page"),
    "step_ruler": ("streamlit", "page"),
}


@pytest.mark.parametrize("widget", scripts.PARTS)
def test_every_script_of_a_folder_is_a_part_or_a_host(widget: str) -> None:
    parts = {part for part in scripts.PARTS[widget] if "/" not in part}
    assert {file.stem for file in (FOLDER / widget).glob("*.js")} == parts | set(HOSTS[widget])


@pytest.mark.parametrize(("widget", "host"), [(widget, host) for widget, hosts in HOSTS.items() for host in hosts])
def test_a_script_is_whole_and_asks_for_nothing(widget: str, host: str) -> None:
    text = scripts.script(widget, host).replace("http://www.w3.org/2000/svg", "")  # a name, which is never asked for
    assert not re.search(r"^\s*import\b|https?://|fetch\(", text, re.MULTILINE)
    assert len(re.findall(r"^export default", text, re.MULTILINE)) == (host != "page")


@pytest.mark.parametrize("widget", scripts.PARTS)
def test_every_colour_and_font_of_a_style_is_given_outside_of_streamlit_too(widget: str) -> None:
    used = set(re.findall(r"--st-([a-z-]+)", scripts.style(widget) + scripts.script(widget, "page")))
    for theme in scripts.themes():
        assert used <= set(re.findall(r"--st-([a-z-]+):", theme)), "the picture would be drawn without it"


def test_the_fonts_are_those_of_the_app() -> None:
    config = (FOLDER.parents[1] / ".streamlit" / "config.toml").read_text()
    assert f'font = "{scripts.FONT}"' in config
    assert f'codeFont = "{scripts.CODE_FONT}"' in config
