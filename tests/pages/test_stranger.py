"""Every screen with a model that is not ours: its main picture is there, and what cannot be shown says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

from tests.pages.conftest import Open, plain
from tests.pages.stranger import STRANGERS, let_in
from xformer.adapters import ModelAdapter, own_model, own_task_model
from xformer.errors import UnavailableError


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    let_in(monkeypatch)


def everything(app: AppTest) -> str:
    return plain(" ".join(one.value for kind in ("caption", "markdown", "info") for one in getattr(app, kind)))


def n_charts(app: AppTest) -> int:
    return sum(len(app.get(kind)) for kind in ("vega_lite_chart", "arrow_vega_lite_chart", "plotly_chart"))


@pytest.mark.parametrize("name", STRANGERS)
def test_an_external_model_gives_no_access_to_internals(name: str) -> None:
    subject = STRANGERS[name]
    assert isinstance(subject, ModelAdapter)
    asks: list[Callable[[ModelAdapter], object]] = [own_model, own_task_model]
    for ask in (*asks, lambda one: one.record(one.frame(one.input.default)).config):
        with pytest.raises(UnavailableError):
            ask(subject)


SCREENS = [
    ("home", {}, 0, "Greedy decoding"),
    ("attention", {"panel": "scores"}, 0, "Shares are averaged over the"),
    ("attention", {"panel": "steps"}, 1, "unavailable"),
    (
        "attention",
        {"panel": "change", "edits": "ablate:decoder.0.attn.1,token:1.99"},
        0,
        "Click a cell of the matrix to cut that edge",
    ),
    ("attention", {"panel": "rollout", "mask": "full"}, 1, "The mask is **full** now"),
    ("embeddings", {"show": "cosines"}, 1, "adds no positions"),
    ("embeddings", {"show": "vocabulary"}, 0, "unavailable"),
    ("positions", {"edits": "positions:off"}, 3, "causal mask"),
    ("feed_forward", {"picture": "map"}, 1, "32 neurons"),
    ("feed_forward", {"picture": "ranked"}, 1, "have no clear trigger"),
    ("feed_forward", {"picture": "neuron"}, 1, "The task of this model is not known"),
    ("feed_forward", {"picture": "firing"}, 1, "on this input"),
    ("residual", {"picture": "lens", "edits": "ablate:decoder.1.ffn"}, 2, "Logit lens"),
    ("residual", {"picture": "parts"}, 0, "unavailable"),
    ("residual", {"picture": "norms"}, 1, "the length of the residual stream"),
    ("compare", {"with": "characters"}, 0, "continuations differ at the first character"),
    ("compare", {"compare": "pairs", "part": "head", "input": "12 7 3", "other": "12 8 3"}, 1, "measured **"),
    ("bug_lab", {}, 0, "it was not trained here"),
]


@pytest.mark.parametrize(
    ("name", "screen", "link", "charts", "says"),
    [(list(STRANGERS)[index % 2], *screen) for index, screen in enumerate(SCREENS)],
)
def test_every_screen_shows_what_it_can_and_says_why_where_it_cannot(
    open_page: Open, name: str, screen: str, link: dict[str, str], charts: int, says: str
) -> None:
    app = open_page(f"pages/{screen}/page.py", model=name, **link)
    assert not app.exception
    assert not app.error
    assert not app.warning
    assert app.query_params["model"] == name
    assert all(app.query_params[key] == value for key, value in link.items())
    assert says in everything(app)
    assert "nan" not in everything(app).lower().split()
    assert n_charts(app) >= charts


def test_what_is_typed_is_read_by_the_model_itself(open_page: Open) -> None:
    app = open_page("pages/attention/page.py", model="stranger", input="Käse")
    assert app.query_params["input"] == "Käse"
    app.sidebar.text_input(key="input").set_value("x" * 40).run()
    assert "Bytes 9 to 40 of your 40 are shown: the last 32" in everything(app)
    app.sidebar.text_input(key="input").set_value("x").run()
    assert "at least two characters" in app.error[0].value
    app.sidebar.selectbox(key="model").set_value("reverse").run()
    assert app.sidebar.text_input(key="input").value == "3 7 12 9 4 11"
    assert not app.exception
