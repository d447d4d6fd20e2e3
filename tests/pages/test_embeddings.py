"""The Embeddings screen, for every shipped model, with links, changes, and its numbers against the library's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xformer
from tests.pages.conftest import ROOT, Open
from xformer.analysis.embeddings import neighbours, vocabulary_vectors

PAGE = "pages/explore/embeddings.py"
MODELS = sorted(path.parent.name for path in (ROOT / "checkpoints").glob("*/model.safetensors"))


def text(app: Any) -> str:
    return " ".join(element.value for kind in ("caption", "markdown", "info") for element in getattr(app, kind))


def complaints(app: Any) -> list[str]:
    return [element.value for kind in ("error", "warning", "exception") for element in getattr(app, kind)]


@pytest.mark.parametrize("part", ["tokens", "positions", "sum"])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_shows_every_part(open_page: Open, model: str, part: str) -> None:
    positions = xformer.load(ROOT / "checkpoints" / model).config.positions
    if part != "tokens" and positions not in ("sinusoidal", "learned", "mirror"):
        pytest.skip(f"{model} adds no positions to its tokens")
    app = open_page(PAGE, model=model, part=part)
    assert complaints(app) == []
    assert app.segmented_control(key="part").value == part
    assert "What to notice" in text(app)
    assert app.query_params["part"] == part


def test_an_encoder_decoder_has_two_sides_and_says_that_they_share(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-seq2seq", input="4 9 2")
    assert "**share** one embedding matrix" in text(app)
    assert "4 tokens × 32" in text(app)
    app.segmented_control(key="side").set_value("decoder").run()
    assert complaints(app) == []
    assert app.query_params["side"] == "decoder"
    assert app.selectbox(key="near").value == "4"
    app = open_page(PAGE, model="reverse-small")
    assert "side" not in app.query_params


def test_the_neighbours_on_screen_are_those_of_the_library(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", near="7")
    checkpoint = xformer.load(ROOT / "checkpoints/reverse")
    assert checkpoint.task is not None
    expected = neighbours(vocabulary_vectors(checkpoint.model), checkpoint.task.vocabulary.labels, 7)
    assert app.dataframe[0].value["token"].tolist() == expected["token"].tolist()
    assert app.dataframe[0].value["cosine"].tolist() == expected["cosine"].tolist()
    by_hand = checkpoint.model.embedding.token[expected["id"][0]].double()
    cosine = torch.nn.functional.cosine_similarity(by_hand, checkpoint.model.embedding.token[7].double(), dim=0)
    assert expected["cosine"][0] == pytest.approx(cosine.item(), abs=1e-12)


def test_a_change_that_matters_stands_beside_the_original(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", part="sum", edits="positions:off")
    assert [element.value for element in app.subheader][:3] == [
        "Sum · the model’s own run",
        "How alike two of them are",
        "Sum · 1 change",
    ]
    app = open_page(PAGE, model="reverse", part="tokens", edits="positions:off")
    assert "token vectors are the same in both runs" in text(app)
    app = open_page(PAGE, model="reverse", part="tokens", edits="token:0.9")
    assert "Token vectors · 1 change" in [element.value for element in app.subheader]


def test_repeats_are_told_apart_by_their_place(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="5 8 5")
    assert "Positions 0 and 2 hold the same token" in text(app)
    assert "(cosine 1.000)" in text(app)
    app = open_page(PAGE, model="reverse", input="5 8 6")
    assert "Type a symbol twice" in text(app)


@pytest.mark.parametrize(("name", "value"), [("part", "gas"), ("axes", "4"), ("near", "banana"), ("near", "")])
def test_a_link_to_what_is_not_here_says_so(open_page: Open, name: str, value: str) -> None:
    app = open_page(PAGE, model="reverse", **{name: value})
    assert not app.exception
    assert [f"a {name} that is not here" in element.value for element in app.warning] == [True]


def test_three_axes(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", axes="3")
    assert complaints(app) == []
    assert len(app.get("plotly_chart")) == 1
    app.segmented_control(key="axes").set_value("2").run()
    assert len(app.get("plotly_chart")) == 0
    assert app.query_params["axes"] == "2"


@pytest.mark.parametrize("link", [{}, {"axes": "3", "part": "sum"}, {"model": "reverse-seq2seq", "side": "decoder"}])
@pytest.mark.parametrize("edits", ["", "positions:off,token:1.9"])
def test_the_code_under_each_picture_runs(
    open_page: Open, monkeypatch: pytest.MonkeyPatch, link: dict, edits: str
) -> None:
    monkeypatch.chdir(ROOT)
    app = open_page(PAGE, **({"model": "reverse"} | link), **({"edits": edits} if edits else {}))
    codes = [element.value for element in app.code]
    assert len(codes) == (6 if edits else 4)
    for code in codes:
        exec(compile(code, "footer", "exec"), {})
