"""The Train screen: presets and settings, one run per click, and every state of a run."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
import streamlit as st
from streamlit.runtime.scriptrunner import StopException
from streamlit.testing.v1 import AppTest

from pages.compute.byte_cache import shared
from pages.train import form, status
from pages.train.run import MAX_FRAMES, RunView, Timeline, finding
from pages.train.setup import FIRST, OWN, expected, grouped, shipped_training, watchable
from tests.pages.code_and_picture import charts_shown, left_by, without_names
from tests.pages.conftest import Open, complaints, everything, plain, with_weights
from tests.training.tiny import tiny_preset
from xformer.files import snapshot_steps
from xformer.formatting import percent
from xformer.presets import PRESETS
from xformer.tasks import Task
from xformer.training import liveness
from xformer.training.card import TAG
from xformer.training.run_record import ELSEWHERE
from xformer.training.run_store import RunStore
from xformer.viz.timeline import Frame, TimelineLayer
from xformer.viz.training_curves import metrics_frame

PAGE = "pages/train/page.py"


@pytest.fixture(autouse=True)
def _no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xformer.training.jobs.next_for", lambda *_: [])
    monkeypatch.setattr("pages.train.run.BUDGET", 60.0)  # all snapshots in one rerun, on a busy machine too


def finished(runs: Path, architecture: str = "encoder", **change: Any) -> str:
    """Add a trained run that took half a second, and return its id."""
    return with_weights(RunStore(runs), "Tiny", architecture, **({"seconds": 0.5} | change))


def status_of(app: AppTest) -> str:
    """Return the status of the run, without the backslashes that escape Markdown."""
    return app.get("progress")[0].proto.text.replace("\\", "")


def figures_of(app: AppTest) -> list[str]:
    """Return the figures on the screen, each preceded by its name."""
    html = "".join(element.proto.body for element in app.get("html"))
    return [f"{name} {value}" for name, value in re.findall(r"<span>(.*?)</span><b>(.*?)</b>", html)]


def buttons(app: AppTest) -> set[str]:
    return {button.key for button in app.button if button.key}


def test_a_visitor_without_runs_can_start_every_preset(open_page: Open) -> None:
    app = open_page(PAGE)
    assert {key for key in buttons(app) if key.startswith("start_")} == {f"start_{name}" for name in FIRST}
    started: set[str | None] = set()
    for group in grouped():
        app.button_group(key="train_group").set_value(group).run()
        assert not app.exception
        started |= buttons(app)
    assert {f"start_{name}" for name in PRESETS} <= started


def test_more_snapshots_do_not_change_what_a_preset_learns() -> None:
    for preset in PRESETS.values():
        shown = watchable(preset)
        assert shown.train.replace(snapshot_every=preset.train.snapshot_every) == preset.train
        assert (shown.model, shown.task) == (preset.model, preset.task)
        assert 10 <= shown.train.steps // shown.train.snapshot_every <= MAX_FRAMES


def test_start_queues_one_run_and_shows_it(open_page: Open, runs: Path) -> None:
    app = open_page(PAGE)
    app.button(key="start_reverse-small").click().run()
    assert not app.exception
    (entry,) = RunStore(runs).entries()
    assert (entry.state, entry.preset, entry.owner) == ("queued", "reverse-small", "here")
    assert entry.settings().model == PRESETS["reverse-small"].model
    assert app.query_params["run"] == entry.id
    assert "Waiting in the queue: it is next." in status_of(app)
    app.button(key="run_new").click().run()
    app.button(key="start_reverse-mirror").click().run()
    assert "1 run comes before it" in status_of(app)


def own(app: AppTest) -> AppTest:
    return app.button_group(key="train_group").set_value(OWN).run()


def number(app: AppTest, label: str) -> Any:
    return next(field for field in app.number_input if field.label == label)


def test_own_settings_are_checked_and_trained_under_the_given_name(open_page: Open, runs: Path) -> None:
    app = own(open_page(PAGE))
    assert not app.exception
    assert not app.error
    app = number(app, "Heads").set_value(3).run()
    assert [plain(error.value) for error in app.error] == [
        "d_head defaults to d_model / n_heads, and 32 is not divisible by 3; give d_head, for example d_head=10."
    ]
    assert app.button(key="start_own").disabled
    app = number(app, "Heads").set_value(2).run()
    assert not app.error
    app = number(app, "Layers").set_value(3).run()
    app = app.selectbox(key="own_device").set_value("cpu").run()
    app = app.text_input(key="own_name").set_value("three *layers*").run()
    app.button(key="start_own").click().run()
    (entry,) = RunStore(runs).entries()
    assert (entry.name, entry.preset, entry.wanted) == ("three *layers*", "own", "cpu")
    assert (entry.settings().model.n_layers, entry.settings().model.n_heads) == (3, 2)
    assert "three *layers*" in [text.value for text in app.text]  # literally, not as Markdown


def test_the_form_returns_every_preset_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(st, "session_state", {})
    for preset in map(watchable, PRESETS.values()):
        form.put(preset, "own")
        assert form.settings(preset, "own") == preset
    form.put(PRESETS["induction"], "own")
    assert form._options(form.ARCHITECTURE, "own") == ("decoder",)  # the only architecture for this task


def test_expected_times_come_from_runs_on_the_same_kind_of_device_then_from_shipped_models(runs: Path) -> None:
    store, preset = RunStore(runs), PRESETS["reverse-small"]
    twice = replace(preset, name="another", train=preset.train.replace(steps=2 * preset.train.steps))
    assert expected(preset, [], gpu=False).seconds == shipped_training()["reverse-small"][0]
    of_its_size = expected(twice, [], gpu=False)
    assert of_its_size.seconds == pytest.approx(2 * shipped_training()["reverse-small"][0])
    assert "reverse-small" in of_its_size.basis
    assert expected(preset, [], gpu=True).seconds is None
    preset = tiny_preset(steps=1000)
    for how in ({"device": "cuda:0"}, {"wanted": ELSEWHERE}, {"tags": json.dumps([TAG])}):
        store.change(store.add(preset, state="finished"), **({"device": "cpu", "step": 100, "seconds": 9.0} | how))
    assert expected(preset, store.entries(), gpu=True).seconds == pytest.approx(90.0)
    assert "scaled by size" in expected(preset, store.entries(), gpu=False).basis
    store.change(store.add(preset, state="stopped"), device="cpu", step=100, seconds=2.0)
    here = expected(preset, store.entries(), gpu=False)
    assert here.seconds == pytest.approx(20.0)
    assert here.basis == "as for an earlier run of this model on this CPU"
    assert expected(preset, store.entries(), gpu=False, n=16).seconds == pytest.approx(320.0)  # in turns
    assert expected(preset, store.entries(), gpu=True, n=16).seconds is None


def test_a_finished_run_shows_its_timeline_and_curves(open_page: Open, runs: Path) -> None:
    run = finished(runs, "decoder", figures=json.dumps({"exact_match": 0.25, "samples": 2000}))
    before = shared.total
    app = open_page(PAGE, run=run)
    assert complaints(app) == []
    assert status_of(app) == "Finished after a second on the CPU: 25.00% exact match on 2,000 unseen examples."
    assert figures_of(app)[:2] == ["Step 12 / 12", "Exact match 0%"]
    assert len(app.get("vega_lite_chart")) == 2
    [cache] = [entry for key, entry in shared._entries.items() if str(key).startswith(f"('snapshots', '{run}'")]
    assert cache.size > 100
    assert shared.total >= before + cache.size  # timelines count towards the memory of all visitors
    assert {"run_new", "run_again", "open_Attention", "fork_start"} <= buttons(app)
    for typed, n in (("1 2 ninety", 1), ("1 2 3 4", 0)):
        (box,) = [box for box in app.text_input if box.label == "Watch it learn on"]
        box.set_value(typed).run()
        assert len(complaints(app)) == n
    app.button(key="open_Attention").click().run()  # keeps the input
    assert (app.query_params["model"], app.query_params["input"]) == (f"{run}@12", "1 2 3 4")
    open_page(PAGE, run=run).button(key="run_again").click().run()
    again, first = RunStore(runs).entries()
    assert (again.id != first.id, again.settings()) == (True, first.settings())


def test_the_code_draws_the_charts_on_screen(open_page: Open, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = with_weights(RunStore(runs), "Tiny", "encoder-decoder")
    shown = charts_shown(monkeypatch)
    app = open_page(PAGE, run=run, step="4")
    shown.clear()
    app.session_state["train_more"] = True
    app.run()
    (code,) = app.code
    assert "viz.timeline_still(" in code.value
    assert str(runs) not in code.value  # the server's path stays private
    *curves, _ = left_by(code.value, runs.parent)["picture"]
    shown = [one for one in shown if "best" not in one["datasets"]["table_0"]]  # head scores are a separate file
    assert len(curves) == len(shown) == 4
    for chart, spec in zip(curves, shown, strict=True):
        pd.testing.assert_frame_equal(chart.data, spec["datasets"]["table_0"], check_dtype=False)
        left_out = ("config", "data", "datasets", "$schema")
        drawn, sent = ({k: v for k, v in one.items() if k not in left_out} for one in (chart.to_dict(), spec))
        assert without_names(drawn) == without_names(sent)


def test_a_link_opens_a_step_that_can_be_forked_and_an_unknown_step_gets_a_warning(open_page: Open, runs: Path) -> None:
    run = finished(runs)
    assert snapshot_steps(RunStore(runs).folder_of(run)) == [0, 4, 8, 12]
    assert any("does not exist here" in warning for warning in complaints(open_page(PAGE, run=run, step="x")))
    app = open_page(PAGE, run=run, step="8")
    assert "from the weights of step 8, with" in everything(app)
    row = max((row for row in RunStore(runs).rows(run) if row["step"] <= 8), key=lambda row: row["step"])
    assert status_of(app).startswith("The figures are for step 8. The run itself: Finished after a second")
    assert f"Step {row['step']} / 12" in figures_of(app)
    assert f"Exact match {percent(row['held_out_exact_match'], 1)}" in figures_of(app)
    assert app.query_params["step"] == "8"
    app = number(app, "Steps").set_value(30).run()
    app.button(key="fork_start").click().run()
    assert not app.exception
    fork = RunStore(runs).entries()[0]
    assert (fork.parent, fork.settings().train.steps) == (f"{run}@8", 30)
    assert fork.settings().model == RunStore(runs).entry(run).settings().model


def test_live_figures_are_used_only_for_the_latest_step(runs: Path) -> None:
    run = finished(runs, state="running", live=json.dumps({"loss": 9.0, "gradient_norm": 8.0}))
    entry, rows = RunStore(runs).entry(run), RunStore(runs).rows(run)
    now, earlier = (dict(status.figures(entry, rows, shown, is_text=False)) for shown in (None, rows[-2]["step"]))
    assert (now["Loss"], now["Gradient"]) == ("9.0000", "8.000")
    row = rows[-2]
    assert (earlier["Loss"], earlier["Gradient"]) == (f"{row['loss']:.4f}", f"{row['gradient_norm']:.3f}")


def test_each_state_has_its_sentence_and_buttons(open_page: Open, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, store = finished(runs, owner="0" * 32), RunStore(runs)
    # The picture does not depend on the state.
    monkeypatch.setattr("pages.train.run.timeline_of", lambda *_: Timeline((), (), 0))
    for state, message, phrase, there in (
        ("queued", "", "Waiting in the queue", {"run_stop"}),
        ("finished", liveness.RESTARTED, f". {liveness.RESTARTED}", set()),
        ("paused", "", "its process has ended. Resume continues from", {"run_step", "run_resume", "run_stop"}),
        ("stopped", "", "Stopped at step 12", {"run_resume"}),
        ("failed", "The loss became nan at step 7.", "Failed at step 12", {"run_resume"}),
    ):
        store.change(run, state=state, message=message)
        app = open_page(PAGE, run=run)
        assert phrase in status_of(app)
        assert {"run_pause", "run_step", "run_resume", "run_stop"} & buttons(app) == there
        assert [error.value.replace("\\", "") for error in app.error] == [message] * (state == "failed")
    app.button(key="run_resume").click().run()
    assert store.entry(run).state == "queued"
    store.change(run, model=json.dumps({"d_model": "wide"}))
    app = open_page(PAGE, run=run)
    assert "cannot be read" in plain(app.error[0].value)


def test_scoring_shows_progress_and_can_be_ended(open_page: Open, runs: Path) -> None:
    how = {"live": json.dumps({"scoring": [500, 2000, 10.0]}), "worker": "x", "pid": 1}
    run = finished(runs, state="running", **how)
    lock = liveness.take(RunStore(runs).folder_of(run) / liveness.LOCK)  # as the run's process would
    assert lock is not None
    app = open_page(PAGE, run=run)
    assert "Trained. Scoring it on unseen examples: 500 of 2,000, about 30 s left." in status_of(app)
    assert app.button(key="run_stop").label == "End scoring"
    assert app.button(key="run_pause").disabled
    app.button(key="run_stop").click().run()
    with RunStore(runs).database.reading() as db:
        assert [row["kind"] for row in db.execute("SELECT kind FROM commands")] == ["stop"]
    os.close(lock)


@pytest.mark.parametrize(
    ("scores", "shares", "waiting", "found"),
    [
        ([0.1, 0.6, 0.9], [0.0, 1.0, 1.0], 0, "The **anti-diagonal** appears at step 10 (layer 1 head 2: 10% → 90%). "
         "All held-out answers are right from step 10."),
        ([0.1, 0.2, 0.4], [0.0, 0.5, 1.0], 0, ""),  # no head has the pattern, and a single good report may be chance
        ([0.6, 0.5, 0.9], [0.0, 1.0, 0.9], 0, ""),  # the pattern existed before training, and the accuracy fell again
        # Snapshots that are not evaluated yet leave out the sentence on the pattern.
        ([0.1, 0.6, 0.9], [0.0, 0.995, 1.0], 5, "At least 99.5% of held-out answers are right from step 10."),
    ],
)  # fmt: skip
def test_headline_is_true_of_the_run(scores: list[float], shares: list[float], waiting: int, found: str) -> None:
    task, preset, one = Task(PRESETS["reverse-small"].task), PRESETS["reverse-small"], Mock()
    layer = TimelineLayer("encoder.0.attn", "layer 1", 2, (), ())
    frames = [Frame(10 * i, {}, {layer.path: [0.05, score]}, (), (), ()) for i, score in enumerate(scores)]
    metrics = metrics_frame([{"step": 10 * i, "held_out_exact_match": share} for i, share in enumerate(shares)])
    assert finding(RunView(one, preset, task, one, Timeline(tuple(frames), (layer,), waiting), metrics, ())) == found


def test_too_large_an_input_shows_an_error(open_page: Open, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an imported model with very many heads would exhaust the server's memory."""
    run, frame_of = finished(runs), Mock()
    monkeypatch.setattr("pages.train.run.frame_of", frame_of)
    for most, memory, phrase in ((10, "1024", "A timeline of 2 heads over"), (10**9, "0", "of memory")):
        monkeypatch.setattr("pages.compute.run_thumbnail.MAX_CELLS", most)
        monkeypatch.setenv("XFORMER_MAX_MEMORY", memory)
        app = open_page(PAGE, run=run)
        assert [phrase in plain(error.value) for error in app.error] == [True]
        assert not frame_of.called
        assert "Finished after" in status_of(app)


