"""The shared cache: bounded in bytes, computes each value once for concurrent requests, and frees unused values."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch

from pages.compute.byte_cache import ByteCache, budget, n_bytes


@dataclass(frozen=True)
class Kept:
    pattern: torch.Tensor
    view: torch.Tensor
    more: dict[str, np.ndarray]


def test_size_counts_shared_storage_once() -> None:
    pattern = torch.zeros(100, 100)
    kept = Kept(pattern, pattern.T, {"x": np.zeros(1000)})
    assert 48_000 <= n_bytes(kept) < 49_000
    assert 4 * 1010 <= n_bytes(torch.nn.Linear(100, 10)) < 4500
    assert n_bytes([kept, kept]) < 49_500
    assert n_bytes(pd.DataFrame({"a": np.zeros(1000)})) >= 8000


def test_least_recently_used_value_is_evicted_first() -> None:
    cache = ByteCache(lambda: 1_000_000)
    made: list[str] = []

    def ask(name: str, floats: int = 100_000) -> None:
        cache.get(name, lambda: made.append(name) or torch.zeros(floats))

    for name in ("a", "b", "a", "c", "a", "b"):  # two of them fit
        ask(name)
    assert made == ["a", "b", "c", "b"]
    assert cache.total <= 1_000_000
    ask("large", 10_000_000)
    assert cache.total == 40_000_000  # the newest value stays even if it exceeds the budget
    ask("a")
    assert cache.total == 400_000


def test_sweep_frees_unused_values_and_makes_space_for_a_computation() -> None:
    cache = ByteCache(lambda: 5_000)
    cache.put("a", torch.zeros(1000))
    time.sleep(0.01)
    cache.sweep(unused=60)
    assert cache.peek("a") is not None
    cache.put("newest", 1)
    cache.sweep(more=2_000)
    assert cache.total < 100
    cache.sweep(unused=-1.0)
    assert cache.total == 0


def test_recount_includes_growth_of_a_cached_value() -> None:
    class Grows(dict[str, torch.Tensor]):
        pass

    cache = ByteCache(lambda: 1_000_000)
    grows = cache.get("a", Grows)
    grows["more"] = torch.zeros(1_000)
    assert cache.total < 1_000
    cache.recount()
    assert cache.total >= 4_000


def test_simultaneous_requests_compute_one_value() -> None:
    cache, made = ByteCache(), []

    def make() -> int:
        made.append(1)
        time.sleep(0.05)
        return 7

    with ThreadPoolExecutor(6) as visitors:
        assert list(visitors.map(lambda _: cache.get("key", make), range(6))) == [7] * 6
    assert len(made) == 1


def test_failure_is_not_cached() -> None:
    cache = ByteCache()
    with pytest.raises(ZeroDivisionError):
        cache.get("key", lambda: 1 // 0)
    assert cache.get("key", lambda: 5) == 5


def test_budget_comes_from_the_environment_or_from_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_MAX_MEMORY", "3")
    assert budget() == 3 * 1024**2
    for machine, nonsense, allowed in ((4, "", 1), (12, "much", 1.5), (512, "-1", 2), (4, "١", 1)):  # GiB
        monkeypatch.setattr("pages.compute.byte_cache.machine_bytes", lambda machine=machine: machine * 1024**3)
        monkeypatch.setenv("XFORMER_MAX_MEMORY", nonsense)
        assert budget() == allowed * 1024**3
