"""Navigation between screens keeps the model, the input, the mask and the changes."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from tests.pages.conftest import Open

ATTENTION, RESIDUAL = "pages/attention/page.py", "pages/residual/page.py"
LINK = {"model": "reverse-small", "input": "1 2 3 4", "mask": "causal", "edits": "ablate:encoder.1.attn.0"}


def click(app: AppTest, page: str) -> AppTest:
    """Open another screen as the navigation does, with an address without parameters."""
    app.query_params.clear()
    return app.switch_page(page).run()


def go_back(app: AppTest, page: str, link: dict[str, str]) -> AppTest:
    """Open a screen as the browser's Back does, with the link that it had before."""
    app.query_params.clear()
    for name, value in link.items():
        app.query_params[name] = value
    return app.switch_page(page).run()


def link_of(app: AppTest) -> dict[str, str]:
    return {name: "".join(app.query_params[name]) for name in app.query_params}


def looked_at(app: AppTest) -> dict[str, object]:
    """Return the selection in the sidebar, and assert that the link agrees with it."""
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


def test_back_restores_the_link_of_the_previous_screen(open_page: Open) -> None:
    app = open_page(ATTENTION, **LINK, panel="rollout")
    there = link_of(app)
    click(app, RESIDUAL)
    app.sidebar.segmented_control(key="mask").set_value("full").run()
    app.button(key="chip_all").click().run()
    go_back(app, ATTENTION, there)
    assert looked_at(app) == LINK
    assert link_of(app) == there
    assert app.segmented_control(key="panel").value == "rollout"
    app.segmented_control(key="panel").set_value("steps").run()  # a link is applied only once
    assert app.segmented_control(key="panel").value == link_of(app)["panel"] == "steps"
    go_back(app, RESIDUAL, {"model": "reverse-small"})  # a link without changes
    assert app.session_state["edits"] == ""
    assert "edits" not in link_of(app)
