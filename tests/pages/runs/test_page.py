"""The Runs screen: cards, table, chosen runs, curves, notes, renaming, deletion, and the Ray cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from streamlit.dataframe_util import convert_arrow_bytes_to_pandas_df
from streamlit.testing.v1 import AppTest

from pages.controls.text import escape_markdown
from pages.runs.chosen import run_notes
from tests.pages.conftest import Open, complaints, text, with_weights
from tests.training.tiny import tiny_preset
from xformer.presets import PRESETS
from xformer.training import liveness
from xformer.training.executors.relay import RELAY_LOCK, Status
from xformer.training.run_store import RunStore
from xformer.training.tables import differing

RUNS = "pages/runs/page.py"


def add(
    store: RunStore, name: str, *, state: str = "finished", owner: str = "here", last: float = 0.5, **recipe: Any
) -> str:
    """Add a run with two reports but no weights, and return its id."""
    run = store.add(tiny_preset(**recipe), name=name, owner=owner, state=state)
    names = ("loss", "held_out_loss", "held_out_token_accuracy", "gradient_norm", "learning_rate")
    numbers = dict.fromkeys(names, 0.25)
    rows = [
        {"step": step, "steps": 12, "seconds": step / 10, "held_out_exact_match": last * step / 12, **numbers}
        for step in (6, 12)
    ]
    store.put_rows(run, rows)
    store.change(run, step=12, seconds=1.2)
    return run


def with_menu(app: AppTest, run: str) -> AppTest:
    """Return the app with the menu of a run's card open."""
    app.session_state[f"runs_menu_{run}"] = True
    return app.run()


def table(app: AppTest) -> Any:
    return app.dataframe[0].value


def drawn(app: AppTest, column: str) -> list[dict[str, Any]]:
    """Return the rows of the first data set with this column in the first chart."""
    [chart, *_] = app.get("vega_lite_chart")
    frames = [convert_arrow_bytes_to_pandas_df(found.data.data) for found in chart.proto.datasets]
    return next(frame.to_dict("records") for frame in frames if column in frame.columns)


def charts(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in app.get("vega_lite_chart")]


def test_without_runs_the_screen_shows_an_example(open_page: Open, runs: Path) -> None:
    app = open_page(RUNS)
    assert "Nothing has been trained here yet" in text(app)
    assert app.button(key="runs_first").label == "Train the first model"
    assert not runs.exists()  # opening the screen does not create a run store


def test_each_run_has_a_card_with_a_picture_and_actions(open_page: Open, runs: Path) -> None:
    store = RunStore(runs)
    add(store, "**slow**", peak_lr=1e-4)
    run = with_weights(store, "one with weights")
    app = open_page(RUNS)
    assert not app.dataframe
    assert len(app.image) == 1
    assert f"**{escape_markdown('**slow**')}**  \n:small[finished · **50.0%** exact match]" in text(app)
    assert "`peak_lr 0.0001`" in text(app)
    with_menu(app, run)
    assert [link.proto.query_string for link in app.get("page_link")] == [f"run={run}"]
    assert {f"runs_delete_{run}", f"runs_again_{run}"} <= {one.key for one in app.button}
    app.button_group(key="runs_view").set_value("table").run()
    found = table(app)
    assert found["name"].tolist() == ["one with weights", "**slow**"]  # the latest first
    assert found["exact_match"].tolist()[1] == 0.5
    assert found["peak_lr"].tolist()[1] == 1e-4
    assert app.query_params["view"] == "table"
    app.button(key=f"runs_open_{run}_Home").click().run()
    assert not app.exception
    assert app.query_params["model"] == f"{run}@12"


def test_a_link_restores_the_chosen_runs_and_the_filter(open_page: Open, runs: Path) -> None:
    store = RunStore(runs)
    low, _, other = add(store, "zz low"), add(store, "zz high"), add(store, "other")
    store.tag(low, ["lecture"])
    app = open_page(RUNS, runs=f"{low},{other}", find="ZZ", x="seconds", smooth="0.6")
    assert table(app)["name"].tolist() == ["zz high", "zz low"]
    assert app.query_params["runs"] == f"{low},{other}"
    assert "2 of 3 runs · 2 chosen · 1 of them hidden by the filter." in text(app)
    assert "seconds" in json.dumps(charts(app)[0])
    app = open_page(RUNS, find="zz", tag="lecture", state="finished", view="table")  # an older link
    assert table(app)["name"].tolist() == ["zz low"]


def test_unknown_values_in_a_link_get_a_warning_and_an_unmatched_filter_is_cleared(open_page: Open, runs: Path) -> None:
    run = add(RunStore(runs), "only")
    assert [line.count("not exist here") for line in complaints(open_page(RUNS, runs="../x"))] == [1]
    app = open_page(RUNS, runs=run, find="zzz", x="gas")
    assert [line.count("not exist here") for line in complaints(app)] == [1]
    assert "No runs match." in text(app)
    assert "0 of 1 run" in text(app)
    app.button(key="runs_show_all").click().run()
    assert not app.exception
    assert table(app)["name"].tolist() == ["only"]
    assert "find" not in app.query_params


