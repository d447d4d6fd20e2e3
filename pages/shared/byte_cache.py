"""What visitors share and may take much memory (models, traces): kept while somebody uses it, and bounded in bytes.

    @kept
    def run(name: str, source: tuple[int, ...]) -> Reading: ...

Streamlit's `cache_resource` counts entries, not bytes, and any visitor can clear it. Here all functions together have one
budget, XFORMER_MAX_MEMORY in MB; the entries that were not asked for longest go first, those that nobody has asked for in a
quarter of an hour go anyway, and all go half a minute after the last visitor has left. The newest stays even where it alone is
too large: the page that asked for it will ask again.

What was let go and is still in use elsewhere is checked out: it counts against the budget until it is gone, and who asks for it
meanwhile gets that very object.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pages.shared.byte_count import n_bytes

P = ParamSpec("P")
R = TypeVar("R")
UNUSED_SECONDS = 900.0
PATIENCE_SECONDS = 10.0
"""So long a page waits for others to be done where together they use more than the budget."""
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
        self._out: dict[Hashable, tuple[weakref.ref[Any], int]] = {}
        """What was let go and is in use elsewhere, with its bytes."""
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The answer of that key, made now where it is not there. What `make` raises is raised to everyone who waits."""
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
        """The answer of that key where it is there."""
        with self._lock:
            entry = self._entries.get(key) or self._back(key)
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
            total, now = self._kept() + self._checked_out(), time.monotonic()
            newest = next(reversed(self._entries), None)
            for key, entry in list(self._entries.items()):
                is_over = total > self._most() and key != newest
                if entry.answer and (is_over or now - entry.used > unused):
                    total -= entry.size
                    self._drop(key, entry)

    def wait_for_room(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Stay here while what others have checked out is over the budget, but not for longer than so many seconds."""
        until = time.monotonic() + seconds
        while self.checked_out > self._most() and time.monotonic() < until:
            time.sleep(0.05)

    def recount(self) -> None:
        """Count what is kept anew: a trace grows with what is asked of it."""
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
        """The entry of an answer that is checked out, kept again; None where it is gone."""
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
        """The bytes that are kept now."""
        with self._lock:
            return self._kept()

    @property
    def checked_out(self) -> int:
        """The bytes that were let go and are still in use elsewhere."""
        with self._lock:
            return self._checked_out()

    def forget(self, is_gone: Callable[[tuple[Any, ...]], bool]) -> None:
        """Let go the answers whose keys name what is gone."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                if entry.answer and isinstance(key, tuple) and is_gone(key):
                    self._drop(key, entry)
            self._out = {k: one for k, one in self._out.items() if not (isinstance(k, tuple) and is_gone(k))}


shared = ByteCache()
"""The one budget of this server."""


def kept(function: Callable[P, R]) -> Callable[P, R]:
    """Have the answers of a function kept in `shared`, by its arguments, which must be hashable."""

    @wraps(function)
    def asked(*args: P.args, **kwargs: P.kwargs) -> R:
        key = (function.__module__, function.__qualname__, args, tuple(sorted(kwargs.items())))
        return shared.get(key, lambda: function(*args, **kwargs))

    return asked
