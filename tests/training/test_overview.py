"""The table of runs: each number is its run's own, and of the settings only those that differ are there."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.training.tiny import tiny_preset
from xformer.training.overview import differing, overview, settings_of
from xformer.training.run_store import RunStore, latest_rows


def test_only_settings_that_differ_have_a_column(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    one = store.add(tiny_preset(peak_lr=1e-3))
    two = store.add(tiny_preset(peak_lr=1e-2))
    entries = [store.entry(one), store.entry(two)]
    table = differing(entries)
    assert table.columns.tolist() == ["peak_lr"]
    assert table["peak_lr"].to_dict() == {one: 1e-3, two: 1e-2}
    assert pd.api.types.is_float_dtype(table["peak_lr"])
    assert differing(entries[:1]).columns.tolist() == []
    assert differing([]).empty


def test_what_follows_from_the_task_or_another_setting_is_not_named_twice(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    one, two = store.add(tiny_preset("encoder")), store.add(tiny_preset("decoder", lr_changes=((3, 1e-4),)))
    table = differing([store.entry(one), store.entry(two)])
    assert table.columns.tolist() == ["lr_changes", "architecture"]
    assert table["lr_changes"].tolist() == ["[]", "[[3, 0.0001]]"]
    settings = settings_of(store.entry(one))
    assert (settings["longest"], settings["max_len"], settings["task"]) == (5, 17, "reverse")
    assert settings_of(store.entry(store.add(tiny_preset(model={"causal": True}))))["causal"] is True


def test_no_run_at_all_is_a_table_with_the_same_columns(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.add(tiny_preset())
    assert overview([], {}).columns.tolist() == overview(store.entries(), {}).columns.tolist()


def test_the_overview_has_the_last_report_and_the_final_score(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    one, two, none = (store.add(tiny_preset(), name=name) for name in ("one", "two", "none"))
    for run, last in ((one, 0.5), (two, 0.75)):
        store.put_rows(
            run, [{"step": step, "loss": 3.0 / step, "held_out_exact_match": last * step / 10} for step in (5, 10)]
        )
    store.change(two, figures='{"exact_match": 0.9}', step=10, seconds=1.5)
    entries = store.entries()
    latest = latest_rows(store)
    assert {run: row["step"] for run, row in latest.items()} == {one: 10, two: 10}
    table = overview(entries, latest)
    assert table.index.tolist() == [none, two, one]
    assert table.loc[[one, two], "exact match"].tolist() == [pytest.approx(0.5), 0.9]
    assert table.loc[one, "loss"] == pytest.approx(0.3)
    assert pd.isna(table.loc[none, "exact match"])
    assert (table.loc[two, "step"], table.loc[two, "steps"], table.loc[two, "seconds"]) == (10, 12, 1.5)
    assert table.loc[one, "created"].timestamp() == pytest.approx(store.entry(one).created, abs=1e-3)
