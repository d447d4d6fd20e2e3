"""The feed-forward screen for every model, with links good and bad; its code runs and its switches switch."""

from __future__ import annotations

import pytest
import torch

import xformer
from tests.pages.conftest import ROOT, Open
from tests.pages.test_explore import MODELS, messages, text

PAGE = "pages/explore/feed_forward.py"


WITH_NEURONS = [model for model in MODELS if xformer.load(ROOT / "checkpoints" / model).config.d_ff]


@pytest.mark.parametrize("model", WITH_NEURONS)
def test_every_model_shows_its_neurons(open_page: Open, model: str) -> None:
    app = open_page(PAGE, model=model)
    assert not app.exception
    assert messages(app) == []
    assert len(app.get("plotly_chart")) == 1
    task = xformer.load(ROOT / "checkpoints" / model).task
    assert task is not None
    n = 360 if model == "digits" else min(2000, 64_000 // max(task.longest))  # all test images; of long inputs fewer
    assert f"{n:,} sampled inputs" in text(app)
    assert "and at an average token" in text(app)


def test_a_model_without_neurons_says_so_and_offers_another(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-mirror")
    assert not app.exception
    assert "has no feed-forward layer" in text(app)
    app.button(key="use_reverse-small").click().run()
    assert not app.exception
    assert app.sidebar.selectbox(key="model").value == "reverse-small"
    assert len(app.get("plotly_chart")) == 1


def test_a_neuron_is_silenced_and_brought_back(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", layer="encoder.1", neuron="17")
    app.button(key="silence_neuron").click().run()
    assert not app.exception
    assert "With 1 change, " in text(app)
    assert len(app.get("plotly_chart")) == 2
    app.button(key="silence_neuron").click().run()
    assert "With 1 change, " not in text(app)


def test_muting_a_layer_changes_the_prediction(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-seq2seq", layer="decoder.0")
    app.button(key="mute_layer").click().run()
    assert not app.exception
    assert "are right instead of 7" in text(app)


def test_the_table_is_that_of_the_library(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="4 9 2 11 5", layer="encoder.2", pos="3")
    shown = app.dataframe[0].value
    checkpoint = xformer.load(ROOT / "checkpoints/reverse")
    post = xformer.record(checkpoint.model, torch.tensor([[4, 9, 2, 11, 5]]))["encoder.2.ffn.post"][0, 3]
    best = post.topk(10)
    assert shown["neuron"].tolist() == best.indices.tolist()
    assert shown["activation"].tolist() == pytest.approx(best.values.tolist())


@pytest.mark.parametrize(
    ("link", "n"),
    [
        ({"layer": "encoder.9"}, 1),
        ({"neuron": "512", "pos": "-1"}, 2),
        ({"stage": "x", "order": "y"}, 2),
        ({"layer": "encoder.0", "stage": "pre", "order": "plain", "neuron": "511", "pos": "5"}, 0),
    ],
)
def test_a_link_to_what_is_not_here_says_so(open_page: Open, link: dict[str, str], n: int) -> None:
    app = open_page(PAGE, model="reverse", **link)
    assert not app.exception
    assert len(app.warning) == n
    if n == 0:
        assert app.number_input(key="ff_neuron").value == 511
        assert app.segmented_control(key="ff_stage").value == "pre"


def test_the_choice_survives_a_model_that_does_not_have_it(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", layer="encoder.3", neuron="400")
    app.sidebar.selectbox(key="model").set_value("reverse-seq2seq").run()
    assert not app.exception
    assert messages(app) == []


@pytest.mark.parametrize("order", ["plain", "sorted"])
def test_the_code_runs(open_page: Open, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(PAGE, model="reverse-small", edits="neuron:encoder.0.ffn.3", order=order, stage="pre")
    monkeypatch.chdir(ROOT)
    assert len(app.code) == 3
    for block in app.code:
        exec(block.value, {})
