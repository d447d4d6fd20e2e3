"""What was computed recently, up to so many bytes: Streamlit's own caches count entries, and a run of 500 tokens weighs as much
as ten thousand short ones.

Kept inside of one of Streamlit's caches (see `resources`), so that it goes when those are cleared.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Memory(Generic[Value]):
    """The values that were asked for last. The newest stays even where it alone is too large."""

    def __init__(self, most_bytes: int, size: Callable[[Value], int]) -> None:
        self._most, self._size = most_bytes, size
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key; made now where it is not here. Two who ask at once may both make it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        value = make()
        with self._lock:
            self._values[key] = value, self._size(value)
            self._values.move_to_end(key)
            while len(self._values) > 1 and sum(size for _, size in self._values.values()) > self._most:
                self._values.popitem(last=False)
        return value
