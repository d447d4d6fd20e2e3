"""The feed-forward screen for every model, with links good and bad; its code runs and its switches switch."""

from __future__ import annotations

import re
from functools import partial

import pandas as pd
import pytest
import torch

import xformer
from pages.feed_forward import neurons
from pages.feed_forward.layers import attention_alone
from pages.feed_forward.neurons import ablation_notes
from tests.pages.code_and_picture import assert_code_draws_what_is_shown, left_by
from tests.pages.conftest import ROOT, Open
from tests.pages.test_explore import MODELS, messages, text
from xformer.adapters import TaskModel
from xformer.analysis import feed_forward
from xformer.analysis.feed_forward import fitting
from xformer.errors import UnavailableError

PAGE = "pages/feed_forward/page.py"
DEADLINE = 60.0


WITH_NEURONS = [model for model in MODELS if xformer.load(ROOT / "checkpoints" / model).config.d_ff]


@pytest.mark.parametrize("model", WITH_NEURONS)
def test_every_model_shows_its_neurons(open_page: Open, model: str) -> None:
    app = open_page(PAGE, model=model)
    assert not app.exception
    assert messages(app) == []
    assert len(app.get("vega_lite_chart")) == 1
    assert not app.get("plotly_chart")  # its script is larger than all others, and nothing here needs it
    assert "of the activations on this input are above 0" in text(app)


