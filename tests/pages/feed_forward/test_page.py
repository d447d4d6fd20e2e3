"""The Feed-forward screen: its pictures, headlines and notes, and the ablation of neurons and layers."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import xformer
from pages.feed_forward.page import ablation_note, framed, layer_headline, story_headline
from tests.pages.conftest import ROOT, Open, complaints, text
from xformer.adapters import TaskModel
from xformer.analysis.neuron_survey import fitting
from xformer.errors import UnavailableError

PAGE = "pages/feed_forward/page.py"


def test_the_screen_opens_on_the_top_neurons(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse")
    assert complaints(app) == []
    assert len(app.get("vega_lite_chart")) == 1
    assert "have no clear trigger" in text(app)
    assert re.search(
        r"Layer 4: \*\*\d+ of 512\*\* neurons fire mostly on one to three \*\*predicted tokens\*\* each", text(app)
    )
    app.segmented_control(key="ff_picture").set_value("neuron").run()
    assert not app.exception
    assert "Sampled inputs that activate #" in text(app)


def test_firing_neurons_are_counted_over_a_sample(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-small", picture="firing")
    checkpoint = xformer.load(ROOT / "checkpoints/reverse-small")
    assert checkpoint.task is not None
    n = fitting(TaskModel(checkpoint.model, checkpoint.task))
    assert re.search(rf"on {n:,} inputs, and \*\*\d+%\*\* fire at an average token", text(app))
    app.segmented_control(key="ff_over").set_value("input").run()
    assert re.search(r"on this input, and \*\*\d+%\*\* fire at an average token", text(app))


def test_layer_headline_is_empty_where_nothing_is_clear() -> None:
    def known(*triggers: str, values: tuple[int, ...] = (1, 3, 1)) -> pd.DataFrame:
        n_values = iter(values)
        on = [() if trigger == "none" else tuple(range(next(n_values))) for trigger in triggers]
        return pd.DataFrame({"trigger": triggers, "on": on})

    even = [1.0] * 10
    assert layer_headline(known(*["none"] * 9, "says"), even, "layer 2") == ""
    for values, n in (
        ((1, 1, 1), "one **predicted token**"),
        ((1, 2, 1), "one or two **predicted tokens**"),
        ((1, 3, 2), "one to three **predicted tokens**"),
        ((3, 3, 3), "three **predicted tokens**"),
    ):
        finding = layer_headline(known(*["none"] * 7, *["says"] * 3, values=values), even, "layer 2")
        assert finding == f"Layer 2: **3 of 10** neurons fire mostly on {n} each."
    assert "**1 of 10** neurons holds half" in layer_headline(known(*["none"] * 10), [20.0, *even[1:]], "layer 2")
    assert layer_headline(known(*["none"] * 10), [0.0] * 10, "layer 2") == ""


def test_story_headline_says_where_no_neuron_writes_clear_tokens() -> None:
    quiet = {"neuron": 4, "trigger": "reads", "on": ("a",), "promotes": ""}
    clear = quiet | {"neuron": 7, "promotes": "to To", "on": ("drink",)}
    told = story_headline([quiet, clear], "layer 3")
    assert (
        told
        == "Layer 3: **#7** fires on drink and writes **to To**. 1 of the 2 most active neurons write clear tokens."
    )
    assert story_headline([quiet], "layer 3").startswith("Layer 3: none of the 1 most active neurons writes")
    assert story_headline([{"neuron": 4}], "layer 3") == ""  # its stream is not unembedded


def test_a_model_without_feed_forward_layers_offers_another_model(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-mirror")
    assert "has no feed-forward layer" in text(app)
    app.button(key="use_reverse-small").click().run()
    assert complaints(app) == []
    assert app.sidebar.selectbox(key="model").value == "reverse-small"
    assert len(app.get("vega_lite_chart")) == 1


def test_a_neuron_and_a_layer_are_ablated_and_restored(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", layer="encoder.1", neuron="17", picture="neuron")
    for key in ("ablate_neuron", "ablate_layer"):
        app.button(key=key).click().run()
        assert not app.exception
        assert re.search(r" right\*\*(, as before| instead of )", text(app))
        app.button(key=key).click().run()
        assert not re.search(r" right\*\*(, as before| instead of )", text(app))
    # this model has neither that layer nor that neuron
    app.sidebar.selectbox(key="model").set_value("reverse-seq2seq").run()
    assert complaints(app) == []


@pytest.mark.parametrize("is_unknown", [False, True])
def test_measure_of_activity_is_explained(open_page: Open, monkeypatch: pytest.MonkeyPatch, is_unknown: bool) -> None:
    def unavailable(self: object, path: str) -> None:
        raise UnavailableError("unknown")

    if is_unknown:
        weights = type(xformer.read(ROOT / "checkpoints/reverse", "3 7").adapter.weights)
        monkeypatch.setattr(weights, "projection", unavailable)
    app = open_page(PAGE, model="reverse", picture="firing", over="input")
    assert ("so activity is |activation|." in text(app)) == is_unknown
    assert ("× the norm of the vector" in text(app)) != is_unknown
    assert "A ReLU output of 0 writes nothing" in text(app)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("reverse", "one column each. The output of ReLU."),
        ("reverse-modern", "the nonlinearity of its gate × its gated"),
    ],
)
def test_the_activations_are_described_by_their_component(open_page: Open, model: str, says: str) -> None:
    app = open_page(PAGE, model=model, picture="map")
    assert says in text(app)


def test_the_effect_of_ablation_is_noted_only_where_it_is_known() -> None:
    def note(change: float, flips: int, *, judged: bool = True) -> str:
        return ablation_note({"neuron": 3, "loss_change": change, "flips": flips}, judged=judged)

    assert "by −0.001 nats on" in note(-0.001, 0)
    assert "by +0.5 nats on" in note(0.5, 0)
    assert "and 1 answer on" in note(0.5, 1)
    assert "and 2 predictions on" in note(0.001, 2, judged=False)
    assert note(float("nan"), 0) == ""


def test_a_frame_covers_only_the_border_of_a_patch() -> None:
    image = (np.arange(12 * 12 * 3) % 251).astype(np.uint8).reshape(12, 12, 3)
    out = framed(image, 2, 6)  # the first patch of the second row
    assert (out[6:8, :6] == (214, 94, 0)).all()
    assert (out[8:10, 2:4] == image[8:10, 2:4]).all()
    assert (out[:6] == image[:6]).all()
    assert (out[:, 6:] == image[:, 6:]).all()
