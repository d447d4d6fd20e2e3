"""What the run store knows of a run, as the card of a file."""

from __future__ import annotations

from typing import Any

from xformer.training.curve import fitting
from xformer.training.entry import Entry


def card_of(entry: Entry, rows: list[dict[str, Any]], step: int) -> dict[str, Any]:
    """What the run store knows of a run up to a step, as the card of a file; the curve thinned until it fits."""
    rows = [row for row in rows if row["step"] <= step]
    latest = rows[-1] if rows else {}
    return {
        "name": entry.name,
        "preset": entry.preset,
        "title": entry.title,
        "about": entry.about,
        "seed": entry.train.get("seed"),
        "step": step,
        "train": entry.train,
        "device": (entry.device or "cpu").partition(":")[0],
        "seconds": round(entry.seconds if step == entry.step else latest.get("seconds", 0.0), 2),
        "curve": fitting(rows),
        **({"figures": entry.figures} if entry.figures and step == entry.step else {}),
    }