def test_curves_are_the_reports_of_the_chosen_runs(open_page: Open, runs: Path) -> None:
    store = RunStore(runs)
    one, two = add(store, "same name", last=0.5), add(store, "same name", last=1.0)
    app = open_page(RUNS, runs=f"{one},{two}", curves="held_out_exact_match")
    [spec] = charts(app)
    assert spec["layer"][0]["encoding"]["y"]["title"] == "exact match"
    lines = drawn(app, "raw")
    found = {(row["run"], row["step"]): row["value"] for row in lines}
    names = {run: f"same name · {run[:4]}" for run in (one, two)}
    assert found == {(names[one], 6): 0.25, (names[one], 12): 0.5, (names[two], 6): 0.5, (names[two], 12): 1.0}
    fewest = "needs the fewest steps to get 99% of unseen sequences right: it does so at step 12, after 1.2 s"
    assert fewest in text(app)
    assert "The two runs have the same settings, and the losses of all 2 reports that they share are equal" in text(app)


def noticed(store: RunStore) -> str:
    entries = store.entries()
    return " ".join(run_notes(entries, {entry.id: store.rows(entry.id) for entry in entries}, differing(entries)))


def rewrite(store: RunStore, run: str, **values: Any) -> None:
    store.put_rows(run, [row | values for row in store.rows(run)])


def test_notes_appear_only_if_they_hold(runs: Path) -> None:
    store = RunStore(runs)
    add(store, "one", last=1.0, log_every=5)
    other = add(store, "other", last=1.0, log_every=5)
    assert "equal to the last digit" in noticed(store)
    assert "needs the fewest steps" in noticed(store)
    rewrite(store, other, loss=0.26)
    assert "same settings" not in noticed(store)  # their curves differ
    rewrite(store, other, loss=0.25)
    store.change(other, parent="0123abcd@5")
    assert "same settings" not in noticed(store)  # their initial weights differ
    store.change(other, task=json.dumps(PRESETS["sort"].task.to_json()))
    assert noticed(store) == ""  # steps on different tasks are not comparable
    store.delete(other)
    other = add(store, "other", log_every=6)
    assert "`log_every` is 6" in noticed(store)
    assert "is due to it" not in noticed(store)  # the reporting interval has no effect
    store.delete(other)
    faster = add(store, "faster", peak_lr=0.5, log_every=5)
    assert "is due to it" in noticed(store)
    store.change(faster, device="cuda:0")
    assert "is due to it" not in noticed(store)


def test_a_run_on_a_text_has_no_exact_match(open_page: Open, runs: Path) -> None:
    store = RunStore(runs)
    run = add(store, "a text", last=1.0)
    store.change(run, task=json.dumps(PRESETS["characters"].task.to_json()))
    assert "99%" not in noticed(store)
    app = open_page(RUNS, runs=run)
    assert table(app)["exact_match"].isna().all()
    assert "No chosen run has reported its exact match yet." in text(app)


def test_a_run_can_be_renamed_untagged_deleted_and_restored(open_page: Open, runs: Path) -> None:
    store = RunStore(runs)
    one, two = add(store, "one"), add(store, "![x](http://evil/x.png)")
    store.tag(one, ["lecture"])
    app = with_menu(open_page(RUNS, runs=f"{two},{one}"), one)
    app.text_input(key=f"runs_name_{one}").set_value("two\n  words").run()
    assert store.entry(one).name == app.text_input(key=f"runs_name_{one}").value == "two words"
    app.text_input(key=f"runs_name_{one}").set_value("   ").run()
    assert ["needs a name with at least one letter" in line for line in complaints(app)] == [True]
    assert store.entry(one).name == app.text_input(key=f"runs_name_{one}").value == "two words"
    app.multiselect(key=f"runs_tags_{one}").set_value([]).run()
    assert store.entry(one).tags == ()
    with_menu(app, two).button(key=f"runs_delete_{two}").click().run()
    assert [entry.id for entry in store.entries()] == [one]
    assert table(app)["name"].tolist() == ["two words"]
    assert f"Deleted “{escape_markdown('![x](http://evil/x.png)')}”" in text(app)
    app.button(key="runs_undo").click().run()
    assert [entry.id for entry in store.entries()] == [two, one]
    assert app.query_params["runs"] == f"{one},{two}"
    assert not app.exception


def test_status_of_the_ray_cluster_and_its_nodes(open_page: Open, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(runs)
    run = add(store, "far away")
    store.change(run, device="cpu", node="node_*7*")
    monkeypatch.setenv("XFORMER_EXECUTOR", "ray")
    assert "Ray" not in text(open_page(RUNS))  # its status is not known yet
    lock = liveness.take(runs / RELAY_LOCK)
    assert lock is not None
    with os.fdopen(lock):
        Status("a:1", nodes=3, cpus=8, free_cpus=2.5).write(runs)
        app = with_menu(open_page(RUNS), run)
        assert not app.exception
        assert ":material/hub: Ray: 2.5 of 8 CPUs free on 3 nodes." in text(app)
        assert f"on cpu of {escape_markdown('node_*7*')}" in text(app)
        Status("a:1", "The *cluster* cannot be reached.").write(runs)
        gone = text(open_page(RUNS))
        assert f"{escape_markdown('The *cluster* cannot be reached.')} Runs continue when it is back." in gone
