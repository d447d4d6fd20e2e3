"""A visit goes from screen to screen and keeps what it looks at: the model, the input, the mask and the changes, exactly."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from tests.pages.conftest import Open

ATTENTION, RESIDUAL = "pages/attention/page.py", "pages/residual/page.py"
LINK = {"model": "reverse-small", "input": "1 2 3 4", "mask": "causal", "edits": "ablate:encoder.1.attn.0"}


def click(app: AppTest, page: str) -> AppTest:
    """As the sidebar's navigation does: another screen, and an address without a link."""
    app.query_params.clear()
    return app.switch_page(page).run()


def go_back(app: AppTest, page: str, link: dict[str, str]) -> AppTest:
    """As the browser's Back does: the screen with the link that it had when it was left."""
    app.query_params.clear()
    for name, value in link.items():
        app.query_params[name] = value
    return app.switch_page(page).run()


def link_of(app: AppTest) -> dict[str, str]:
    return {name: "".join(app.query_params[name]) for name in app.query_params}


def looked_at(app: AppTest) -> dict[str, object]:
    """What the sidebar shows and what the link says, which are one."""
    shown = {
        "model": app.sidebar.selectbox(key="model").value,
        "input": app.sidebar.text_input(key="input").value,
        "mask": app.sidebar.segmented_control(key="mask").value,
        "edits": app.session_state["edits"],
    }
    assert shown.items() <= link_of(app).items()
    assert not app.exception
    assert not app.error
    return shown


def test_back_shows_what_the_link_of_that_page_says(open_page: Open) -> None:
    app = open_page(ATTENTION, **LINK, panel="rollout")
    there = link_of(app)
    click(app, RESIDUAL)
    app.sidebar.segmented_control(key="mask").set_value("full").run()
    app.button(key="chip_all").click().run()
    go_back(app, ATTENTION, there)
    assert looked_at(app) == LINK
    assert link_of(app) == there
    assert app.segmented_control(key="panel").value == "rollout"
    app.segmented_control(key="panel").set_value("steps").run()  # a link is followed once
    assert app.segmented_control(key="panel").value == link_of(app)["panel"] == "steps"
    go_back(app, RESIDUAL, {"model": "reverse-small"})  # which names no changes
    assert app.session_state["edits"] == ""
    assert "edits" not in link_of(app)
