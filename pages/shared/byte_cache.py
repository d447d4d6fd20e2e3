"""What visitors share and may take much memory (models, traces): kept while somebody uses it, and bounded in bytes.

    @kept
    def run(name: str, source: tuple[int, ...]) -> Reading: ...

Streamlit's `cache_resource` counts entries, not bytes, and any visitor can clear it. Here all functions together have one
budget, XFORMER_MAX_MEMORY in MB; the entries that were not asked for longest go first, and those that nobody has asked for in a
quarter of an hour go anyway. The newest stays even where it alone is too large: the page that asked for it will ask again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pages.shared.byte_count import n_bytes

P = ParamSpec("P")
R = TypeVar("R")
UNUSED_SECONDS = 900.0
DEFAULT_MB = 1024


def budget() -> int:
    """Bytes that all kept answers may take together."""
    asked = os.environ.get("XFORMER_MAX_MEMORY", "")
    return (int(asked) if asked.isascii() and asked.isdecimal() else DEFAULT_MB) * 1024**2


class _Entry:
    """One answer, or one that is being worked out: whoever asks meanwhile waits for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.answer: list[Any] = []
        self.size = 0
        self.used = time.monotonic()


class ByteCache:
    """Answers by key, the least recently asked for first."""

    def __init__(self, most: Callable[[], int] = budget) -> None:
        self._most = most
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The answer of that key, made now where it is not there. What `make` raises is raised to everyone who waits."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
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
        """The answer of that key where it is there."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or not entry.answer:
                return None
            self._entries.move_to_end(key)
            entry.used = time.monotonic()
            return entry.answer[0]

    def put(self, key: Hashable, answer: Any) -> None:
        """Keep an answer that was worked out elsewhere, in portions."""
        entry = _Entry()
        entry.answer, entry.size = [answer], n_bytes(answer)
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
        self.sweep()

    def sweep(self, unused: float = UNUSED_SECONDS) -> None:
        """Let go what is over the budget, and what nobody has asked for in `unused` seconds."""
        with self._lock:
            total, now = sum(entry.size for entry in self._entries.values()), time.monotonic()
            newest = next(reversed(self._entries), None)
            for key, entry in list(self._entries.items()):
                is_over = total > self._most() and key != newest
                if entry.answer and (is_over or now - entry.used > unused):
                    total -= entry.size
                    self._drop(key, entry)

    def _drop(self, key: Hashable, entry: _Entry) -> None:
        if self._entries.get(key) is entry:
            del self._entries[key]

    @property
    def total(self) -> int:
        """The bytes that are kept now."""
        with self._lock:
            return sum(entry.size for entry in self._entries.values())

    def forget(self, is_gone: Callable[[tuple[Any, ...]], bool]) -> None:
        """Let go the answers whose keys name what is gone."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                if entry.answer and isinstance(key, tuple) and is_gone(key):
                    self._drop(key, entry)


shared = ByteCache()
"""The one budget of this server."""


def kept(function: Callable[P, R]) -> Callable[P, R]:
    """Have the answers of a function kept in `shared`, by its arguments, which must be hashable."""

    @wraps(function)
    def asked(*args: P.args, **kwargs: P.kwargs) -> R:
        key = (function.__module__, function.__qualname__, args, tuple(sorted(kwargs.items())))
        return shared.get(key, lambda: function(*args, **kwargs))

    return asked
