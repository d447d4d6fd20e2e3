"""Each open model has one copy: loaded once for all users, never closed while in use, closed when unused."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from xformer.errors import InputError, ModelFileError, NotEnoughMemoryError
from xformer.model_files import ModelStore
from xformer.model_files.store import ReportProgress


class Model:
    """A stand-in for a model, in a reference cycle like a model with hooks."""

    def __init__(self, id: str) -> None:
        self.id, self.me = id, self


class Machine:
    """A loader with memory for `room` models. `gate` holds loads back."""

    def __init__(self, room: int = 10) -> None:
        self.room, self.loads, self.at_once, self.most_at_once = room, [], 0, 0
        self.alive: weakref.WeakSet[Model] = weakref.WeakSet()
        self.gate = threading.Event()
        self.gate.set()
        self.trouble: list[BaseException] = []

    def load(self, id: str, step: ReportProgress) -> Model:
        self.loads.append(id)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            step(1, 2, f"reading {id}")
            assert self.gate.wait(20)
            step(2, 2, "done")
            if self.trouble:
                raise self.trouble.pop()
            model = Model(id)
            self.alive.add(model)
            return model
        finally:
            self.at_once -= 1

    def store(self, kept_seconds: float = 1e6) -> ModelStore[Model]:
        return ModelStore(self.load, lambda id: 1, free=lambda: self.room - len(self.alive), kept_seconds=kept_seconds)


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    machine.gate.set()


def until(true: Callable[[], bool]) -> None:
    """Wait until another thread has made a condition true."""
    for _ in range(1_000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("the condition never became true")


def test_visitors_share_one_copy_and_its_progress_and_models_are_loaded_one_at_a_time(machine: Machine) -> None:
    store, seen = machine.store(), [[] for _ in range(8)]
    machine.gate.clear()

    def use(number: int) -> int:
        with store.use("hf:a", lambda *progress: seen[number].append(progress)) as model:
            return id(model)

    with ThreadPoolExecutor(8) as pool:
        results = [pool.submit(use, number) for number in range(8)]
        until(lambda: all((1, 2, "reading hf:a") in one for one in seen))
        machine.gate.set()
        assert len({one.result() for one in results}) == 1
    assert machine.loads == store.open_ids() == ["hf:a"]
    jobs = [store.start(f"hf:{number}") for number in range(8)]
    assert [job.wait().id for job in jobs] == [f"hf:{number}" for number in range(8)]
    assert machine.most_at_once == 1


def test_models_in_use_stay_open_and_the_oldest_closes_first(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xformer.model_files.store.PATIENCE", 1)
    machine.room = 2
    store = machine.store()
    with ExitStack() as used:
        models = [used.enter_context(store.use(id)) for id in ("hf:a", "hf:b")]
        with pytest.raises(NotEnoughMemoryError, match=r"c needs .* of memory, .* are free"), store.use("hf:c"):
            pass
        assert store.unload_unused() == []
        assert [model.id for model in models] == ["hf:a", "hf:b"]
        del models
    with store.use("hf:c"):  # closes one of the others
        assert store.open_ids() == ["hf:a", "hf:c"]  # b was released before a
    assert {model.id for model in machine.alive} == {"hf:a", "hf:c"}
    assert store.job("hf:b") is None


def test_a_model_unused_for_a_while_is_closed(machine: Machine) -> None:
    store = machine.store(kept_seconds=0.05)
    with store.use("hf:a"):
        until(lambda: store.open_ids() == ["hf:a"])
        time.sleep(0.3)
        assert store.open_ids() == ["hf:a"]
    until(lambda: not store.open_ids())
    until(lambda: not machine.alive)
    with store.use("hf:a"):
        assert machine.loads == ["hf:a", "hf:a"]


def test_all_waiting_callers_get_a_failure_and_the_next_request_tries_again(machine: Machine) -> None:
    store = machine.store()
    machine.gate.clear()
    machine.trouble.append(InputError("Its logits are off."))

    def use(_: int) -> str:
        try:
            with store.use("hf:a") as model:
                return model.id
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        results = [pool.submit(use, number) for number in range(8)]
        until(lambda: machine.loads == ["hf:a"])
        until(lambda: store._slots["hf:a"].users == 8)
        machine.gate.set()
        assert {one.result() for one in results} == {"Its logits are off."}
    failed = store.job("hf:a")
    assert (failed.state, str(failed.error)) == ("failed", "Its logits are off.")
    assert use(0) == "hf:a"


def test_an_unexpected_error_becomes_a_sentence_and_keeps_nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[object] = []
    logger = logging.getLogger("xformer.model_files.store")
    monkeypatch.setattr(logger, "exception", lambda *entry: logged.append(entry))
    half = Model("half")
    gone = weakref.ref(half)

    def load(id: str, step: ReportProgress) -> Model:
        kept = half_made.pop()
        raise OSError(f"cannot read /srv/secret/models/{kept.id}.json\nmore")

    half_made = [half]
    del half
    store = ModelStore(load, lambda id: 1)
    words = r"^Opening a failed \(OSError: cannot read …/half.json\)\.$"
    with pytest.raises(ModelFileError, match=words), store.use("hf:a"):
        pass
    assert logged
    until(lambda: gc.collect() >= 0 and gone() is None)  # the failed thread may still be ending


def test_a_load_continues_for_other_visitors_when_one_leaves(machine: Machine) -> None:
    store = machine.store()
    machine.gate.clear()

    def leave(*progress: object) -> None:
        raise KeyError("the visitor is gone")

    with pytest.raises(KeyError), store.use("hf:a", leave):
        pass
    machine.gate.set()
    with store.use("hf:a") as model:
        assert model.id == "hf:a"
    assert machine.loads == ["hf:a"]


def test_models_that_fail_the_check_or_are_unknown_are_not_loaded(machine: Machine) -> None:
    def refuse(id: str, step: ReportProgress | None = None) -> int:
        raise ModelFileError(f"{id} is damaged.")

    checked, unknown = ModelStore(machine.load, lambda id: 1, check=refuse), ModelStore(machine.load, refuse)
    for store in (checked, unknown):
        with pytest.raises(ModelFileError, match=r"^a is damaged\.$"), store.use("a"):
            pass
    assert machine.loads == []
    assert unknown.job("a") is None  # unknown ids leave no entry
