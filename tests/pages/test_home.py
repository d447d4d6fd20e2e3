"""Home: how long a model can go, counted while one looks, and said where it is known."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from pages.home.how_long import _sentence
from tests.analysis.test_by_length import rows
from tests.pages.conftest import ROOT, Open
from xformer import load

PAGE = ROOT / "pages/home/page.py"


def words(app: AppTest) -> str:
    return " ".join(str(one.value) for one in (*app.subheader, *app.markdown, *app.caption))


def test_how_long_it_can_go_is_counted_while_one_looks(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-mirror", input="3 7 12 9", more="length")
    assert not app.exception
    for _ in range(40):
        if "already fails at 16" in words(app):
            break
        app.run()
    assert "Trained on 3 to 15 numbers, it already fails at 16" in words(app)
    assert "200 fresh inputs of each length" in words(app)


@pytest.mark.parametrize("model", ["modular", "digits", "characters"])
def test_a_task_of_one_length_does_not_offer_it(open_page: Open, model: str) -> None:
    app = open_page(PAGE, model=model, more="length")
    assert not app.exception
    assert "fresh inputs of each length" not in words(app)


def test_what_is_said_follows_from_the_figures() -> None:
    task = load(ROOT / "checkpoints/reverse").task
    assert task is not None
    assert "not get 99% right" in _sentence(task, rows([1.0, 0.5], [1.0]))
    assert "fails at 16" in _sentence(task, rows([1.0, 1.0], [0.9]))
    assert "every length up to 5" in _sentence(task, rows([1.0, 1.0], [1.0, 0.2]))
