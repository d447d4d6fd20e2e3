"""A damaged run, report, card or run store is reported on screen, and everything else is still shown."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.pages.conftest import Open, plain, text, with_weights
from tests.pages.runs.test_page import table
from xformer.training import jobs
from xformer.training.card import valid_fields
from xformer.training.run_store import RunStore

RUNS, TRAIN = "pages/runs/page.py", "pages/train/page.py"


@pytest.fixture(autouse=True)
def _no_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "reconcile", lambda store: None)


def hurt(store: RunStore, run: str, statement: str) -> None:
    """Damage the run store as manual edits or a failing disk would."""
    with store.database.writing() as db:
        db.execute(statement.replace("RUN", f"'{run}'"))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runs SET model = '[', state = 'banana', step = 'many', figures = '{\"samples\": \"all\"}' WHERE id = RUN",
        "UPDATE metrics SET row = '{' WHERE run = RUN",
    ],
)
def test_runs_screen_shows_the_undamaged_runs(open_page: Open, runs: Path, statement: str) -> None:
    store = RunStore(runs)
    sound, run = with_weights(store, "sound"), with_weights(store, "hurt")
    hurt(store, run, statement)
    app = open_page(RUNS, runs=f"{run},{sound}")
    assert not app.exception
    assert list(table(app)["name"]) == ["hurt", "sound"]
    is_damaged = "UPDATE runs" in statement
    assert list(table(app)["state"]) == ["damaged" if is_damaged else "finished", "finished"]
    assert ("is damaged" in text(app)) == is_damaged
    assert ("damaged in the run store and left out of the curves" in text(app)) == ("metrics" in statement)


def test_train_screen_reports_a_damaged_run_and_can_start_another(open_page: Open, runs: Path) -> None:
    store = RunStore(runs)
    run = with_weights(store, "hurt")
    hurt(store, run, "UPDATE runs SET train = '{}' WHERE id = RUN")
    app = open_page(TRAIN)  # the visitor's latest run
    assert not app.exception
    assert "This run cannot be read" in app.error[0].value
    app.button(key="run_new").click().run()
    assert not app.exception
    assert app.button(key="start_reverse-small")


@pytest.mark.parametrize("page", [RUNS, TRAIN, "pages/home/page.py"])
def test_an_unreadable_run_store_does_not_break_other_screens(open_page: Open, runs: Path, page: str) -> None:
    runs.mkdir(parents=True)
    (runs / "runs.sqlite").write_bytes(b"no database at all, but long enough to be looked at" * 20)
    app = open_page(page)
    assert not app.exception
    shown_text = [plain(message.value) for kind in (app.error, app.warning) for message in kind]
    assert any("cannot be used" in words for words in shown_text) == (page in (RUNS, TRAIN))


GOOD: dict[str, Any] = {
    "name": "n", "title": "t", "about": "a", "preset": "reverse", "step": 5, "seconds": 1.5, "device": "cpu", "seed": 3,
    "train": {"steps": 5, "seed": 3},
    "figures": {"loss": 0.5, "token_accuracy": 1.0, "exact_match": 0.5, "samples": 9, "seed": 4},
}  # fmt: skip


def test_undamaged_fields_of_a_damaged_card_are_kept() -> None:
    """The fields must support the formats that Home uses."""
    assert valid_fields(GOOD) | {"train": GOOD["train"]} == GOOD
    for name, value in itertools.product(GOOD, [None, "x", [], {}, -1, 1e999, {"exact_match": "x"}, {"steps": "x"}]):
        card = valid_fields(GOOD | {name: value})
        assert isinstance(card["about"], str)
        assert f"{card['step']:,} {card['seconds']:.1f} {card['device'].upper()}"
        assert ("train" in card) == (name != "train")
        assert ("figures" in card) == (name != "figures")
        if "figures" in card:
            assert f"{card['figures']['samples']:,} {card['figures']['exact_match']:.0%} {card['figures']['loss']:.3f}"
        if "train" in card:
            assert f"{card['train']['peak_lr']:g} {card['seed']:,}"


def test_edge_case_figures_of_a_card_are_validated_like_its_other_figures() -> None:
    sound = {"loss": 0.5, "exact_match": 0.5, "samples": 9}
    odd = sound | {"token_accuracy": "much", "evil": ["x"]}
    assert valid_fields(GOOD | {"figures": GOOD["figures"] | {"edge_cases": odd}})["figures"]["edge_cases"] == sound