def test_settings_that_need_too_much_memory_cannot_be_started(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_MAX_RUN_MEMORY", "100")
    app = own(open_page(PAGE))
    assert not app.exception
    assert ["of memory, and this server allows 104.9 MB" in plain(error.value) for error in app.error] == [True]
    assert app.button(key="start_own").disabled
    app.button_group(key="train_group").set_value("quick").run()
    app.button(key=f"start_{FIRST[0]}").click().run()
    assert "of memory, and this server allows 104.9 MB" in everything(app)
    assert RunStore(os.environ["XFORMER_RUNS"]).entries() == []


def test_two_clicks_start_one_run_and_an_interrupted_click_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    visit, started = status.TrainState(), list[str]()
    monkeypatch.setattr(status, "train_state", lambda: visit)
    with pytest.raises(StopException):
        status.start_once(1, Mock(side_effect=StopException))

    def start() -> str:
        time.sleep(0.05)  # the second press arrives in the meantime
        started.append("0123abcd")
        return started[-1]

    presses = [threading.Thread(target=status.start_once, args=(1, start)) for _ in range(2)]
    for press in presses:
        press.start()
    for press in presses:
        press.join()
    assert (started, visit.run) == (["0123abcd"], "0123abcd")
    status.start_once(2, lambda: "another")  # the ticket of the next rerun
    assert visit.run == "another"
