"""Each benchmark can be imported, and those that need no browser run through in a small setting."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import benchmarks

MODULES = sorted(found.name for found in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."))
SMALL: dict[str, list[str]] = {
    "train_step": ["--rounds", "1", "--batch", "4"],
    "record": ["--rounds", "1"],
    "characters": ["--rounds", "1"],
    "train_many": ["--rounds", "1", "--sizes", "2", "--presets", "reverse-mirror"],
}


def test_there_are_benchmarks() -> None:
    assert {f"benchmarks.{name}" for name in SMALL} < set(MODULES)


@pytest.mark.parametrize("name", [name for name in MODULES if ".apps." not in name])
def test_a_benchmark_can_be_imported(name: str) -> None:
    assert importlib.import_module(name).__doc__


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module: Any = importlib.import_module(f"benchmarks.{name}")
    settled = SimpleNamespace(settings="as it is")
    monkeypatch.setattr("benchmarks.measure.tune_process", lambda threads: settled)  # its settings outlast a test
    monkeypatch.setattr("benchmarks.measure.WARM_UP", 0)
    monkeypatch.setattr(module, "LENGTHS", (4, 8), raising=False)
    monkeypatch.setattr(module, "BATCHES", 2, raising=False)
    monkeypatch.setattr(sys, "argv", [name, *SMALL[name], "--json"])
    module.main()
    found = json.loads(capsys.readouterr().out)
    assert found["rows"]
