"""The metrics of a run as this visit knows them: only what is new is read, and a long curve is thinned."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pages.shared import run_store
from pages.train.state import train_state
from xformer.training.entry import Entry


def rows_so_far(entry: Entry) -> list[dict[str, Any]]:
    """The metrics of a run; what this visitor has seen already is not read again, unless the run went back behind it."""
    state = train_state()
    run, rows = state.rows
    if run != entry.id or (rows and rows[-1].get("step", 0) > entry.step):
        rows = []
    rows.extend(run_store.store().rows(entry.id, rows[-1]["step"] if rows else -1))
    state.rows = (entry.id, rows)
    return rows


def thinned_curve(frame: pd.DataFrame, column: str, most: int = 200) -> list[tuple[int, float]]:
    """A column against the steps, in about so many points, the last one among them."""
    clean = frame[["step", column]].dropna()
    stride = max(1, -(-len(clean) // most))
    chosen = clean.iloc[sorted({*range(0, len(clean), stride), len(clean) - 1})] if len(clean) else clean
    return [(int(step), round(float(value), 4)) for step, value in chosen.itertuples(index=False, name=None)]
