"""First principles and the Bug lab: steps, rounds and bugs open, their numbers are the library's, their code runs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import xformer
from pages.bug_lab import browse
from pages.bug_lab.game import PLAYED, round_of
from pages.bug_lab.lab import example_of, fitting_model, has_effect, readings
from pages.compute import cached_runs
from pages.controls.text import escape_markdown
from pages.first_principles import steps
from tests.pages.code_and_picture import assert_code_draws, assert_code_draws_what_is_shown, charts_shown, left_by
from tests.pages.conftest import ROOT, Open, complaints, text
from tests.training.tiny import tiny_preset
from xformer.analysis.principles import Sentence, head_of, product_variances
from xformer.doctor.faults import BUGS
from xformer.doctor.faults.lab import lab_run, paired_training
from xformer.formatting import percent

PRINCIPLES, BUG_LAB = "pages/first_principles/page.py", "pages/bug_lab/page.py"
STEPS = ("average", "qkv", "scale", "mask", "heads", "position", "model", "parts")
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


def test_a_round_reveals_its_bug_only_when_it_is_over(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = charts_shown(monkeypatch)
    number = next(number for number in range(1, len(PLAYED) + 1) if round_of(number).broken == 0)
    now = round_of(number)
    app = open_page(BUG_LAB, round=str(number))
    assert complaints(app) == []
    assert len(shown) == 2
    assert not app.code  # it would name the bug
    everything = str(app.main)
    assert now.bug not in everything
    assert BUGS[now.bug].title not in everything
    app.button(key="bug_side_A").click().run()
    assert "Right, A is broken" in text(app)
    assert BUGS[now.bug].look_for not in str(app.main)
    shown.clear()
    app.button(key=f"bug_{now.choices.index(now.bug)}").click().run()
    assert complaints(app) == []
    assert dict(app.query_params) == {"round": str(number)}
    assert f"this bug: **{escape_markdown(BUGS[now.bug].title)}**" in text(app)
    assert "identified from its trace and weights" in text(app)
    assert_code_draws(app, shown)


def test_rounds_cover_each_bug() -> None:
    rounds = [round_of(number) for number in range(1, len(PLAYED) + 1)]
    assert sorted(one.bug for one in rounds) == sorted(PLAYED)
    assert {one.broken for one in rounds} == {0, 1}
    assert all(one.bug in one.choices and len(set(one.choices)) == 4 for one in rounds)
    assert len({one.choices.index(one.bug) for one in rounds}) == 4
    for bug in PLAYED:
        assert has_effect(readings(example_of(fitting_model(bug)), BUGS[bug]), BUGS[bug]), bug


def test_the_score_counts_identified_bugs_across_rounds(open_page: Open) -> None:
    app = open_page(BUG_LAB)
    for number, is_right, score in ((1, True, "1 of 1 identified"), (2, False, "1 of 2 identified")):
        now = round_of(number)
        app.button(key="bug_side_B").click().run()
        index = next(i for i, name in enumerate(now.choices) if (name == now.bug) == is_right)
        app.button(key=f"bug_{index}").click().run()
        assert score in text(app)
        app.button(key="bug_next").click().run()
        assert app.query_params["round"] == str(number + 1)


def test_links_to_a_model_or_an_unknown_bug_open_the_list_of_bugs(open_page: Open) -> None:
    for link, n_warnings in (({"model": "reverse"}, 0), ({"bug": "heisenbug"}, 1)):
        app = open_page(BUG_LAB, **link)
        assert not app.exception
        assert len(app.warning) == n_warnings
        assert app.query_params["bug"] == "no_scale"


def test_bugs_open_and_are_diagnosed(open_page: Open) -> None:
    """Bugs that are visible and invisible in a run. The chosen model stays, even where another one shows the bug."""
    app = open_page(BUG_LAB, model="reverse-small", bug="no_scale", show="diagnosis")
    app.session_state["bug_loop"] = "diagnosis"
    in_training = [bug for bug in BUGS.values() if bug.shows == "in training"]
    for bug in (BUGS["cross_roles_swapped"], in_training[0]):
        app.selectbox(key="bug_name").set_value(bug.name).run()
        assert complaints(app) == [], bug.name
        assert app.query_params["bug"] == bug.name
        assert app.query_params["model"] == "reverse-small"
        verdict = "The diagnosis finds nothing" if bug in in_training else "identified from its trace and weights"
        assert verdict in text(app), bug.name


def test_equal_rows_have_no_note() -> None:
    both = readings(example_of("reverse-small"), BUGS["init_too_large"])
    note = browse.row_note(both)
    assert re.search(r"largest weight of a row is [\d.]+ on average with the bug and [\d.]+ without", note)
    assert browse.row_note([both[0], both[0]]) == ""


def test_a_low_loss_is_pointed_out_only_where_it_is_low() -> None:
    view, bug = example_of("reverse-small"), BUGS["init_too_large"]
    right, wrong = readings(view, bug)
    for loss, is_low in ((3.28, True), (9.0, False)):
        shown = replace(wrong)
        vars(shown)["loss"] = loss  # override the cached loss of the broken model
        assert ("in the patterns, not in the loss" in browse.effect_sentence(view, bug, [right, shown], [])) == is_low
    assert "above ln" not in bug.look_for


@pytest.mark.parametrize(
    ("bug", "change"), [("cross_roles_swapped", {"edits": "positions:off"}), ("softmax_of_nothing", {})]
)
def test_the_losses_on_screen_are_those_of_the_code(open_page: Open, bug: str, change: dict[str, str]) -> None:
    app = open_page(BUG_LAB, model="reverse-seq2seq", bug=bug, show="attention", own="1", **change)
    assert complaints(app) == []
    space = left_by(app.code[0].value)
    losses = [space[run].loss for run in ("r1", "r2")]
    if losses[1] != losses[1]:
        assert "not a number with it" in text(app)
    else:
        shown = re.search(r"loss is ([\d.]+) nats without it and ([\d.]+) with it", text(app))
        assert shown is not None
        assert [float(shown[1]), float(shown[2])] == pytest.approx(losses, abs=6e-5)


def test_a_bug_that_does_not_apply_is_shown_on_another_model(open_page: Open) -> None:
    app = open_page(BUG_LAB, model="reverse", bug="forgotten-return", show="diagnosis")
    assert complaints(app) == []
    assert "Shown on **reverse\\-seq2seq**" in text(app)
    assert "it needs an encoder\\-decoder" in text(app)
    assert "identified from its trace and weights" in text(app)
    assert app.sidebar.selectbox(key="model").value == "reverse"


def test_a_model_without_an_effect_can_be_shown_anyway(open_page: Open) -> None:
    app = open_page(BUG_LAB, model="reverse-mirror", bug="no_scale")
    assert "on this input its answer stays the same" in text(app)
    app.button(key="bug_fit_own").click().run()
    assert complaints(app) == []
    assert app.query_params["own"] == "1"
    assert "the bug has no effect on the answer" in text(app)


def test_both_models_train_and_a_diverging_one_is_reported(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse, "STEPS", (5, 10))
    monkeypatch.setattr(browse, "BUDGET", 1e9)
    app = open_page(BUG_LAB, model="reverse-small", bug="softmax_of_nothing", show="training")
    app.button(key="bug_train").click().run()
    assert not app.exception
    assert any("not a number" in element.value or "nan" in element.value for element in app.info)
    drawn = charts_shown(monkeypatch)
    app = open_page(BUG_LAB, model="reverse-small", bug="loss_on_padding", own="1")
    drawn.clear()
    app.button(key="bug_train").click().run()
    assert complaints(app) == []
    assert_code_draws(app, drawn)
    shown = re.search(r"After 5 steps of training the loss is ([\d.]+) without the bug and ([\d.]+) with", text(app))
    assert shown is not None
    assert shown[1] != shown[2]


def test_a_paired_training_matches_separate_trainings() -> None:
    preset, bug = tiny_preset("decoder"), BUGS["no_scale"]
    *_, last = paired_training(preset, bug, 12)
    assert last.is_final
    for side, what in (("right", None), ("wrong", bug)):
        reports = list(lab_run(preset, what, steps=12, device="cpu").reports())
        assert [row[f"loss_{side}"] for row in last.rows] == [report.loss for report in reports]
        assert [row[f"gradient_{side}"] for row in last.rows] == [report.gradient_norm for report in reports]


def test_each_bug_is_in_exactly_one_group() -> None:
    assert sorted(bug.name for bugs in browse.GROUPS.values() for bug in bugs) == sorted(BUGS)
