"""A screen in a frame on slides: the panel below a picture is drawn only on request, and no frame is empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages.controls import embed
from pages.state.screens import screens
from tests.pages.conftest import Open

ATTENTION, TRAIN = "pages/attention/page.py", "pages/train/page.py"
LINK = {"model": "reverse", "input": "3 7 12 9"}


@pytest.fixture
def framed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "is_framed", lambda: True)


@pytest.mark.usefixtures("framed")
def test_panel_below_the_picture_is_drawn_only_if_the_link_asks_for_it(open_page: Open) -> None:
    alone = open_page(ATTENTION, **LINK)
    assert alone.query_params["panel"] == embed.ALONE
    assert not alone.dataframe
    asked = open_page(ATTENTION, panel=screens()["attention"].usual_panel, **LINK)
    assert asked.dataframe
    assert not asked.warning


@pytest.mark.usefixtures("framed")
@pytest.mark.parametrize(("model", "part"), [("reverse", "oops"), ("digits", "images of digits")])
def test_an_invalid_input_in_the_link_is_reported_above_the_picture(open_page: Open, model: str, part: str) -> None:
    app = open_page(ATTENTION, model=model, input="3 7 oops")
    [message] = [error.value for error in app.main.error]
    assert part in message


@pytest.mark.usefixtures("framed")
def test_a_frame_without_a_run_explains_how_to_show_one(open_page: Open) -> None:
    assert "&run=" in open_page(TRAIN).info[0].value


def test_every_screen_marks_its_picture() -> None:
    for name in screens():
        sources = [path.read_text("utf-8") for path in (Path("pages") / name).glob("*.py")]
        assert any("embed.picture(" in source or "with picture()" in source for source in sources), name
