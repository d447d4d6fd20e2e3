"""How well each run does, in one figure: what a list of runs shows, on a screen or in a terminal.

share = exact_match(entry, latest_rows(run store).get(entry.id, {}))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xformer.task_limits import TASK_LIMITS
from xformer.training.entry import Entry, metrics_row
from xformer.training.run_store import RunStore

Row = Mapping[str, Any]


def latest_rows(store: RunStore) -> dict[str, dict[str, Any]]:
    """The last metrics that can be read of each run that has any."""
    query = (
        "SELECT id, step_of AS step, (SELECT row FROM metrics WHERE run = id AND step = step_of) AS row FROM "
        "(SELECT id, (SELECT max(step) FROM metrics WHERE run = id) AS step_of FROM runs)"
    )
    with store.database.reading() as db:
        found = {line["id"]: (line["step"], line["row"]) for line in db.execute(query) if line["row"] is not None}
    latest = {run: metrics_row(*last) or next(reversed(store.rows(run)), {}) for run, last in found.items()}
    return {run: row for run, row in latest.items() if row}


def exact_match(entry: Entry, row: Row) -> float | None:
    """The share of unseen sequences that a run gets right: as scored at its end, else as last reported. None of a text."""
    if has_no_answer(entry):
        return None
    value = entry.figures.get("exact_match", row.get("held_out_exact_match"))
    return float(value) if isinstance(value, (int, float)) else None


def has_no_answer(entry: Entry) -> bool:
    """Whether a run learns to go on with a text, where nothing is right or wrong."""
    limits = TASK_LIMITS.get(entry.task.get("name", ""))
    return limits is not None and limits.is_text
