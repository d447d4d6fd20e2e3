"""Every screen with a tiny model of the Transformers library, opened from a folder: its main picture, or why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages.shared import models
from tests.adapters.test_huggingface import folder_of
from tests.pages.conftest import Open, everything, n_charts
from xformer.adapters import ModelAdapter, opening
from xformer.adapters.load import open_model

FAMILIES = ["Llama", "GPT-2", "Mixtral", "BERT", "T5"]
LOOKED_AT = "Looked at"
"""A Llama of which no more is read than what it returns of its attention."""
OPENED: dict[str, ModelAdapter] = {}


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    def external(name: str) -> ModelAdapter | None:
        if name not in (*FAMILIES, LOOKED_AT):
            return None
        if name not in OPENED:
            family = "Llama" if name == LOOKED_AT else name
            folder: Path = folder_of(family, tmp_path_factory.mktemp("models") / name)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(opening, "BACKENDS", ("returned_weights",) if name == LOOKED_AT else opening.BACKENDS)
                OPENED[name] = open_model(folder)
        return OPENED[name]

    monkeypatch.setattr(models, "external", external)
    monkeypatch.setattr(models, "external_titles", lambda: {name: name for name in (*FAMILIES, LOOKED_AT)})


SCREENS = [
    ("Llama", "feed_forward", {"picture": "map", "stage": "up"}, 1, "multiplied with the nonlinearity"),
    ("Llama", "feed_forward", {}, 1, "have no clear trigger"),
    ("Llama", "residual", {"picture": "parts", "token": "mat"}, 1, "logit of mat"),
    ("GPT-2", "embeddings", {"show": "cosines"}, 3, "Positions"),
    ("GPT-2", "positions", {"show": "own"}, 2, "vector added to the token"),
    ("Llama", "positions", {"show": "own"}, 1, "queries and keys are turned"),
    ("T5", "positions", {"show": "own"}, 1, "What is added to a score"),
    ("Mixtral", "feed_forward", {"edits": "ablate:decoder.0.attn.1"}, 2, "4 experts, 2 of them for a token"),
    ("Llama", "compare", {"with": "GPT-2"}, 0, "KL(A ‖ B) of the predicted distributions"),
    ("BERT", "home", {"input": "the [MASK] sat"}, 0, "likeliest tokens at each gap"),
    ("BERT", "residual", {"picture": "parts"}, 0, "no sum of what was added"),
    (LOOKED_AT, "home", {}, 0, "can only be looked at"),
    (LOOKED_AT, "embeddings", {}, 0, "No embed was found"),
    (LOOKED_AT, "attention", {"panel": "why here?"}, 0, "No decoder.1.attn.scores was found"),
    (LOOKED_AT, "residual", {}, 0, "No residual stream was found"),
    ("T5", "residual", {"picture": "parts"}, 1, "the parts sum to"),
]


@pytest.mark.parametrize(("name", "screen", "link", "charts", "says"), SCREENS)
def test_a_screen_shows_its_picture(
    open_page: Open, name: str, screen: str, link: dict[str, str], charts: int, says: str
) -> None:
    app = open_page(f"pages/{screen}/page.py", model=name, **({"input": "the cat sat on the mat"} | link))
    assert not app.error
    assert says in everything(app)
    assert n_charts(app) >= charts


def test_a_long_continuation_is_written_on_a_click(open_page: Open) -> None:
    app = open_page("pages/home/page.py", model="Llama", input="the cat sat")
    assert "Greedy decoding" in everything(app)
    assert not [block for block in app.code if block.value.startswith("the cat sat")]
    app.button(key="story_write").click().run()
    [story] = [block.value for block in app.code if block.value.startswith("the cat sat")]
    assert len(story) > len("the cat sat")
    app.button(key="story_again").click().run()
    assert story not in [block.value for block in app.code]


def test_of_a_model_that_can_only_be_looked_at_no_change_is_offered(open_page: Open) -> None:
    link = {"input": "the cat sat", "mask": "full", "edits": "ablate:decoder.0.attn.1", "panel": "change the run"}
    app = open_page("pages/attention/page.py", model=LOOKED_AT, **link)
    assert "A change was left out" in app.warning[0].value
    assert app.session_state["mask"] == "as trained"
    assert not [button for button in app.button if "ilence" in str(button.label)]
    assert "Set the mask" not in everything(app)
    app.selectbox(key="replace_token").set_value(5)
    app.button(key="replace").click().run()
    assert not app.exception
    assert app.session_state["edits"] == "token:0.5"


COMPARED = [
    ("Llama", {"edits": "ablate:decoder.0.attn.1"}, "lens", "The logit lens"),
    ("Llama", {"with": "characters"}, "rows", "The row that predicts position"),
    ("BERT", {"edits": "ablate:encoder.0.attn.1", "input": "the [MASK] sat"}, "apart", "The likeliest options of each"),
    ("BERT", {"edits": "ablate:encoder.0.attn.1", "input": "the cat sat"}, "rows", "This text has no gaps"),
]


@pytest.mark.parametrize(("name", "link", "panel", "says"), COMPARED)
def test_two_runs_on_a_text_are_compared_position_by_position(
    open_page: Open, name: str, link: dict[str, str], panel: str, says: str
) -> None:
    app = open_page("pages/compare/page.py", model=name, panel=panel, **({"input": "the cat sat on the mat"} | link))
    assert not app.error
    assert says in everything(app)
    assert app.query_params["panel"] in (panel, [panel])
    assert app.code
