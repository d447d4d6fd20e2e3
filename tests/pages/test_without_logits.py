"""Every screen with a model that predicts no tokens: a sentence encoder without an output head, and classifiers."""

from __future__ import annotations

import pandas as pd
import pytest

from pages.residual.pictures import similarity_notes
from pages.shared import models
from tests.adapters.zoo import ZOO
from tests.pages.conftest import Open, everything, n_charts
from xformer.adapters import ModelAdapter
from xformer.adapters.load import open_model

ENCODER, CLASSIFIER, TOKENS, SPAN = (
    "BertModel", "DistilBertForSequenceClassification", "DistilBertForTokenClassification", "BertForQuestionAnswering",
)  # fmt: skip
NAMES = (ENCODER, CLASSIFIER, TOKENS, SPAN)
TEXT = "the cat sat on the mat"
EDIT = "ablate:encoder.0.attn.1"
OPENED: dict[str, ModelAdapter] = {}


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    members = {member.name: member for member in ZOO if member.name in NAMES}

    def external(name: str) -> ModelAdapter | None:
        if name not in members:
            return None
        if name not in OPENED:
            OPENED[name] = open_model(members[name].save(tmp_path_factory.mktemp("models") / name))
        return OPENED[name]

    monkeypatch.setattr(models, "external", external)
    monkeypatch.setattr(models, "external_titles", lambda: {name: name for name in NAMES})


SCREENS = [
    (ENCODER, "home", {}, 0, "it gives a vector of 24 numbers for each of the 6 positions"),
    (ENCODER, "attention", {"panel": "change the run", "edits": EDIT}, 0, "Click a cell of the matrix to cut"),
    (ENCODER, "embeddings", {"show": "vocabulary"}, 1, "97 vectors of 24 numbers"),
    (ENCODER, "positions", {"edits": "positions:off"}, 3, "only their order is lost"),
    (ENCODER, "residual", {"pooling": "first", "after": "1"}, 1, "usual for this model is the mean over all positions"),
    (ENCODER, "compare", {"edits": EDIT}, 0, "outputs vectors and no predictions"),
    (CLASSIFIER, "home", {}, 0, "LABEL_0 33"),
    (CLASSIFIER, "attention", {"panel": "change the run", "edits": "token:4.10"}, 0, "before LABEL_0"),
    (CLASSIFIER, "feed_forward", {"picture": "neuron"}, 1, "on this input"),
    (CLASSIFIER, "residual", {}, 0, "gives a class of the text, so there are no logits at each position"),
    (CLASSIFIER, "compare", {"with": TOKENS}, 0, "has another kind of output; choose another model"),
    (TOKENS, "compare", {"edits": EDIT}, 0, "The likeliest options of each"),
    (TOKENS, "home", {}, 0, "Classes of 6 tokens"),
    (TOKENS, "residual", {}, 1, "so another class in an early row"),
    (SPAN, "home", {"input": "the cat >> the cat sat on the mat"}, 0, "nswer"),
]
FALSE_HERE = ("goes on with", "token by token", "likeliest token", "really comes next", "says what is missing", "Gap 1")


@pytest.mark.parametrize(("name", "screen", "link", "charts", "says"), SCREENS)
def test_a_screen_shows_what_there_is_and_claims_no_tokens(
    open_page: Open, name: str, screen: str, link: dict[str, str], charts: int, says: str
) -> None:
    app = open_page(f"pages/{screen}/page.py", model=name, **({"input": TEXT} | link))
    assert not app.error
    shown_text = everything(app).replace("**", "")
    assert says in shown_text
    assert n_charts(app) >= charts
    if screen != "bug_lab":
        assert not [words for words in FALSE_HERE if words in shown_text]


def test_another_input_takes_the_first_line_and_leaves_the_others(open_page: Open) -> None:
    app = open_page("pages/residual/page.py", model=ENCODER, input=TEXT, texts=f"{TEXT}\na dog\na bird")
    assert app.text_area(key="similar_texts").value == f"{TEXT}\na dog\na bird"
    app.text_input(key="input").set_value("the dog saw a cat").run()
    assert app.text_area(key="similar_texts").value == "the dog saw a cat\na dog\na bird"
    app.text_area(key="similar_texts").set_value("one").run()
    assert not app.exception
    assert "Type 2 to 8 texts" in app.error[0].value


def layer(*cosines: float) -> pd.DataFrame:
    """One layer of `analysis.similarity` of three texts, with the cosines of 1 and 2, 1 and 3, 2 and 3."""
    pairs = dict(zip(((0, 1), (0, 2), (1, 2)), cosines, strict=True))
    rows = [(2, i, j, 1.0 if i == j else pairs[min(i, j), max(i, j)]) for i in range(3) for j in range(3)]
    return pd.DataFrame(rows, columns=["layer", "first", "second", "cosine"])


def test_the_most_alike_texts_are_named_only_where_that_is_clear() -> None:
    texts = ["a", "b", "c"]
    [note] = similarity_notes(layer(0.31, -0.2, 0.28), texts)
    assert "Texts **1** and **2** are most alike: 0.31. The next pair has 0.28." in note
    assert not similarity_notes(layer(0.31, -0.2, 0.295), texts)
    assert not similarity_notes(layer(0.999, 0.998, 0.999), texts)
    assert not similarity_notes(layer(1.0, 0.2, 0.2), ["a", "a", "c"])  # of equal texts that is no news


def test_that_all_are_alike_is_said_only_where_they_are() -> None:
    texts = ["a", "b", "c"]
    assert any("Even the least alike two have 0.61" in note for note in similarity_notes(layer(0.9, 0.7, 0.61), texts))
    assert not any("Even the least" in note for note in similarity_notes(layer(0.9, 0.7, 0.4), texts))
