"""Tables of runs: the overview, the settings that differ, and the CSV and TensorBoard exports."""

from __future__ import annotations

import io
import struct
import zipfile
from collections import defaultdict
from typing import Any

import pandas as pd
import pytest

from tests.training.tiny import tiny_preset
from xformer.training.run_store import RunStore, latest_rows
from xformer.training.tables import differing, event_files, folder_name, metrics_csv, overview, scalars, settings_of


def test_only_settings_that_differ_have_a_column(store: RunStore) -> None:
    one = store.add(tiny_preset(peak_lr=1e-3))
    two = store.add(tiny_preset(peak_lr=1e-2))
    entries = [store.entry(one), store.entry(two)]
    table = differing(entries)
    assert table.columns.tolist() == ["peak_lr"]
    assert table["peak_lr"].to_dict() == {one: 1e-3, two: 1e-2}
    assert pd.api.types.is_float_dtype(table["peak_lr"])
    assert differing(entries[:1]).columns.tolist() == []
    assert differing([]).empty


def test_settings_that_follow_from_others_have_no_column(store: RunStore) -> None:
    one, two = store.add(tiny_preset("encoder")), store.add(tiny_preset("decoder", lr_changes=((3, 1e-4),)))
    table = differing([store.entry(one), store.entry(two)])
    assert table.columns.tolist() == ["lr_changes", "architecture"]
    assert table["lr_changes"].tolist() == ["[]", "[[3, 0.0001]]"]
    settings = settings_of(store.entry(one))
    assert (settings["longest"], settings["max_len"], settings["task"]) == (5, 17, "reverse")
    assert settings_of(store.entry(store.add(tiny_preset(model={"causal": True}))))["causal"] is True


def test_overview_has_the_last_report_and_the_final_score(store: RunStore) -> None:
    one, two, none = (store.add(tiny_preset(), name=name) for name in ("one", "two", "none"))
    for run, last in ((one, 0.5), (two, 0.75)):
        rows = [{"step": step, "loss": 3.0 / step, "held_out_exact_match": last * step / 10} for step in (5, 10)]
        store.put_rows(run, rows)
    store.change(two, figures='{"exact_match": 0.9}', step=10, seconds=1.5)
    entries = store.entries()
    latest = latest_rows(store)
    assert {run: row["step"] for run, row in latest.items()} == {one: 10, two: 10}
    table = overview(entries, latest)
    assert table.index.tolist() == [none, two, one]
    assert table.columns.tolist() == overview([], {}).columns.tolist()
    assert table.loc[[one, two], "exact_match"].tolist() == [pytest.approx(0.5), 0.9]
    assert table.loc[one, "loss"] == pytest.approx(0.3)
    assert pd.isna(table.loc[none, "exact_match"])
    assert (table.loc[two, "step"], table.loc[two, "steps"], table.loc[two, "seconds"]) == (10, 12, 1.5)
    assert table.loc[one, "created"].timestamp() == pytest.approx(store.entry(one).created, abs=1e-3)


ROWS = [
    {"step": 5, "seconds": 0.5, "loss": 2.25, "held_out_exact_match": 0.125, "note": "", "done": False},
    {"step": 11, "seconds": 1.5, "loss": 1e-7, "scores": {"encoder.0.attn": [0.5, 0.25]}, "done": True},
]


def records(content: bytes) -> list[bytes]:
    """Return the records of a TFRecord file, each stored as length, checksum, data, checksum."""
    found, at = [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        found.append(content[at + 12 : at + 12 + length])
        at += 16 + length
    return found


def test_event_files_contain_every_number_with_its_step_and_time() -> None:
    from tensorboardX.proto.event_pb2 import Event

    zipped = zipfile.ZipFile(io.BytesIO(event_files({"a/b 1": ROWS, "empty": []}, {"a/b 1": 1000.25, "empty": 7.0})))
    assert zipped.namelist() == ["a-b 1/events.out.tfevents.1000.xformer", "empty/events.out.tfevents.7.xformer"]
    first, *events = [Event.FromString(record) for record in records(zipped.read(zipped.namelist()[0]))]
    assert first.file_version == "brain.Event:2"
    found: dict[tuple[int, float], dict[str, float]] = defaultdict(dict)
    for event in events:
        for value in event.summary.value:
            assert value.tag == value.metadata.display_name.replace(" ", "_")
            found[event.step, event.wall_time][value.metadata.display_name] = value.simple_value
    expected: dict[tuple[int, float], Any] = {
        (5, 1000.75): {"loss/training": 2.25, "held out/exact match": 0.125},
        (11, 1001.75): {"loss/training": 1e-7, "heads/encoder.0.attn.0": 0.5, "heads/encoder.0.attn.1": 0.25},
    }
    assert found == {at: pytest.approx(values) for at, values in expected.items()}
    assert len(records(zipped.read(zipped.namelist()[1]))) == 1


def test_scalars_are_finite_numbers_only() -> None:
    row = {"step": 1, "loss": float("nan"), "gradient_norm": float("inf"), "note": "x", "done": True}
    assert scalars(row | {"best_head_score": 0.5}) == {"heads/best_head_score": 0.5}


def test_csv_has_every_row_with_its_run_and_escapes_formulas() -> None:
    table = pd.read_csv(io.BytesIO(metrics_csv({"one": ROWS, "=2+3": ROWS[:1]})))
    assert table["run"].tolist() == ["one", "one", "'=2+3"]
    assert table["loss"].tolist() == [2.25, 1e-7, 2.25]
    assert table["encoder.0.attn.1"].dropna().tolist() == [0.25]


def test_folder_names_cannot_escape_the_zip() -> None:
    for name in ("../../etc", "C:\\x", "..", "a\nb"):
        assert not set(folder_name(name)) & set("/\\:.\n")
        assert folder_name(name)
