"""The cache of models, readings and tables that all visitors share, bounded in bytes.

    @kept
    def run(name: str, source: tuple[int, ...]) -> Reading: ...

Streamlit's `cache_resource` counts entries and any visitor can clear it. Here all functions share one budget,
XFORMER_MAX_MEMORY in MB. The entries used least recently are evicted first, unused ones after a quarter of an hour, and all of
them half a minute after the last visitor has left. The newest entry stays even where it alone exceeds the budget.

An evicted answer that is still in use elsewhere is checked out. It counts against the budget until it is freed, and a request
for it returns the same object.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from xformer.adapters.on_demand import OnDemand
from xformer.memory import machine_bytes

P = ParamSpec("P")
R = TypeVar("R")
UNUSED_SECONDS = 900.0
MB = 1024**2
LEAST_MB, MOST_MB, SHARE = 1024, 2048, 8
"""Without XFORMER_MAX_MEMORY the budget is an eighth of the machine's memory, within these bounds."""


def budget() -> int:
    """The bytes that all kept answers may take together."""
    asked = os.environ.get("XFORMER_MAX_MEMORY", "")
    if asked.isascii() and asked.isdecimal():
        return int(asked) * MB
    return min(MOST_MB * MB, max(LEAST_MB * MB, machine_bytes() // SHARE))


class _Entry:
    """One answer, computed or being computed. Other threads that request it wait for the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.answer: list[Any] = []
        self.size = 0
        self.used = time.monotonic()


class ByteCache:
    """Answers by key, the least recently used first."""

    def __init__(self, most: Callable[[], int] = budget) -> None:
        self._most = most
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._out: dict[Hashable, tuple[weakref.ref[Any], int]] = {}
        """The evicted answers that are still in use elsewhere, with their bytes."""
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the answer of a key; where there is none, `make` computes it now. What it raises is not kept."""
        with self._lock:
            entry = self._entries.get(key) or self._back(key) or self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            entry.used = time.monotonic()
        with entry.lock:
            if entry.answer:
                return entry.answer[0]
            try:
                answer = make()
            except BaseException:
                with self._lock:
                    self._drop(key, entry)
                raise
            entry.answer, entry.size = [answer], n_bytes(answer)
        self.sweep()
        return answer

    def peek(self, key: Hashable) -> Any | None:
        """Return the answer of a key; None where there is none."""
        with self._lock:
            entry = self._entries.get(key) or self._back(key)
            if entry is None or not entry.answer:
                return None
            self._entries.move_to_end(key)
            entry.used = time.monotonic()
            return entry.answer[0]

    def put(self, key: Hashable, answer: Any) -> None:
        """Keep an answer that was computed elsewhere, in portions."""
        entry = _Entry()
        entry.answer, entry.size = [answer], n_bytes(answer)
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
        self.sweep()

    def sweep(self, unused: float = UNUSED_SECONDS, more: int = 0) -> None:
        """Evict what exceeds the budget together with `more` bytes, and what was not used for `unused` seconds."""
        with self._lock:
            total = self._kept() + self._checked_out() + more
            now = time.monotonic()
            newest = next(reversed(self._entries), None)
            for key, entry in list(self._entries.items()):
                is_over = total > self._most() and key != newest
                if entry.answer and (is_over or now - entry.used > unused):
                    total -= entry.size
                    self._drop(key, entry)

    def recount(self) -> None:
        """Measure the kept answers again: a trace grows as its activations are computed."""
        with self._lock:
            entries = [entry for entry in self._entries.values() if entry.answer]
        for entry in entries:
            entry.size = n_bytes(entry.answer[0])

    def _drop(self, key: Hashable, entry: _Entry) -> None:
        if self._entries.get(key) is not entry:
            return
        del self._entries[key]
        if entry.answer:
            with suppress(TypeError):  # numbers and tuples, which take little
                self._out[key] = weakref.ref(entry.answer[0]), entry.size

    def _back(self, key: Hashable) -> _Entry | None:
        """Keep an answer that is checked out again, and return its entry; None where it is freed."""
        reference, size = self._out.pop(key, (None, 0))
        answer = None if reference is None else reference()
        if answer is None:
            return None
        entry = self._entries[key] = _Entry()
        entry.answer, entry.size = [answer], size
        return entry

    def _kept(self) -> int:
        return sum(entry.size for entry in self._entries.values())

    def _checked_out(self) -> int:
        self._out = {key: one for key, one in self._out.items() if one[0]() is not None}
        return sum(size for _, size in self._out.values())

    @property
    def total(self) -> int:
        """The bytes of the kept answers."""
        with self._lock:
            return self._kept()

    @property
    def checked_out(self) -> int:
        """The bytes of the evicted answers that are still in use elsewhere."""
        with self._lock:
            return self._checked_out()

    def forget(self, is_gone: Callable[[tuple[Any, ...]], bool]) -> None:
        """Evict the answers whose keys name something that no longer exists."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                if entry.answer and isinstance(key, tuple) and is_gone(key):
                    self._drop(key, entry)
            self._out = {k: one for k, one in self._out.items() if not (isinstance(k, tuple) and is_gone(k))}


shared = ByteCache()
"""The cache of this server."""


def kept(function: Callable[P, R]) -> Callable[P, R]:
    """Keep the answers of a function in `shared`, by its arguments, which must be hashable."""

    @wraps(function)
    def asked(*args: P.args, **kwargs: P.kwargs) -> R:
        key = (function.__module__, function.__qualname__, args, tuple(sorted(kwargs.items())))
        return shared.get(key, lambda: function(*args, **kwargs))

    return asked


def n_bytes(value: Any) -> int:
    """Return about how many bytes a value takes: tensors and arrays exactly, storage that is shared inside it once."""
    return _n_bytes(value, set())


def _n_bytes(value: Any, seen: set[int]) -> int:
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        return 0 if _again(storage.data_ptr(), seen) else storage.nbytes()
    if _again(id(value), seen):
        return 0
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, torch.nn.Module):
        return sum(_n_bytes(tensor, seen) for tensor in (*value.parameters(), *value.buffers()))
    if dataclasses.is_dataclass(value):
        if hasattr(type(value), "heads_read"):  # a `ModelAdapter`; `isinstance` would compute all its properties
            return 0  # the weights are counted where the model is kept
        names = getattr(value, "__dict__", None) or (field.name for field in dataclasses.fields(value))
        return sum(_n_bytes(getattr(value, name), seen) for name in list(names))  # with its cached properties
    if isinstance(value, OnDemand):
        return sum(_n_bytes(item, seen) for item in value.held())
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + sum(_n_bytes(item, seen) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return sys.getsizeof(value) + sum(_n_bytes(item, seen) for item in value)
    if hasattr(value, "memory_usage"):  # a pandas table
        usage = value.memory_usage(deep=True)
        return int(usage.sum() if hasattr(usage, "sum") else usage)
    return sys.getsizeof(value)


def _again(number: int, seen: set[int]) -> bool:
    if number in seen:
        return True
    seen.add(number)
    return False
