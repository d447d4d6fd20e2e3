"""What a run of the run store can be told from the command line: the same orders, by the same functions, as on the screens."""

from __future__ import annotations

from xformer.errors import RunStoreError
from xformer.training import jobs
from xformer.training.entry import Entry
from xformer.training.run_store import RunStore


def tell(action: str, entry: Entry, store: RunStore) -> str:
    """Give an order and say what becomes of it, in one sentence. Raises `RunStoreError` where it cannot be obeyed."""
    called = f"{entry.id} ({entry.name})"
    if action == "delete":
        store.delete(entry.id)
        return f"Deleted {called}. While the app runs it can take it back for an hour."
    if action == "pause":
        store.send(entry.id, "pause")
        return f"{called} is told to pause; it does so after its step."
    if action == "resume":
        jobs.resume(store, entry.id)
        return f"{called} goes on{_after_what(store, entry)}."
    if not entry.is_active and entry.state not in ("queued", "paused"):
        raise RunStoreError(f"The run “{entry.name}” is {entry.state}: there is nothing to stop.")
    jobs.stop(store, entry.id)
    return f"{called} is told to stop; it does so after its step." if entry.is_active else f"{called} is stopped."


def _after_what(store: RunStore, before: Entry) -> str:
    return ", when its turn comes" if store.entry(before.id).state == "queued" else ""
