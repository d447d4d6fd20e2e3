"""What is known of how a model that can be chosen was trained."""

from __future__ import annotations

from typing import Any

from pages.shared import run_store
from pages.shared.models import checkpoint, run_and_step
from xformer.errors import RunStoreError
from xformer.training.card import believed
from xformer.training.transfer import card_of


def card_of_model(name: str) -> dict[str, Any]:
    """How a model was trained; of a run's step what the store has on it by now: it may be renamed, or scored, at any time."""
    asked = run_and_step(name)
    if asked is None:
        return believed(checkpoint(name).card)
    try:
        entry = run_store.entry(asked[0])
        step = entry.step if asked[1] is None else asked[1]
        rows = [row for row in run_store.store().rows(entry.id) if row["step"] <= step]
    except RunStoreError:
        return {}
    found = card_of(entry, rows, step) | {"about": f"Step {step:,} of the run “{entry.name}”. {entry.about}".rstrip()}
    if rows and "figures" not in found:  # as it was last reported up to that step
        last = rows[-1]
        at = {} if last["step"] == step else {"at": f" at step {last['step']:,}"}
        found["reported"] = {name: last.get(f"held_out_{name}") for name in ("loss", "exact_match", "samples")} | at
    return believed(found)
