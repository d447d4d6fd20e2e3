"""Bug lab: rounds and bugs open, their numbers are the library's, and their code runs."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from pages.bug_lab import browse
from pages.bug_lab.game import ATTEMPTS, CHANGES, LEVELS, MOST_POINTS, N_EACH, Round, round_of
from pages.bug_lab.lab import Guess, example_of, fitting_model, has_effect, moved, readings
from pages.controls.text import escape_markdown
from tests.pages.code_and_picture import assert_code_draws, charts_shown, left_by
from tests.pages.conftest import Open, complaints, text
from tests.training.tiny import tiny_preset
from xformer.doctor.faults import BUGS
from xformer.doctor.faults.lab import lab_run, paired_training

BUG_LAB = "pages/bug_lab/page.py"


def test_a_round_reveals_its_bug_only_when_it_is_over(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = charts_shown(monkeypatch)
    number = next(number for number in range(1, len(CHANGES) + 1) if round_of(number).broken == 0)
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


def test_rounds_cover_each_bug_and_become_harder() -> None:
    rounds = [round_of(number) for number in range(1, len(CHANGES) + 1)]
    assert sorted(one.bug for one in rounds) == sorted(CHANGES) == sorted(
        bug.name for bug in BUGS.values() if bug.shows != "in training"
    )  # fmt: skip
    assert {one.broken for one in rounds} == {0, 1}
    assert all(one.bug in one.choices and len(set(one.choices)) == 4 for one in rounds)
    assert len({one.choices.index(one.bug) for one in rounds}) == 4
    for game in range(N_EACH):
        of_game = rounds[game * LEVELS : (game + 1) * LEVELS]
        assert [one.level for one in of_game] == list(range(1, LEVELS + 1))
        changes = [CHANGES[one.bug] for one in of_game]
        assert changes == sorted(changes, reverse=True)
    again = [round_of(number).bug for number in range(len(CHANGES) + 1, 2 * len(CHANGES) + 1)]
    assert sorted(again) == sorted(CHANGES)
    assert again != [one.bug for one in rounds]


def test_the_difficulty_of_each_bug_is_measured() -> None:
    assert list(CHANGES.values()) == sorted(CHANGES.values(), reverse=True)
    for bug, change in CHANGES.items():
        both = readings(example_of(fitting_model(bug)), BUGS[bug])
        assert has_effect(both, BUGS[bug]), bug
        is_nan = any(pattern.isnan().any() for pattern in both[1].trace.patterns().values())
        assert is_nan == math.isinf(change), bug
        assert is_nan or max(moved(both).values()) == pytest.approx(change, abs=6e-4), bug


def test_each_wrong_answer_costs_an_attempt() -> None:
    now = Round(4, "a", 1, ("a", "b", "c", "d"))
    for guess, points, is_over in (
        (Guess(1), 12, False),
        (Guess(0), 8, False),
        (Guess(1, ("a",)), 12, True),
        (Guess(0, ("a",)), 8, True),
        (Guess(1, ("b", "a")), 8, True),
        (Guess(0, ("b",)), 4, False),
        (Guess(0, ("b", "c")), 0, True),
        (Guess(1, ("b", "c", "d")), 0, True),
        (Guess(1, (), has_given_up=True), 0, True),
    ):
        assert (now.points(guess), now.is_over(guess)) == (points, is_over), guess
    assert not now.is_over(None)


def test_a_game_has_a_score_and_an_end(open_page: Open) -> None:
    app = open_page(BUG_LAB, round="1")
    assert f"**Level 1 of {LEVELS}**" in text(app)
    now = round_of(1)
    app.button(key=f"bug_side_{'AB'[1 - now.broken]}").click().run()  # wrong
    assert f"No, {'AB'[now.broken]} is broken." in text(app)
    other = next(name for name in now.choices if name != now.bug)
    app.button(key=f"bug_{now.choices.index(other)}").click().run()  # wrong
    assert escape_markdown(BUGS[other].look_for) in text(app)
    assert app.button(key=f"bug_{now.choices.index(other)}").disabled
    assert "1 point left" in text(app)
    app.button(key=f"bug_{now.choices.index(now.bug)}").click().run()
    assert f"{now.level} of {ATTEMPTS * now.level} points." in text(app)
    app.button(key="bug_next").click().run()
    app.button(key="bug_give_up").click().run()
    assert "The answer: " in text(app)
    assert "**1** of 9 points" in text(app)
    assert not [one for one in app.button if one.key == "bug_yours"]
    app.session_state["bug_round"] = LEVELS
    app.run()
    last = round_of(LEVELS)
    app.button(key=f"bug_side_{'AB'[last.broken]}").click().run()
    app.button(key=f"bug_{last.choices.index(last.bug)}").click().run()
    assert complaints(app) == []
    assert [one.value for one in app.subheader] == [f"{1 + ATTEMPTS * LEVELS} of {MOST_POINTS} points"]
    assert f"2 of {LEVELS} bugs identified, 1 of them at the first attempt. {LEVELS - 3} rounds" in text(app)
    missed = round_of(2).bug
    assert [one.key for one in app.button if one.key and one.key.startswith("bug_again_")] == [f"bug_again_{missed}"]
    app.button(key="bug_next").click().run()
    assert app.query_params["round"] == str(LEVELS + 1)
    assert f"**Level 1 of {LEVELS}**" in [one.value for one in app.markdown]  # without points of the last game


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
