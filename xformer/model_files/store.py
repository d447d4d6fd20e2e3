"""Open models, one copy for all threads: loaded once, kept while in use, closed to free memory or after a timeout.

store = ModelStore(load=lambda id, step: open_model(catalogue().entry(id).path, step=step),
                   needed=lambda id: catalogue().entry(id).needed)
with store.use(id, step) as model: …     # waits until the model is open, and keeps it open within this block
store.start(id).progress                 # starts to open it without waiting
"""

from __future__ import annotations

import copy
import gc
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from xformer.errors import ModelFileError, XformerError
from xformer.memory import free_bytes
from xformer.model_files.contents import check_free

T = TypeVar("T")
KEPT_SECONDS = 20 * 60
"""How long an unused model stays open, as visitors read before they click again."""

PATIENCE = 10
"""How many times free memory is checked again before a model is rejected."""

LOOK_EVERY = 0.1
"""The interval in seconds at which waiting threads check progress and free memory."""


class LoadProgress(NamedTuple):
    """Progress: `done` of `of`, and the current step."""

    done: float
    of: float
    what: str


class ReportProgress(Protocol):
    """Called with the progress. An exception that it raises ends the work."""

    def __call__(self, done: float, of: float, what: str) -> object: ...


class LoadingJob(Generic[T]):
    """Work in a thread that starts immediately. `title` names the work in error messages, like "Opening SmolLM2"."""

    def __init__(self, work: Callable[[ReportProgress], T], title: str) -> None:
        self.title = title
        self.progress = LoadProgress(0, 1, "starting")
        self.state: Literal["running", "done", "failed"] = "running"
        self.error: XformerError | None = None
        self._result: T
        self._ended = threading.Event()
        self._cancelled = False
        threading.Thread(target=self._run, args=(work,), daemon=True, name=f"job {title}").start()

    def cancel(self) -> None:
        """End the job at its next step. Waiting callers get an error."""
        self._cancelled = True

    def ended(self, seconds: float) -> bool:
        """Wait up to `seconds` for the job, and return whether it has ended."""
        return self._ended.wait(seconds)

    def wait(self, step: ReportProgress | None = None) -> T:
        """Wait for the result and pass progress to `step` meanwhile. Raises the error that ended the job."""
        shown = None
        while not self._ended.wait(LOOK_EVERY if step else None):
            if step and self.progress is not shown:
                shown = self.progress
                step(*shown)
        if self.error:
            raise copy.copy(self.error)  # one per waiting caller, as raising modifies an error
        return self._result

    def _run(self, work: Callable[[ReportProgress], T]) -> None:
        try:
            self._result = work(self._step)
            self.state = "done"
        except XformerError as error:
            self._fail(error)
        except BaseException as error:  # callers must be told any outcome
            logging.getLogger(__name__).exception("%s failed", self.title)
            lines = str(error).strip().splitlines() or [""]
            line = re.sub(r"(?<!\w)/(?:[^\s/'\"]+/)+", "…/", lines[0])[:200]  # do not reveal local folders
            reason = f"{type(error).__name__}: {line}" if line else type(error).__name__
            self._fail(ModelFileError(f"{self.title} failed ({reason})."))
        finally:
            self._ended.set()

    def _fail(self, error: XformerError) -> None:
        self.error = copy.copy(error)  # without its traceback, which would keep half a model in memory
        self.state = "failed"

    def _step(self, done: float, of: float, what: str) -> None:
        if self._cancelled:
            raise ModelFileError(f"{self.title} was cancelled.")
        self.progress = LoadProgress(done, of, what)


@dataclass
class _Slot(Generic[T]):
    job: LoadingJob[T] | None = None
    users: int = 0
    last_used: float = 0.0

    @property
    def is_open(self) -> bool:
        return self.job is not None and self.job.state == "done"


