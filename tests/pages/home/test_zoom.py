"""The zoom of Home: a link opens a head or one of its cells, and each level leads back to the one above."""

from __future__ import annotations

import json

from streamlit.testing.v1 import AppTest

from tests.pages.conftest import Open, components, plain

PAGE = "pages/home/page.py"


def level(app: AppTest) -> str:
    """Return which of the three pictures is on screen."""
    [found] = [name for name in ("scene", "attention_view", "matrices") if components(app, name)]
    return found


def test_link_opens_a_cell_and_the_path_leads_back(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="3 7 12 9", zoom="3.2.0-3")
    assert level(app) == "matrices"
    [sent] = components(app, "matrices")
    assert [one["name"] for one in json.loads(sent.json)["matrices"] if one["drawn"]] == ["S", "A", "Z", "O", "X"]
    assert app.query_params["zoom"] == "3.2.0-3"

    app.button(key="zoom_head").click().run()
    assert (level(app), app.query_params["zoom"]) == ("attention_view", "3.2")
    app.button(key="zoom_out").click().run()
    assert level(app) == "scene"
    assert "zoom" not in app.query_params


def test_unknown_head_is_warned_about_and_another_model_closes_the_zoom(open_page: Open) -> None:
    for wrong in ("9.1", "3.9", "3", "3.2.x"):
        app = open_page(PAGE, model="reverse", input="3 7 12 9", zoom=wrong)
        assert level(app) == "scene", wrong
        assert any("zoom" in plain(one.value) for one in app.warning), wrong

    app = open_page(PAGE, model="reverse", input="3 7 12 9", zoom="3.2")
    app.sidebar.selectbox[0].select("reverse-small").run()
    assert level(app) == "scene"


def test_cell_beyond_the_input_opens_its_head(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="3 7", zoom="3.2.0-3")
    assert level(app) == "attention_view"


def test_changes_of_the_run_are_zoomed_into(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="3 7 12 9", mask="causal", zoom="3.2.0-0")
    [sent] = components(app, "matrices")
    scores = next(one for one in json.loads(sent.json)["matrices"] if one["name"] == "S")
    assert scores["about"] == "3 masked: −∞"
