"""What visitors share is bounded in bytes, made once for everyone who waits, and given back when nobody asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
    assert n_bytes(torch.nn.Linear(100, 10)) == 4 * 1010
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
    assert cache.total == 40_000_000  # whoever asked for it will ask again at once
    ask("a")
    assert cache.total == 400_000


def test_what_was_worked_out_in_portions_is_kept_too() -> None:
    cache = ByteCache(lambda: 1_000_000)
    assert cache.peek("a") is None
    cache.put("a", torch.ones(3))
    assert cache.peek("a") is cache.get("a", lambda: None)
    assert cache.total == 12


def test_what_nobody_uses_is_given_back() -> None:
    cache = ByteCache(lambda: 1_000_000)
    cache.get("a", lambda: torch.zeros(1000))
    time.sleep(0.01)
    cache.sweep(unused=60)
    assert cache.total == 4000
    cache.sweep(unused=0.005)
    assert cache.total == 0


def test_what_is_in_use_elsewhere_counts_and_is_given_to_who_asks() -> None:
    cache = ByteCache(lambda: 1_000_000)
    used = cache.get("a", lambda: torch.zeros(100_000))
    cache.sweep(unused=-1.0)
    assert (cache.total, cache.checked_out) == (0, 400_000)
    cache.get("b", lambda: torch.zeros(100_000))
    cache.get("c", lambda: torch.zeros(100_000))
    assert (cache.total, cache.checked_out) == (400_000, 400_000)  # without what is in use, both would have stayed
    assert cache.get("a", lambda: None) is used
    assert cache.checked_out == 0
    cache.sweep(unused=-1.0)
    del used
    assert cache.checked_out == 0
    assert cache.peek("a") is None


def test_what_an_answer_remembers_is_counted_anew() -> None:
    class Grows(dict[str, torch.Tensor]):
        pass

    cache = ByteCache(lambda: 1_000_000)
    grows = cache.get("a", Grows)
    grows["more"] = torch.zeros(1_000)
    assert cache.total < 1_000
    cache.recount()
    assert cache.total >= 4_000


def test_whoever_asks_meanwhile_waits_for_the_one_answer() -> None:
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


class Busy:
    """Computations that count how many run at once, each for a moment."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.order: list[str] = []
        self._lock = threading.Lock()

    def work(self, name: str = "", seconds: float = 0.05) -> str:
        with self._lock:
            self.order.append(name)
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(seconds)
        with self._lock:
            self.now -= 1
        return name


def at_once(*work: Callable[[], object]) -> None:
    """Run each in a thread of its own; fail where one has not ended after some seconds."""
    threads = [threading.Thread(target=one, daemon=True) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10.0)
    assert not any(thread.is_alive() for thread in threads), "a computation waits for ever"


@pytest.mark.parametrize(("n_bytes", "allowed"), [(300, 3), (400, 2), (1_000, 1), (5_000, 1), (0, 6)])
def test_computations_that_exceed_the_budget_together_wait_for_each_other(n_bytes: int, allowed: int) -> None:
    cache, busy, start = ByteCache(lambda: 1_000), Busy(), threading.Barrier(6)

    def visitor(key: int) -> None:
        start.wait()
        cache.get(key, busy.work, peak_bytes=lambda: n_bytes)

    at_once(*(partial(visitor, key) for key in range(6)))
    assert busy.most == allowed
    assert len(busy.order) == 6


def test_computations_are_let_in_in_the_order_of_their_requests() -> None:
    cache, busy = ByteCache(lambda: 1_000), Busy()

    def visitor(name: str, n_bytes: int, after: float) -> None:
        time.sleep(after)
        cache.get(name, partial(busy.work, name, 0.4), peak_bytes=lambda: n_bytes)

    at_once(*(partial(visitor, *one) for one in (("a", 600, 0.0), ("large", 900, 0.1), ("small", 100, 0.2))))
    assert busy.order == ["a", "large", "small"]  # the small one fits beside the first and does not overtake


def test_a_computation_that_asks_for_another_one_does_not_wait_for_itself() -> None:
    cache, busy = ByteCache(lambda: 1_000), Busy()

    def outer(name: str) -> object:
        return cache.get(f"inside of {name}", partial(busy.work, name), peak_bytes=lambda: 900)

    at_once(*(partial(cache.get, name, partial(outer, name), peak_bytes=lambda: 900) for name in "abcd"))
    assert sorted(busy.order) == list("abcd")
    assert busy.most == 1


def test_two_computations_that_need_the_same_answer_do_not_wait_for_each_other() -> None:
    """One computes the answer and waits for memory; the other holds the memory and waits for the answer."""
    cache, has_memory = ByteCache(lambda: 1_000), threading.Event()

    def with_memory() -> object:
        has_memory.set()
        time.sleep(0.1)  # meanwhile the other one begins with "shared"
        return cache.get("shared", lambda: "by me")

    def without_memory() -> object:
        has_memory.wait()
        return cache.get("shared", lambda: cache.get("part", lambda: "by the other", peak_bytes=lambda: 900))

    at_once(lambda: cache.get("whole", with_memory, peak_bytes=lambda: 900), without_memory)
    assert cache.peek("whole") == "by the other"


def test_a_computation_that_fails_gives_its_reservation_back() -> None:
    cache = ByteCache(lambda: 1_000)
    for failing in (lambda: 1 // 0, lambda: cache.get("inside", lambda: 1 // 0, peak_bytes=lambda: 900)):
        with pytest.raises(ZeroDivisionError):
            cache.get("key", failing, peak_bytes=lambda: 900)
    with pytest.raises(ZeroDivisionError):
        cache.get("key", lambda: None, peak_bytes=lambda: 1 // 0)
    at_once(lambda: cache.get("key", lambda: 5, peak_bytes=lambda: 900))
    assert cache.peek("key") == 5


def test_kept_answers_give_way_to_a_computation_before_it_begins() -> None:
    cache = ByteCache(lambda: 1_000)
    cache.put("kept", torch.zeros(150))
    beside: list[int] = []
    cache.get("large", lambda: beside.append(cache.total), peak_bytes=lambda: 300)
    cache.get("larger", lambda: beside.append(cache.total), peak_bytes=lambda: 600)
    assert beside[0] >= 600
    assert beside[1] < 600
