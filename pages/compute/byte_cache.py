"""A cache of models, readings and tables shared by all visitors, bounded in bytes.

    @kept
    def run(name: str, source: tuple[int, ...]) -> Reading: ...

Streamlit's `cache_resource` limits the number of entries, and any visitor can clear it. Here all functions share one budget,
XFORMER_MAX_MEMORY in MB. The least recently used entries are evicted first, unused ones after 15 minutes, and all of them half
a minute after the last visitor has left. The newest entry stays even if it alone exceeds the budget.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pandas as pd
import torch

from xformer.adapters.on_demand import OnDemand
from xformer.memory import machine_bytes

P = ParamSpec("P")
R = TypeVar("R")
UNUSED_SECONDS = 900.0
MB = 1024**2
MIN_MB, MAX_MB, SHARE = 1024, 2048, 8
"""Without XFORMER_MAX_MEMORY the budget is an eighth of the machine's memory, within these bounds."""


def budget() -> int:
    """Return the maximum total size of all cached values in bytes."""
    asked = os.environ.get("XFORMER_MAX_MEMORY", "")
    if asked.isascii() and asked.isdecimal():
        return int(asked) * MB
    return min(MAX_MB * MB, max(MIN_MB * MB, machine_bytes() // SHARE))


class _Entry:
    """A cached value, computed or being computed. Other threads that request it wait for the lock."""

    def __init__(self, *value: Any) -> None:
        self.lock = threading.Lock()
        self.value = value
        self.size = n_bytes(value[0]) if value else 0
        self.used = time.monotonic()


class ByteCache:
    """Cached values by key, ordered from least to most recently used."""

    def __init__(self, most: Callable[[], int] = budget) -> None:
        self._most = most
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the value of a key, computing it with `make` if it is missing. Exceptions are not cached."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._touch(key, entry)
        with entry.lock:
            if entry.value:
                return entry.value[0]
            try:
                value = make()
            except BaseException:
                with self._lock:
                    if self._entries.get(key) is entry:
                        del self._entries[key]
                raise
            entry.value, entry.size = (value,), n_bytes(value)
        self.sweep()
        return value

    def peek(self, key: Hashable) -> Any | None:
        """Return the value of a key; None if it is missing."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or not entry.value:
                return None
            self._touch(key, entry)
            return entry.value[0]

    def put(self, key: Hashable, value: Any) -> None:
        """Store a value that was computed elsewhere."""
        with self._lock:
            self._entries[key] = entry = _Entry(value)
            self._touch(key, entry)
        self.sweep()

    def _touch(self, key: Hashable, entry: _Entry) -> None:
        self._entries.move_to_end(key)
        entry.used = time.monotonic()

    def sweep(self, unused: float = UNUSED_SECONDS, more: int = 0) -> None:
        """Evict entries until `more` bytes fit into the budget as well, and entries unused for more than `unused` seconds."""
        with self._lock:
            total, now = sum(entry.size for entry in self._entries.values()) + more, time.monotonic()
            newest, most = next(reversed(self._entries), None), self._most()
            for key, entry in list(self._entries.items()):
                is_over = total > most and key != newest
                if entry.value and (is_over or now - entry.used > unused):
                    total -= entry.size
                    del self._entries[key]

    def recount(self) -> None:
        """Measure the cached values again: a trace grows as its activations are computed."""
        with self._lock:
            entries = [entry for entry in self._entries.values() if entry.value]
        for entry in entries:
            entry.size = n_bytes(entry.value[0])

    @property
    def total(self) -> int:
        """The total size of the cached values in bytes."""
        with self._lock:
            return sum(entry.size for entry in self._entries.values())

    def forget(self, is_gone: Callable[[tuple[Any, ...]], bool]) -> None:
        """Evict the values for whose key `is_gone` returns True."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                if entry.value and isinstance(key, tuple) and is_gone(key):
                    del self._entries[key]


shared = ByteCache()


def cached(function: Callable[P, R]) -> Callable[P, R]:
    """Cache the return values of a function in `shared` by its arguments, which must be hashable."""

    @wraps(function)
    def cached(*args: P.args, **kwargs: P.kwargs) -> R:
        key = (function.__module__, function.__qualname__, args, tuple(sorted(kwargs.items())))
        return shared.get(key, lambda: function(*args, **kwargs))

    return cached


def n_bytes(value: Any, seen: set[int] | None = None) -> int:
    """Estimate the size of a value in bytes. Tensors and arrays are exact; storage shared inside the value counts once."""
    seen = set() if seen is None else seen
    storage = value.untyped_storage() if isinstance(value, torch.Tensor) else None
    number = id(value) if storage is None else storage.data_ptr()
    if number in seen:
        return 0
    seen.add(number)
    if storage is not None:
        return storage.nbytes()
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, pd.DataFrame | pd.Series):
        return int(np.asarray(value.memory_usage(deep=True)).sum())
    if hasattr(type(value), "project_heads"):  # a `ModelAdapter`; `isinstance` would compute all its properties
        return 0  # the weights are counted where the model itself is cached
    if isinstance(value, torch.nn.Module):
        parts = [*value.parameters(), *value.buffers()]
    elif dataclasses.is_dataclass(value):
        names = getattr(value, "__dict__", None) or [field.name for field in dataclasses.fields(value)]
        parts = [getattr(value, name) for name in list(names)]  # includes cached properties
    elif isinstance(value, OnDemand):
        parts = list(value.held())
    elif isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    else:
        return sys.getsizeof(value)
    return sum((n_bytes(part, seen) for part in parts), 64)
