"""Work that takes a while and that many wait for: done once in a thread of its own, its progress seen by all of them.

jobs = SharedJobs()
job = jobs.run("SmolLM2", lambda step: …, "Fetching SmolLM2")   # the same job for whoever asks while it runs
job.progress; job.state                     # for a page that looks now and then
job.wait(step)                              # its result, or its error
"""

from __future__ import annotations

import copy
import logging
import re
import threading
from collections.abc import Callable
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from xformer.errors import ModelFileError, XformerError

T = TypeVar("T")
LOOK_EVERY = 0.1


class LoadProgress(NamedTuple):
    """How far something is: `done` of `of`, and what it is at."""

    done: float
    of: float
    what: str


class Step(Protocol):
    """What is told how far something is. It may raise, which ends what it is told of."""

    def __call__(self, done: float, of: float, what: str) -> object: ...


class Job(Generic[T]):
    """One piece of work, begun at once. `title` is what a sentence calls it: "Opening SmolLM2" (failed, was cancelled)."""

    def __init__(self, work: Callable[[Step], T], title: str) -> None:
        self.title = title
        self.progress = LoadProgress(0, 1, "starting")
        self.state: Literal["running", "done", "failed"] = "running"
        self.error: XformerError | None = None
        self._result: T
        self._ended = threading.Event()
        self._cancelled = False
        threading.Thread(target=self._run, args=(work,), daemon=True, name=f"job {title}").start()

    def cancel(self) -> None:
        """End it at its next step; whoever waits is told so."""
        self._cancelled = True

    def ended(self, seconds: float) -> bool:
        """Whether it has ended, after so long a wait at most."""
        return self._ended.wait(seconds)

    def wait(self, step: Step | None = None) -> T:
        """Its result, once it is there; `step` is told of all progress meanwhile. Raises what ended it."""
        told = None
        while not self._ended.wait(LOOK_EVERY if step else None):
            if step and self.progress is not told:
                told = self.progress
                step(*told)
        if self.error:
            raise copy.copy(self.error)  # one for each who waits: raising writes to an error
        return self._result

    def _run(self, work: Callable[[Step], T]) -> None:
        try:
            self._result = work(self._step)
            self.state = "done"
        except XformerError as error:
            self._fail(error)
        except BaseException as error:  # whatever it is, somebody waits
            logging.getLogger(__name__).exception("%s failed", self.title)
            said = str(error).strip().splitlines() or [""]
            line = re.sub(r"(?<!\w)/(?:[^\s/'\"]+/)+", "…/", said[0])[:200]  # no visitor needs to know our folders
            why = f"{type(error).__name__}: {line}" if line else type(error).__name__
            self._fail(ModelFileError(f"{self.title} failed ({why})."))
        finally:
            self._ended.set()

    def _fail(self, error: XformerError) -> None:
        self.error = copy.copy(error)  # without its traceback, which would keep half a model in memory
        self.state = "failed"

    def _step(self, done: float, of: float, what: str) -> None:
        if self._cancelled:
            raise ModelFileError(f"{self.title} was cancelled.")
        self.progress = LoadProgress(done, of, what)


class SharedJobs(Generic[T]):
    """Jobs by their keys: one that runs is joined, one that has ended is begun again by the next who asks."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job[T]] = {}
        self._lock = threading.Lock()

    def run(self, key: str, work: Callable[[Step], T], title: str) -> Job[T]:
        """The job that does it."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None or job.state != "running":
                job = self._jobs[key] = Job(work, title)
            return job

    def last(self, key: str) -> Job[T] | None:
        """The job that runs, or the last one that ran."""
        return self._jobs.get(key)
