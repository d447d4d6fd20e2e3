"""Keeps what was computed lately for all visitors, up to a total weight: what is large goes sooner than what is small.

shelf = Shelf(most=500_000_000)
shelf.put(key, trace, trace.n_bytes); shelf.get(key)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Shelf(Generic[T]):
    """The things used last; one that is heavier than the whole shelf is not kept."""

    def __init__(self, most: int) -> None:
        self._most, self._weight, self._lock = most, 0, Lock()
        self._things: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()

    def get(self, key: Hashable) -> T | None:
        """What is kept under a key; None where it is not, or no longer."""
        with self._lock:
            if key not in self._things:
                return None
            self._things.move_to_end(key)
            return self._things[key][0]

    def put(self, key: Hashable, thing: T, weight: int) -> None:
        """Keep something, and let go of what was not used for longest."""
        with self._lock:
            if key in self._things:
                self._weight -= self._things.pop(key)[1]
            self._things[key] = (thing, weight)
            self._weight += weight
            while self._weight > self._most:
                self._weight -= self._things.popitem(last=False)[1][1]
