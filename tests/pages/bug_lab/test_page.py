"""Bug lab: rounds and bugs open, their numbers are the library's, and their code runs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pages.bug_lab import browse
from pages.bug_lab.game import PLAYED, round_of
from pages.bug_lab.lab import example_of, fitting_model, has_effect, readings
from pages.controls.text import escape_markdown
from tests.pages.code_and_picture import assert_code_draws, charts_shown, left_by
from tests.pages.conftest import Open, complaints, text
from tests.training.tiny import tiny_preset
from xformer.doctor.faults import BUGS
from xformer.doctor.faults.lab import lab_run, paired_training

BUG_LAB = "pages/bug_lab/page.py"


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
