"""Each benchmark can be imported, and those that need no browser run through in a small setting."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

import pytest

import benchmarks
from benchmarks import figures

ROOT = Path(__file__).parents[1]
MODULES = [found.name for found in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]
FOLDER = ROOT / "benchmarks"
SMALL: dict[str, list[str]] = {
    "train_step": ["--rounds", "1", "--batch", "4"],
    "train_many": ["--rounds", "1", "--sizes", "2", "--presets", "reverse-mirror"],
}


def test_every_benchmark_can_be_imported() -> None:
    for name in MODULES:
        assert ".apps." in name or importlib.import_module(name).__doc__, name


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs_and_has_what_the_table_of_figures_reads(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    module: Any = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr("benchmarks.measure.prepare_process", lambda threads: None)  # its settings outlast a test
    monkeypatch.setattr("benchmarks.measure.WARM_UP", 0)
    monkeypatch.setattr("benchmarks.measure.SLEEP", 0.0)
    monkeypatch.setattr("benchmarks.measure.KEPT", tmp_path)
    monkeypatch.setattr(module, "LENGTHS", (4, 8), raising=False)
    monkeypatch.setattr(module, "BATCHES", 2, raising=False)
    monkeypatch.setattr(sys, "argv", [name, *SMALL[name], "--json", "--keep"])
    module.main()
    found = json.loads(capsys.readouterr().out)
    assert found["rows"]
    kept = figures.Kept.of(tmp_path)
    lines = [one for one in figures.figures() if one.table == found["benchmark"]]
    assert lines
    for one in lines:
        for where, column in filter(None, (one.ours, one.peer, one.ratio)):
            assert {*where, column} <= found["rows"][0].keys()
    if name in ("train_step", "characters"):  # whose rows are not made smaller
        assert all(kept.value(one.table, one.ratio) for one in lines)
