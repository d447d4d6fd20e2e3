"""First principles: each step opens, its numbers are the library's, and its code runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import xformer
from pages.compute import cached_runs
from pages.first_principles import steps
from pages.first_principles.sentence import QUESTIONS
from tests.pages.code_and_picture import assert_code_draws_what_is_shown, left_by
from tests.pages.conftest import ROOT, Open, complaints, text
from xformer.analysis.principles import Sentence, head_of, product_variances
from xformer.formatting import percent

PRINCIPLES = "pages/first_principles/page.py"
STEPS = ("average", "qkv", "scale", "mask", "heads", "position", "model", "code", "parts")
MATRICES = ("average", "qkv", "mask", "heads", "position", "model")
"""The steps that draw matrices."""


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Collect the data of all matrices that are drawn."""
    found: list[dict[str, Any]] = []
    draw = steps.matrices
    monkeypatch.setattr(steps, "matrices", lambda data, **more: found.append(dict(data)) or draw(data, **more))
    return found


def computed(data: dict[str, Any], matrix: dict[str, Any]) -> torch.Tensor:
    """Compute a matrix from the operation and the operands in its `made`."""
    made, by_name = matrix["made"], {other["name"]: other for other in data["matrices"]}
    numbers = {
        name: torch.tensor([[0.0 if value is None else value for value in row] for row in other["values"]])
        for name, other in by_name.items()
    }
    if made["op"] == "softmax":
        hidden = torch.tensor([[value is None for value in row] for row in by_name[made["of"]]["values"]])
        return numbers[made["of"]].masked_fill(hidden, float("-inf")).softmax(dim=-1)
    right = numbers[made["right"]]
    right = right.T if made.get("by") == "rows" else right
    return numbers[made["left"]] @ right / made.get("divide", 1.0)


WORDS = ({}, {"text": "*no* <b>one $x$ [a](b)", "d": "8", "seed": "9"}, {"text": "a b", "d": "2"})


@pytest.mark.parametrize(("step", "link"), [(step, WORDS[i % 3]) for i, step in enumerate(STEPS)])
def test_every_step_opens_and_its_matrices_follow_from_each_other(
    open_page: Open, drawn: list[dict[str, Any]], step: str, link: dict[str, str]
) -> None:
    app = open_page(PRINCIPLES, step=step, **link)
    assert complaints(app) == []
    assert "What to notice" in text(app)
    assert app.query_params["step"] == step
    assert len(drawn) == (step in MATRICES)
    for data in drawn:
        for matrix in data["matrices"]:
            if matrix["made"] is None:
                continue
            rows = [[float("nan") if value is None else value for value in row] for row in matrix["values"]]
            values = torch.tensor(rows)
            found = computed(data, matrix)[:, : values.shape[1]]
            is_changed = found.new_ones(found.shape).triu(1).bool() if step == "mask" else values.isnan()
            assert torch.allclose(found[~is_changed], values[~is_changed], rtol=1e-4, atol=1e-5), matrix["name"]


@pytest.mark.parametrize("way", ["late", "zero"])
def test_each_wrong_way_to_mask_has_its_finding(open_page: Open, drawn: list[dict[str, Any]], way: str) -> None:
    app = open_page(PRINCIPLES, step="mask", causal=way)
    matrices = {one["name"]: one for one in drawn[0]["matrices"]}
    sums = matrices["A"]["sums"]
    if way == "late":
        assert min(sums) < 0.5
        assert f"sums to only {min(sums):.2f}" in text(app)
    else:
        assert sums == pytest.approx([1.0] * 5)
        leak = max(sum(row[i + 1 :]) for i, row in enumerate(matrices["A"]["values"]))
        assert f"{round(100 * leak)}%" in text(app)


def test_the_headline_follows_the_row_and_is_empty_near_uniform_attention(open_page: Open) -> None:
    own = Sentence("we are what we are", 4, 5).average().weights
    app = open_page(PRINCIPLES, text="we are what we are", d="4", seed="5", row="2")
    assert f"“what” takes {percent(own[2, 2].item(), 0)} of its new vector from itself." in text(app)
    app = open_page(PRINCIPLES, text="a b", d="2", vector="a:0,0", row="0")  # every score of “a” is 0
    assert "of its new vector" not in text(app)


