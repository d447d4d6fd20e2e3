"""“One model, steered” on Compare: both continuations, their code, and the link."""

from __future__ import annotations

from tests.pages.code_and_picture import left_by
from tests.pages.conftest import Open

PAGE = "pages/compare/page.py"
LINK = {"compare": "steering", "model": "characters", "input": "The list of "}


def test_the_code_computes_both_continuations_again(open_page: Open) -> None:
    app = open_page(PAGE, **LINK, towards="THE CLASS", away="the class", layer="2", scale="1")
    assert any("the continuation differs from character" in element.value for element in app.markdown)
    [chart, table] = left_by(next(element.value for element in app.code if "steered" in element.value))["picture"]
    assert chart.to_dict()["layer"]
    assert list(table["says"]) != list(table["steered_says"])
    assert app.query_params["towards"] == "THE CLASS"
    assert app.query_params["scale"] in ("1", ["1"])


def test_scale_0_changes_nothing(open_page: Open) -> None:
    app = open_page(PAGE, **LINK, scale="0", layer="99")
    assert any("the continuation is the same" in element.value for element in app.markdown)
    assert any("asks for a layer" in warning.value for warning in app.warning)


def test_where_nothing_can_be_steered_a_message_says_why(open_page: Open) -> None:
    app = open_page(PAGE, **LINK, towards="same", away="same")
    assert any("there is no direction" in info.value for info in app.info)
    app = open_page(PAGE, compare="steering", model="reverse", input="3 7 12")
    assert any("does not continue texts" in info.value for info in app.info)
