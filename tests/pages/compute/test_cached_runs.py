"""Sessions, fragments and downloads hold no activations, only the keys of their readings."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
import torch

from pages.compute import cached_runs
from pages.compute.byte_cache import n_bytes, shared
from tests.pages.conftest import Open
from tests.training.tiny import add_model
from xformer.reading import Reading
from xformer.viz.packing import pack

CHANGED = {"input": "3 7 12 9 " * 13, "edits": "ablate:encoder.0.attn.1"}


class Kept:
    """Records the objects that Streamlit keeps for the whole visit, and weak references to everything computed for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.downloads: dict[str, Callable[[], Any]] = {}
        self.fragments: list[Any] = []
        self.computed: list[weakref.ref[Any]] = []
        run, fragment, download = cached_runs._run, st.fragment, st.download_button

        def computing(*key: Any) -> Reading:
            reading = run(*key)
            tensors = (tensor.untyped_storage() for name, tensor in reading.trace.activations.items() if "attn" in name)
            self.computed += [weakref.ref(one) for one in (reading, reading.trace, *tensors)]
            return reading

        def keeping(part: Any = None, **options: Any) -> Any:
            def part_with(*given: Any) -> Any:
                self.fragments.append((part, given))
                return fragment(part, **options)(*given)

            return part_with

        def offering(label: str, data: Any, *given: Any, key: str, **options: Any) -> bool:
            self.downloads[key] = data
            return download(label, data, *given, key=key, **options)

        monkeypatch.setattr(cached_runs, "_run", computing)
        monkeypatch.setattr(st, "fragment", keeping)
        monkeypatch.setattr(st, "download_button", offering)

    def alive(self) -> list[Any]:
        """Return the computed objects that are still in memory after the caches are emptied."""
        st.cache_data.clear()
        shared.sweep(unused=-1.0)
        gc.collect()
        return [computed for reference in self.computed if (computed := reference()) is not None]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    shared.sweep(unused=-1.0)
    yield Kept(monkeypatch)
    shared.sweep(unused=-1.0)


def test_a_visit_holds_no_activations(kept: Kept, open_page: Open, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # as for a long input
    monkeypatch.setattr("xformer.viz.packing.pack", partial(pack, max_thumbnail=8, budget=100_000))
    open_page("pages/attention/page.py", model=add_model(runs, 2, 50), **CHANGED)
    assert kept.computed
    assert max(n_bytes(one) for _, given in kept.fragments for one in given if not isinstance(one, bytes)) < 9_999
    first = {key: data() for key, data in kept.downloads.items() if key.startswith("csv_")}
    assert kept.alive() == []
    assert {key: kept.downloads[key]() for key in first} == first  # computed again


def test_a_shared_reading_behaves_like_the_reading(kept: Kept) -> None:
    key = ("reverse", (3, 7, 12), "as trained", "")
    reading, again = cached_runs.run(*key), cached_runs.run(*key)
    assert reading is again
    assert isinstance(reading, Reading)
    assert n_bytes(reading) < 1_000
    pattern, code = reading["encoder.0.attn.pattern"].clone(), reading.code
    assert kept.alive() == []
    assert reading.code == code
    assert kept.alive() == []  # the code is available without computing anything
    assert torch.equal(reading["encoder.0.attn.pattern"], pattern)
    assert type(reading.one(0)) is Reading
    assert reading.predicted == cached_runs.run(*key).predicted


def test_a_failed_computation_releases_its_reserved_bytes(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, run = add_model(runs, 2, 50), cached_runs._run
    monkeypatch.setenv("XFORMER_MAX_MEMORY", "1")
    monkeypatch.setattr(cached_runs, "_admitted", weakref.WeakSet())
    monkeypatch.setattr(cached_runs, "_run", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cached_runs.run(model, (3, 7, 12))
    assert not cached_runs._admitted
    monkeypatch.setattr(cached_runs, "_run", run)
    assert cached_runs.run(model, (3, 7, 12)).n_correct >= 0


def test_a_script_run_waits_until_its_bytes_fit_into_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_runs, "_admitted", weakref.WeakSet())
    monkeypatch.setenv("XFORMER_MAX_MEMORY", "1")
    others = [cached_runs._ScriptRun()]
    cached_runs._admit(others[0], 1_000_000, seconds=0.0)
    cached_runs._admit(cached_runs._ScriptRun(), 20_000, seconds=60.0)
    cached_runs._admit(cached_runs._ScriptRun(), 100_000, seconds=0.1)  # exceeds the budget; admitted after the timeout
    waiting = threading.Thread(target=cached_runs._admit, args=(cached_runs._ScriptRun(), 900_000, 60.0))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    others.clear()
    waiting.join(30.0)
    assert not waiting.is_alive()