def test_edits_are_in_the_link_and_forged_ones_are_ignored(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(PRINCIPLES, text="a b c", d="2")
    before = dict(app.query_params)
    forged = ({"word": [9, "x"]}, {"word": ["0", "x"]}, {"number": [0, 7, 1.0]}, {"number": [0, 0, "x"]}, {"row": 9})
    app = send(app, monkeypatch, *forged)
    assert complaints(app) == []
    assert dict(app.query_params) == before
    for sent, name, value in (
        ({"number": [1, 0, 99.0]}, "vector", "b:4,"),  # numbers are clamped
        ({"row": 2}, "row", "2"),
        ({"word": [1, "big dog"]}, "text", "a big dog c"),
    ):
        app = send(app, monkeypatch, sent)
        assert complaints(app) == []
        assert app.query_params[name].startswith(value)


def test_findings_are_hidden_until_their_numbers_are_predicted(
    open_page: Open, drawn: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(PRINCIPLES)
    assert not drawn[-1]["predict"]
    assert "predict" not in app.query_params
    assert "of its new vector" in text(app)
    app.toggle(key="principle_predict").set_value(True).run()
    assert drawn[-1]["predict"]
    assert app.query_params["predict"] == "1"
    app = send(app, monkeypatch, {"predicted": "heads"}, {"predicted": 3})  # not this step
    assert "of its new vector" not in text(app)
    app = send(app, monkeypatch, {"predicted": "average"})
    assert "of its new vector" in text(app)
    app = open_page(PRINCIPLES, predict="yes", step="model")
    assert len(app.warning) == 1
    assert not drawn[-1]["predict"]


def send(app: Any, monkeypatch: pytest.MonkeyPatch, *sent: dict[str, Any]) -> Any:
    """Run the app as if the browser had sent these changes."""
    with monkeypatch.context() as patch:
        patch.setattr(steps, "matrices", lambda data, *, changed, **more: [changed(one) for one in sent])
        assert not app.run().exception
    return app.run()


def test_a_vector_set_by_hand_is_used_and_can_be_reset(open_page: Open, drawn: list[dict[str, Any]]) -> None:
    app = open_page(PRINCIPLES, text="a b", d="2", vector="b:1.5,-2")
    assert complaints(app) == []
    assert drawn[0]["matrices"][0]["values"][1] == [1.5, -2.0]
    app.button(key="principle_own_undo").click().run()
    assert "vector" not in app.query_params
    assert drawn[-1]["matrices"][0]["values"][1] == pytest.approx(Sentence("a b", 2, 3).x[1].tolist())


def test_the_model_step_shows_a_head_of_a_trained_model(open_page: Open) -> None:
    app = open_page(PRINCIPLES, step="model", input="5 2", head="2.1", row="2")
    assert complaints(app) == []
    [code] = app.code
    own = xformer.read(ROOT / "checkpoints/reverse-decoder", "5 2")["decoder.1.attn.pattern"][0, 0]
    weights = left_by(code.value)["mixed"].weights
    assert torch.allclose(weights, own, rtol=0, atol=1e-5)  # the order of scaling differs
    assert f"{percent(own[2].max().item(), 0)} of its attention" in text(app)
    [link] = app.get("page_link")
    assert "head=2.1" in link.proto.query_string
    assert "model=reverse-decoder" in link.proto.query_string
    app.text_input(key="principle_input").set_value("1 2 3 4 5").run()
    assert "at most 4 numbers" in app.error[0].value


@pytest.mark.parametrize("step", QUESTIONS)
def test_a_step_without_matrices_asks_a_question_before_its_picture(step: str, open_page: Open) -> None:
    _, options, right, why = QUESTIONS[step]
    key = f"principle_question_{step}"
    note = {"scale": "Training may change both", "code": "Attention is a dozen lines", "parts": "one registered file"}[
        step
    ]
    assert note in text(open_page(PRINCIPLES, step=step))
    app = open_page(PRINCIPLES, step=step, predict="1")
    assert note not in text(app)
    for option in options:
        app.radio(key=key).set_value(option).run()
        assert [one.value for one in app.success] == ([why] if option == right else [])
        assert [why in one.value for one in app.info] == ([] if option == right else [True])
        assert complaints(app) == []
        assert note in text(app)


def test_the_model_step_states_a_prediction_only_at_output_positions() -> None:
    run = cached_runs.run("reverse-decoder", (3, 7, 12))
    mixed = head_of(run, layer=0, head=0)
    for row, is_due in ((len(mixed.names) - 1, True), (0, False)):
        assert ("After all layers the model predicts" in steps.head_note(run, mixed, 0, 0, row)) == is_due


def test_an_invalid_sentence_shows_an_error_and_keeps_the_last_one(open_page: Open) -> None:
    app = open_page(PRINCIPLES, text="a " + "b" * 200)
    [problem] = complaints(app)
    assert "at most 14 letters" in problem
    assert app.query_params["text"] == "the cat saw the dog"


def test_the_variance_is_measured_and_its_code_draws_it(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    link = {"step": "scale", "dk": "128", "seed": "4"}
    app = assert_code_draws_what_is_shown(open_page, monkeypatch, PRINCIPLES, link)
    shown = re.search(r"At d = 128 the variance of q · k over 2,000 pairs is ([\d.]+);", text(app))
    assert shown is not None
    measured = product_variances(seed=4).set_index("d").loc[128, "variance"]
    assert shown[1] == f"{measured:.4g}"
