"""Models in the memory of this process, by name: `xformer.show` keeps them here, and screens and `read` find them."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from xformer.adapters.adapter import ModelAdapter

PREFIX = "memory:"
"""Begins the names of such models in links and in code."""


@dataclass(frozen=True)
class _Entry:
    title: str
    adapter: ModelAdapter


_entries: dict[str, _Entry] = {}
_lock = threading.Lock()
_n_kept = 0


def keep(adapter: ModelAdapter, title: str) -> str:
    """Keep a model, in place of the last one of that title. Returns its name, which no model had before.

    The app caches what it reads by name, and a model may be trained further between two calls.
    """
    global _n_kept
    with _lock:
        for name in [name for name, entry in _entries.items() if entry.title == title]:
            del _entries[name]
        _n_kept += 1
        name = f"{PREFIX}{title}" + (f".{_n_kept}" if _n_kept > 1 else "")
        _entries[name] = _Entry(title, adapter)
    return name


def find(name: str) -> ModelAdapter | None:
    """The model of that name; None if there is none."""
    entry = _entries.get(name)
    return None if entry is None else entry.adapter


def titles() -> dict[str, str]:
    """The titles of the models by their names, the latest first."""
    return {name: entry.title for name, entry in reversed(list(_entries.items()))}