@pytest.mark.parametrize("model", ["reverse-small", "digits", "characters"])
def test_how_many_fire_is_counted_over_a_sample(open_page: Open, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    a_tenth = partial(fitting, work=2e10)
    monkeypatch.setattr(neurons, "AT_ONCE", DEADLINE)
    monkeypatch.setattr(neurons, "fitting", a_tenth)
    app = open_page(PAGE, model=model, picture="firing")
    assert not app.exception
    assert messages(app) == []
    checkpoint = xformer.load(ROOT / "checkpoints" / model)
    assert checkpoint.task is not None
    n = 360 if model == "digits" else a_tenth(TaskModel(checkpoint.model, checkpoint.task))
    assert (16 < n < 2000) == (model != "reverse-small")
    one = {"digits": "patch", "characters": "character"}.get(model, "token")
    assert f"on {n:,} inputs, and at an average {one} **" in text(app)
    app.segmented_control(key="ff_over").set_value("input").run()
    assert f"on this input, and at an average {one} **" in text(app)


@pytest.mark.parametrize("model", ["reverse-seq2seq", "digits", "characters", "parity"])
@pytest.mark.parametrize("picture", ["token", "neuron"])
def test_one_token_and_one_neuron_of_every_kind_of_model(open_page: Open, model: str, picture: str) -> None:
    app = open_page(PAGE, model=model, picture=picture, layer="" if model == "digits" else "encoder.0")
    assert not app.exception
    assert ("fires at **" in text(app)) == (picture == "neuron")
    assert len(app.dataframe) == (picture == "token")


@pytest.fixture
def slow_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at it runs one batch more of many."""
    monkeypatch.setattr(feed_forward, "MOST_TOKENS_AT_ONCE", 600)
    monkeypatch.setattr(neurons, "AT_ONCE", 0.0)
    monkeypatch.setattr(neurons, "follow", partial(neurons.follow, budget=0.0))
    neurons._work.clear()  # pyright: ignore[reportAttributeAccessIssue]


def test_a_survey_fills_in_and_can_be_stopped(open_page: Open, slow_survey: None) -> None:
    app = open_page(PAGE, model="sort", picture="firing")
    assert not app.exception
    n = re.search(r"([1-9]\d+) inputs, and at an average token", text(app))
    assert n is not None  # drawn with what is known, before the sample is through
    assert int(n[1]) < 2000
    assert "first=" in app.code[0].value
    app.button(key="survey_cancel").click().run()
    assert re.search(r"Stopped after \d+ of 2,000 inputs", text(app))
    app.session_state[neurons.JOB].resume()
    app.session_state[neurons.JOB].advance(DEADLINE)
    app.run()
    assert "on 2,000 inputs, and" in text(app)
    assert "first=" not in app.code[0].value


def test_a_neuron_is_dead_on_no_sample_that_is_not_through(open_page: Open, slow_survey: None) -> None:
    app = open_page(PAGE, model="sort", picture="neuron")
    found = app.session_state[neurons.JOB].latest
    path, peak = next(iter(found.peak.items()))
    peak[:, 0] = 0.0
    app.segmented_control(key="ff_layer_True").set_value(path.removesuffix(".ffn"))
    app.number_input(key=neurons.NEURON).set_value(0).run()
    said = " ".join(message.value for message in app.info)
    assert re.search(r"It writes nothing on the first \d+ inputs", said), said
    app.session_state[neurons.JOB].advance(DEADLINE)
    found = app.session_state[neurons.JOB].latest
    found.peak[path][:, 0] = 0.0
    app.run()
    assert "this neuron is dead on the sample" in " ".join(message.value for message in app.info)


def test_of_many_positions_a_window_is_shown(open_page: Open) -> None:
    numbers = " ".join(str(1 + index % 19) for index in range(60))
    for picture in ("map", "neuron"):
        app = open_page(PAGE, model="reverse", input=numbers, picture=picture, **{"from": "48"})
        assert not app.exception
        assert messages(app) == []
        assert "Shown are 12 of 60 positions, 48 to 59" in text(app)


def test_a_model_without_neurons_says_so_and_offers_another(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-mirror")
    assert not app.exception
    assert "has no feed-forward layer" in text(app)
    app.button(key="use_reverse-small").click().run()
    assert not app.exception
    assert app.sidebar.selectbox(key="model").value == "reverse-small"
    assert len(app.get("vega_lite_chart")) == 1
    assert not app.get("plotly_chart")  # its script is larger than all others, and nothing here needs it


def test_a_neuron_is_ablated_and_restored(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", layer="encoder.1", neuron="17", picture="neuron")
    app.button(key="ablate_neuron").click().run()
    assert not app.exception
    assert " right** instead of " in text(app)
    app.button(key="ablate_neuron").click().run()
    assert " right** instead of " not in text(app)


def test_muting_a_layer_changes_the_prediction(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-seq2seq", layer="decoder.0")
    app.button(key="ablate_layer").click().run()
    assert not app.exception
    assert "right** instead of 7" in text(app)


def test_the_table_is_that_of_the_library(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="4 9 2 11 5", layer="encoder.2", pos="3", picture="token")
    shown = app.dataframe[0].value
    checkpoint = xformer.load(ROOT / "checkpoints/reverse")
    post = xformer.record(checkpoint.model, torch.tensor([[4, 9, 2, 11, 5]]))["encoder.2.ffn.post"][0, 3]
    written = post * checkpoint.model.get_parameter("encoder.blocks.2.ffn.weight_out").norm(
        dim=0
    )  # post is never below 0
    best = written.topk(10)
    assert shown["neuron"].tolist() == best.indices.tolist()
    assert shown["activation"].tolist() == pytest.approx(post[best.indices].tolist())
    assert shown["activity"].tolist() == pytest.approx(best.values.tolist())


@pytest.mark.parametrize("out_of_reach", [False, True])
def test_how_activity_is_measured_is_said(open_page: Open, monkeypatch: pytest.MonkeyPatch, out_of_reach: bool) -> None:
    def unavailable(self: object, path: str) -> None:
        raise UnavailableError("out of reach")

    if out_of_reach:
        weights = type(xformer.read(ROOT / "checkpoints/reverse", "3 7").subject.weights)
        monkeypatch.setattr(weights, "projection", unavailable)
    app = open_page(PAGE, model="reverse", picture="firing", over="input")
    assert not app.exception
    assert ("so activity is |activation|." in text(app)) == out_of_reach
    assert ("× the norm of the vector" in text(app)) != out_of_reach
    assert "The 0 of a ReLU writes nothing" in text(app)


@pytest.mark.parametrize(
    ("link", "n"),
    [
        ({"layer": "encoder.9"}, 1),
        ({"neuron": "512", "pos": "-1", "picture": "token"}, 2),
        ({"stage": "x", "order": "y"}, 2),
        ({"layer": "encoder.0", "stage": "pre", "order": "plain", "neuron": "511"}, 0),
    ],
)
def test_a_link_to_what_is_not_here_says_so(open_page: Open, link: dict[str, str], n: int) -> None:
    app = open_page(PAGE, model="reverse", **link)
    assert not app.exception
    assert len(app.warning) == n
    if n == 0:
        assert app.query_params["neuron"] in ("511", ["511"])
        assert app.segmented_control(key="ff_stage").value == "pre"


def test_the_choice_survives_a_model_that_does_not_have_it(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", layer="encoder.3", neuron="400")
    app.sidebar.selectbox(key="model").set_value("reverse-seq2seq").run()
    assert not app.exception
    assert messages(app) == []


CODE = [("map", {"order": "plain", "stage": "pre"}), ("map", {}), ("token", {}), ("neuron", {})]
CODE += [("firing", {}), ("firing", {"over": "input"})]


@pytest.mark.parametrize(("picture", "more"), CODE)
def test_the_code_draws_what_is_shown(
    open_page: Open, picture: str, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = {"model": "reverse-small", "edits": "ablate:encoder.0.ffn.3", "picture": picture, **more}
    app = assert_code_draws_what_is_shown(open_page, monkeypatch, PAGE, link)
    assert len(app.code) == (2 if picture == "neuron" else 1)
    if picture == "token":
        names = left_by(app.code[0].value)
        shown = app.dataframe[0].value
        pd.testing.assert_frame_equal(names["picture"][0][shown.columns], shown)


def test_silencing_is_told_only_where_it_is_known() -> None:
    def table(*rows: tuple[float, float, int]) -> pd.DataFrame:
        return pd.DataFrame(
            [
                {"neuron": n, "activation": -a, "activity": a, "loss_change": c, "flips": f}
                for n, (a, c, f) in enumerate(rows)
            ]
        )

    assert "None of them matters" in ablation_notes(table((1.0, 0.001, 0)), 2, judged=True)[0]
    assert "None of them" not in ablation_notes(table((1.0, 0.5, 0)), 2, judged=True)[0]
    assert "changes 1 answer." in ablation_notes(table((1.0, 0.5, 1)), 2, judged=True)[0]
    assert "changes 2 predictions" in ablation_notes(table((1.0, 0.001, 2)), 2, judged=False)[0]
    assert ablation_notes(table((0.0, 0.0, 0)), 2, judged=True) == ["No neuron writes anything at position 2."]
    assert ablation_notes(table((1.0, float("nan"), 0)), 2, judged=True) == []


def test_a_model_without_neurons_is_praised_only_where_it_is_right() -> None:
    assert attention_alone(5, 6, judged=True) == [
        "The model as trained gets 5 of 6 right on this input without a single neuron."
    ]
    assert attention_alone(1, 6, judged=True) == attention_alone(6, 6, judged=False) == []
