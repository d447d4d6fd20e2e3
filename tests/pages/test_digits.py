"""Screens with an image model: they show the values of `record`, and drawings are validated and read."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from streamlit.dataframe_util import convert_arrow_bytes_to_pandas_df

import xformer
from pages.state import inputs
from tests.pages.conftest import ROOT, Open, text
from xformer.analysis.images import misclassified, predict_test_images
from xformer.formatting import percent
from xformer.tasks.images import digit_images

MODEL = "digits"
ATTENTION = "pages/attention/page.py"


def checkpoint() -> xformer.Checkpoint:
    return xformer.load(ROOT / "checkpoints" / MODEL)


def tables(app: Any) -> list[pd.DataFrame]:
    """Return the data of the Vega-Lite charts on a page."""
    protos = [element.proto for element in app.get("vega_lite_chart")]
    return [convert_arrow_bytes_to_pandas_df(data.data.data) for proto in protos for data in proto.datasets]


def test_home_states_the_prediction_and_shows_the_mistakes(open_page: Open) -> None:
    app = open_page(model=MODEL, input="test 17", more="wrong")
    source = digit_images()[1].sources[17]
    p = xformer.record(checkpoint().model, source[None, :-1]).logits[0, 0].softmax(dim=-1)
    [caption] = [element.value for element in app.caption if "Test image 17 is" in element.value]
    assert f"is a {int(source[-1])}" in caption
    assert f"The model predicts **{int(p.argmax())}** with {percent(p.max().item(), 1)}" in caption
    wrong = misclassified(predict_test_images(checkpoint().model))["image"].tolist()
    keys = [str(button.key) for button in app.button if str(button.key).startswith("wrong_")]
    assert [key for key in keys if key != "wrong_input"] == [f"wrong_{image}" for image in wrong]
    app.button(key=f"wrong_{wrong[0]}").click().run()
    assert not app.exception
    assert app.query_params["input"] == f"test {wrong[0]}"
    assert any("which is wrong" in element.value for element in app.caption)


def test_a_drawing_is_neither_right_nor_wrong(open_page: Open) -> None:
    app = open_page(model=MODEL, input="7-00g", mask="causal")  # an older link states the digit
    assert app.query_params["input"] == "drawn 00g"
    assert app.sidebar.text_input == []
    assert "the prediction is neither right nor wrong" in text(app)
    assert not any(verdict in text(app) for verdict in ("Right:", "Wrong:", "which is", "**Right", "**Wrong"))


def test_drawings_from_the_browser_are_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: Any
    for sent, kept in (
        ("g" * 64, "drawn " + "g" * 64),
        ("0" * 64, "drawn"),
        ("0" * 63, "drawn 00g"),
        ("<b>" + "0" * 61, "drawn 00g"),
        (["0"], "drawn 00g"),
    ):
        state = {"input": "drawn 00g", inputs.PAD: {"drawn": sent}}
        monkeypatch.setattr("streamlit.session_state", state)
        inputs._take_drawing()
        assert state["input"] == kept


def test_attention_over_the_image_is_that_of_the_run(open_page: Open) -> None:
    app = open_page(ATTENTION, model=MODEL, input="test 17", **{"from": "r2 c3"})
    trace = xformer.record(checkpoint().model, digit_images()[1].pixels[17][None])
    row = 1 + 4 + 2  # the class token, a whole row, and two more
    [table] = [found for found in tables(app) if "left" in found and {"special", "patch"} == set(found["kind"])]
    for layer in (0, 1):
        for head in range(4):
            shown = table[table["panel"] == f"layer {layer + 1} · head {head + 1}"]["value"]
            assert shown.tolist() == trace[f"encoder.{layer}.attn.pattern"][0, head, row].tolist()
        mean = table[table["panel"] == f"layer {layer + 1} · mean"]["value"].tolist()
        assert mean == pytest.approx(trace[f"encoder.{layer}.attn.pattern"][0, :, row].mean(dim=0).tolist(), abs=1e-6)