class ModelStore(Generic[T]):
    """The open models by their ids. A failure is raised to every waiting caller, and the next request tries again.

    Args:
        load: Opens the model with an id. Models are loaded one at a time.
        needed: Returns the bytes of memory that a model takes.
        free: Returns the bytes of free memory.
        kept_seconds: How long an unused model stays open.
        check: Raises an error if something is wrong with a model, before it is loaded. Checks do not wait for other models.
    """

    def __init__(
        self,
        load: Callable[[str, ReportProgress], T],
        needed: Callable[[str], int],
        *,
        free: Callable[[], int] = free_bytes,
        kept_seconds: float = KEPT_SECONDS,
        check: Callable[[str, ReportProgress], object] = lambda id, step: None,
    ) -> None:
        self._check = check
        self._load, self._needed, self._free, self._kept = load, needed, free, kept_seconds
        self._slots: dict[str, _Slot[T]] = {}
        self._lock = threading.RLock()
        self._turn = threading.Lock()
        self._sweeper = threading.Thread(target=self._sweep, daemon=True, name="unused models")

    @contextmanager
    def use(self, id: str, step: ReportProgress | None = None) -> Iterator[T]:
        """Open a model and keep it open within this block. Raises `ModelFileError` if it cannot be opened."""
        needed = self._needed(id)
        with self._lock:
            slot = self._slots.setdefault(id, _Slot())
            slot.users += 1
            job = self._begin(id, slot, needed)
        try:
            yield job.wait(step)
        finally:
            with self._lock:
                slot.users -= 1
                slot.last_used = time.monotonic()

    def start(self, id: str) -> LoadingJob[T]:
        """Start opening a model without waiting, or return the existing job."""
        needed = self._needed(id)  # raises for an unknown id before a slot is created
        with self._lock:
            return self._begin(id, self._slots.setdefault(id, _Slot()), needed)

    def job(self, id: str) -> LoadingJob[T] | None:
        """The job that opens or opened a model; None if there is none."""
        with self._lock:
            return slot.job if (slot := self._slots.get(id)) else None

    def open_ids(self) -> list[str]:
        """The ids of the open models."""
        with self._lock:
            return [id for id, slot in self._slots.items() if slot.is_open]

    def unload_unused(self, seconds: float = 0.0) -> list[str]:
        """Close models that have been unused for at least `seconds`, and return their ids."""
        with self._lock:
            now = time.monotonic()
            unused = [id for id, slot in self._idle() if now - slot.last_used >= seconds]
            for id in unused:
                del self._slots[id]
        if unused:
            gc.collect()  # hooks make models part of reference cycles
        return unused

    def _begin(self, id: str, slot: _Slot[T], needed: int) -> LoadingJob[T]:
        if slot.job is None or slot.job.state == "failed":
            slot.job = LoadingJob(lambda step: self._opened(id, slot, needed, step), f"Opening {_title(id)}")
        return slot.job

    def _opened(self, id: str, slot: _Slot[T], needed: int, step: ReportProgress) -> T:
        """Check a model and load it. One model is loaded at a time, as two would count on the same free memory."""
        self._check(id, step)
        while not self._turn.acquire(timeout=LOOK_EVERY):
            step(0, 1, "waiting for another model to open")
        try:
            self._make_room(id, needed, step)
            model = self._load(id, step)
            if not self._sweeper.is_alive():
                self._sweeper.start()
        finally:
            self._turn.release()
        slot.last_used = time.monotonic()
        return model

    def _make_room(self, id: str, needed: int, step: ReportProgress) -> None:
        patience = PATIENCE  # a caller that has just stopped using a model may still hold a reference
        while needed > self._free():
            if self._close_oldest():
                step(0, 1, "closing an unused model")
                patience = PATIENCE
            elif not patience:
                check_free(_title(id), needed, self._free())
            else:
                patience -= 1
                time.sleep(LOOK_EVERY)
            gc.collect()

    def _close_oldest(self) -> bool:
        with self._lock:
            oldest = min(self._idle(), key=lambda item: item[1].last_used, default=None)
            if oldest:
                del self._slots[oldest[0]]
            return oldest is not None

    def _idle(self) -> list[tuple[str, _Slot[T]]]:
        return [(id, slot) for id, slot in self._slots.items() if slot.is_open and not slot.users]

    def _sweep(self) -> None:
        while True:
            time.sleep(max(LOOK_EVERY, self._kept / 20))
            self.unload_unused(self._kept)


def _title(id: str) -> str:
    """The name of a model, from its id."""
    return id.partition(":")[2] or id
