"""The shared cache is bounded in bytes; an answer is computed once for all who wait, and freed when unused."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch

from pages.shared.byte_cache import ByteCache, budget, n_bytes


@dataclass(frozen=True)
class Kept:
    pattern: torch.Tensor
    view: torch.Tensor
    more: dict[str, np.ndarray]


def test_the_size_of_what_is_kept_counts_shared_storage_once() -> None:
    pattern = torch.zeros(100, 100)
    kept = Kept(pattern, pattern.T, {"x": np.zeros(1000)})
    assert 48_000 <= n_bytes(kept) < 49_000
    assert 4 * 1010 <= n_bytes(torch.nn.Linear(100, 10)) < 4500
    assert n_bytes([kept, kept]) < 49_500
    assert n_bytes(pd.DataFrame({"a": np.zeros(1000)})) >= 8000


def test_what_was_not_asked_for_longest_goes_first() -> None:
    cache = ByteCache(lambda: 1_000_000)
    made: list[str] = []

    def ask(name: str, floats: int = 100_000) -> None:
        cache.get(name, lambda: made.append(name) or torch.zeros(floats))

    for name in ("a", "b", "a", "c", "a", "b"):  # two of them fit
        ask(name)
    assert made == ["a", "b", "c", "b"]
    assert cache.total <= 1_000_000
    ask("large", 10_000_000)
    assert cache.total == 40_000_000  # it will be requested again at once
    ask("a")
    assert cache.total == 400_000


def test_what_was_worked_out_in_portions_is_kept_too() -> None:
    cache = ByteCache(lambda: 1_000_000)
    assert cache.peek("a") is None
    cache.put("a", torch.ones(3))
    assert cache.peek("a") is cache.get("a", lambda: None)
    assert cache.total == 12


def test_unused_bytes_are_returned() -> None:
    cache = ByteCache(lambda: 1_000_000)
    cache.get("a", lambda: torch.zeros(1000))
    time.sleep(0.01)
    cache.sweep(unused=60)
    assert cache.total == 4000
    cache.sweep(unused=0.005)
    assert cache.total == 0


def test_what_an_answer_remembers_is_counted_anew() -> None:
    class Grows(dict[str, torch.Tensor]):
        pass

    cache = ByteCache(lambda: 1_000_000)
    grows = cache.get("a", Grows)
    grows["more"] = torch.zeros(1_000)
    assert cache.total < 1_000
    cache.recount()
    assert cache.total >= 4_000


def test_simultaneous_requests_wait_for_one_answer() -> None:
    cache, made, start = ByteCache(), [], threading.Barrier(6)

    def make() -> int:
        made.append(1)
        time.sleep(0.05)
        return 7

    answers: list[int] = []

    def visitor() -> None:
        start.wait()
        answers.append(cache.get("key", make))

    visitors = [threading.Thread(target=visitor) for _ in range(6)]
    for one in visitors:
        one.start()
    for one in visitors:
        one.join()
    assert answers == [7] * 6
    assert len(made) == 1


def test_a_failure_is_not_kept() -> None:
    cache = ByteCache()
    with pytest.raises(ZeroDivisionError):
        cache.get("key", lambda: 1 // 0)
    assert cache.get("key", lambda: 5) == 5


def test_the_budget_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_MAX_MEMORY", "3")
    assert budget() == 3 * 1024**2
    monkeypatch.setattr("pages.shared.byte_cache.machine_bytes", lambda: 2 * 1024**3)
    for nonsense in ("", "-1", "much", "١"):
        monkeypatch.setenv("XFORMER_MAX_MEMORY", nonsense)
        assert budget() == 1024 * 1024**2


@pytest.mark.parametrize(("machine", "allowed"), [(4, 1), (12, 1.5), (512, 2)])  # GiB
def test_the_default_budget_is_a_share_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, machine: int, allowed: float
) -> None:
    monkeypatch.delenv("XFORMER_MAX_MEMORY", raising=False)
    monkeypatch.setattr("pages.shared.byte_cache.machine_bytes", lambda: machine * 1024**3)
    assert budget() == allowed * 1024**3


def test_kept_answers_give_way_to_a_computation_before_it_begins() -> None:
    cache = ByteCache(lambda: 1_000)
    cache.put("kept", torch.zeros(150))
    cache.put("newest", 1)
    cache.sweep(more=300)
    assert cache.total >= 600
    cache.sweep(more=600)
    assert cache.total < 600
