"""Sweeps on the Train screen: starting one, watching it, and opening its models on other screens."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from pages.train.sweep import sweep_finding, sweep_notes, time_left
from tests.pages.code_and_picture import left_by
from tests.pages.conftest import Open, everything
from tests.pages.runs.test_page import RUNS, with_menu
from tests.pages.train.test_page import PAGE, buttons, status_of
from tests.training.test_sweeps import members, train
from tests.training.tiny import tiny_preset
from xformer.errors import ConfigError
from xformer.presets import PRESETS
from xformer.training import jobs
from xformer.training.run_store import RunStore
from xformer.training.sweeps import READY, SWEPT, USUAL, check_alike, read_values, sweep

PRESET = tiny_preset(steps=10, log_every=5, snapshot_every=5)


@pytest.fixture(autouse=True)
def _no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xformer.training.jobs.next_for", lambda *_: [])
    monkeypatch.setattr(jobs, "reconcile", lambda _: None)


def submit(runs: Path, **settings: Any) -> tuple[RunStore, str]:
    store = RunStore(runs)
    return store, jobs.submit(store, PRESET, owner="here", name="Many", sweep=settings or {"seed": [0, 1]})


def test_predefined_sweeps_and_suggested_values_can_be_trained_together() -> None:
    for ready in READY.values():
        presets = sweep(ready.preset, **ready.settings)
        check_alike(presets)
        assert 9 <= len(presets) <= 64
        for name, values in ready.settings.items():
            assert name in SWEPT
            assert len(set(values)) == len(values) > 1
    for name in SWEPT:
        assert len(sweep(PRESETS["modular"], **{name: read_values(name, USUAL[name])})) > 1


def test_a_predefined_sweep_starts_with_one_click_and_is_shown(open_page: Open, runs: Path) -> None:
    app = open_page(PAGE)
    app.segmented_control(key="train_group").set_value("seeds").run()
    app.button(key="start_sweep_seeds").click().run()
    assert not app.exception
    (entry,) = RunStore(runs).entries()
    assert (entry.name, entry.state) == ("Sixteen seeds of the reverser", "queued")
    assert entry.sweep is not None
    assert entry.sweep["settings"] == {"seed": list(range(16))}
    assert app.query_params["run"] == entry.id
    assert status_of(app) == "16 models are waiting in the queue: it is next."


def test_any_preset_can_be_trained_with_many_seeds(open_page: Open, runs: Path) -> None:
    app = open_page(PAGE)
    one = everything(app.button_group(key="train_group").set_value("own").run())
    app.segmented_control(key="train_way").set_value("seeds").run()
    assert ["models in turns, " in words for words in (one, everything(app))] == [False, True]
    app.segmented_control(key="train_group").set_value("seeds").run()
    app.number_input(key="train_seeds").set_value(5).run()
    app.button(key="start_reverse-mirror").click().run()
    (entry,) = RunStore(runs).entries()
    assert entry.name == f"{PRESETS['reverse-mirror'].title} × 5 seeds"
    assert entry.sweep is not None
    assert entry.sweep["settings"] == {"seed": [0, 1, 2, 3, 4]}


def test_settings_of_a_sweep_are_validated_and_started(open_page: Open, runs: Path) -> None:
    app = open_page(PAGE)
    app.segmented_control(key="train_group").set_value("sweep").run()
    app.text_input(key="sweep_values_0_peak_lr").set_value("fast").run()
    assert "The values of learning rate must be numbers separated by commas, got 'fast'" in everything(app)
    assert app.button(key="start_reverse-small").disabled
    app.text_input(key="sweep_values_0_peak_lr").set_value("0.001 0.003").run()
    app.selectbox(key="sweep_name_1").set_value("peak_lr").run()
    assert "two different settings, got learning rate twice" in everything(app)
    app.selectbox(key="sweep_name_1").set_value("warmup").run()
    app.text_input(key="sweep_values_1_warmup").set_value("0.1; 3").run()
    app.button(key="start_reverse-small").click().run()
    assert "warmup must be from 0 to 1, got 3.0" in everything(app)
    app.text_input(key="sweep_values_1_warmup").set_value("0.1; 0.2").run()
    app.button(key="start_reverse-small").click().run()
    (entry,) = RunStore(runs).entries()
    assert entry.name == "Reverse, two layers, one head: learning rate × warm-up"
    assert entry.sweep is not None
    assert entry.sweep["settings"] == {"peak_lr": [0.001, 0.003], "warmup": [0.1, 0.2]}


def test_typed_values_of_a_sweep_are_parsed() -> None:
    assert read_values("seed", "0 .. 2, 7") == [0, 1, 2, 7]
    assert read_values("seed", "4,4;5 8-9") == [4, 5, 8, 9]
    assert read_values("peak_lr", "1e-3, 0.003") == [0.001, 0.003]
    for name, text in (("seed", ""), ("seed", "1.5"), ("seed", "3-1"), ("peak_lr", "nan"), ("peak_lr", "0-3")):
        with pytest.raises(ConfigError, match=r"separated by commas, got '.*'; for example"):
            read_values(name, text)
    with pytest.raises(ConfigError, match="has at most 1,000 values, got more in '0-9999999999'; for example 0-3"):
        read_values("seed", "0-9999999999")


def test_a_finished_sweep_opens_each_model(open_page: Open, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, run = submit(runs, weight_decay=[0.0, 0.5], seed=[0, 1])
    train(store, run, monkeypatch)
    app = open_page(PAGE, run=run)
    assert status_of(app).startswith("Finished: 4 models, ")
    assert len(app.get("vega_lite_chart")) == 3
    table = app.dataframe[0].value
    assert list(zip(table["weight decay"], table["seed"], strict=True)) == [(0, 0), (0, 1), (0.5, 0), (0.5, 1)]
    assert "0 of 4 models** got 99% of 8 held-out inputs right." in everything(app)
    app.session_state["sweep_member"] = (run, 2)  # a click on its map
    assert "weight decay 0.5, seed 0" in everything(app.run())
    app.session_state["sweep_member"] = (run, 9)
    assert "weight decay 0, seed 0" in everything(app.run())
    app = app.select_slider(key=f"sweep_step_{run}").set_value(5).run()
    assert not app.exception
    code = next(block.value for block in app.code if "StoredSweep" in block.value)
    assert len(left_by(code, runs.parent)["picture"]) == 3
    app.button(key="sweep_open_film").click().run()
    assert not app.exception
    assert app.query_params["run"] == members(store, run)[0].id
    assert status_of(app).startswith("Finished after")


def test_remaining_time_is_shown_once_the_speed_is_known() -> None:
    member = SimpleNamespace(id="a", preset=PRESET)
    sweep: Any = SimpleNamespace(members=[member, member], runs={}, rows_of={"a": [{"step": 5}]})
    known: Any = SimpleNamespace(live={"steps_per_second": 0.1})
    assert time_left(sweep, known) == " At this speed, about 2 min left at most."
    unknown: Any = SimpleNamespace(live={})
    assert time_left(sweep, unknown) == ""


def test_a_running_sweep_is_stopped_and_resumed(open_page: Open, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, run = submit(runs, steps=[5, 20], seed=[0, 1])

    def look_and_stop() -> None:
        app = open_page(PAGE, run=run)
        assert status_of(app).startswith("Training 2 of 4 models together on the CPU: step 12 of 20, 2 have ended.")
        assert status_of(app).endswith(" left at most.")
        assert "0 of 4 models** got 99% of 8 held-out inputs right, 2 are not decided." in everything(app)
        assert {"run_stop", "run_new"} <= buttons(app)
        assert not {"run_pause", "run_resume", "run_rate"} & buttons(app)
        app.button(key="run_stop").click().run()

    train(store, run, monkeypatch, {12: look_and_stop})
    app = open_page(PAGE, run=run)
    assert status_of(app) == (
        "Stopped at step 13 of 20; 2 of 4 models had finished. Resume continues all stopped models; each of them can "
        "also be resumed on its own."
    )
    app.button(key="run_resume").click().run()
    assert not app.exception
    assert store.entry(run).state == "queued"


def test_notes_on_a_sweep_appear_only_if_they_hold() -> None:
    member = SimpleNamespace(values={"weight_decay": 0.0, "seed": 0})
    entry = SimpleNamespace(train={"held_out": 8, "target": 1.0})
    sweep: Any = SimpleNamespace(is_judged=True, members=(member,), entry=entry)

    def notes(solved: list[bool | None], steps: list[float]) -> str:
        table = {"weight_decay": [0.0, 0.0, 1.0, 1.0], "solved": solved, "steps_to_solve": steps, "member": [*"abcd"]}
        outcomes = pd.DataFrame(table).astype({"solved": object})
        return "\n".join([sweep_finding(sweep, outcomes), *sweep_notes(sweep, outcomes)])

    none = float("nan")
    assert "none has done so or ended yet" in notes([None] * 4, [none] * 4)
    found = notes([True, True, False, False], [100, 300, none, none])
    assert "**2 of 4 models** got 100% of 8 held-out inputs right." in found
    assert "**a** at step 100, the last **b** at step 300: 3.0 × as many" in found
    assert "With a weight decay of 0, all decided models solved the task; with 1, none did." in found
    undecided = notes([True, None, False, None], [100, none, none, none])
    assert "With a" not in undecided  # one model of each is not a pattern
    assert "1 of 4 models** got 100% of 8 held-out inputs right, 2 are not decided." in undecided
    assert "The first" not in notes([True, True, False, False], [100, 100, none, none])


def test_models_are_listed_below_their_sweep(open_page: Open, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunStore(runs).add(PRESET, owner="here", name="earlier")
    store, run = submit(runs)
    train(store, run, monkeypatch)
    store.add(PRESET, owner="here", name="later")
    app = open_page(RUNS)
    app.button_group(key="runs_view").set_value("table").run()
    assert list(app.dataframe[0].value["name"]) == ["later", "Many", "↳ seed 1", "↳ seed 0", "earlier"]
    app.session_state["runs_text"] = "seed"
    assert list(app.run().dataframe[0].value["name"]) == ["Many · seed 1", "Many · seed 0"]
    app.session_state["runs_text"] = ""
    with_menu(app, run).button(key=f"runs_delete_{run}").click().run()
    assert list(app.dataframe[0].value["name"]) == ["later", "earlier"]
    app.button(key="runs_undo").click().run()
    assert len(store.entries()) == 5
