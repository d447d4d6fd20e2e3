"""All runs at a glance: one line per run, how well it does, and only those settings in which the runs differ.

table = overview(entries, latest_rows(run store))       # one line per run
settings = differing([entry for entry in entries])  # one column per setting that is not the same in all of them
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from xformer.training.entry import Entry
from xformer.training.run_store import Row, exact_match

COLUMNS = ("name", "state", "step", "steps", "exact match", "loss", "seconds", "device", "tags", "created")
TASK_NAMES = {"name": "task", "min_len": "shortest", "max_len": "longest", "end_token": "end token"}
"""The settings of a task by the names that do not clash with those of a model."""
FROM_TASK = ("vocab_size", "pad_token", "start_token", "end_token")
"""What a model has because of its task."""
REPORTING = ("log_every", "held_out", "snapshot_every")
"""What leaves the weights as they are."""


def overview(entries: Sequence[Entry], latest: Mapping[str, Row]) -> pd.DataFrame:
    """A table with a row per run, in their order, indexed by id."""
    lines = []
    for entry in entries:
        row = latest.get(entry.id, {})
        steps = entry.train.get("steps")
        lines.append(
            {
                "name": entry.name,
                "state": entry.state,
                "step": entry.step,
                "steps": steps if isinstance(steps, int) else None,
                "exact match": exact_match(entry, row),
                "loss": row.get("loss", entry.live.get("loss")),
                "seconds": entry.seconds,
                "device": entry.device,
                "tags": list(entry.tags),
                "created": pd.Timestamp(entry.created, unit="s", tz="UTC"),
            }
        )
    table = pd.DataFrame(lines, index=pd.Index([entry.id for entry in entries], name="run"), columns=list(COLUMNS))
    return table.astype({"exact match": "float64", "loss": "float64"})


def settings_of(entry: Entry) -> dict[str, Any]:
    """What somebody chose for a run, each setting under one name; what follows from other settings is left out."""
    model, task = entry.model, entry.task
    follows = {
        "d_value": model.get("d_head"),
        "causal": model.get("architecture") != "encoder",
        "final_norm": model.get("norm") == "pre",
    }
    chosen = {name: value for name, value in entry.train.items() if name not in REPORTING}
    chosen |= {TASK_NAMES.get(name, name): value for name, value in task.items() if name != "architecture"}
    chosen |= {
        name: value
        for name, value in model.items()
        if name not in FROM_TASK and not (name in follows and follows[name] == value)
    }
    return chosen | {name: entry.train[name] for name in REPORTING if name in entry.train}


def differing(entries: Sequence[Entry]) -> pd.DataFrame:
    """The settings that are not the same in all runs: a row per run, a column per setting, indexed by id.

    Numbers stay numbers where all are; anything else is written out. A run that has no such setting has an empty cell; a
    damaged one has none that can be told from the others'.
    """
    settings = {entry.id: settings_of(entry) for entry in entries}
    names = list(dict.fromkeys(name for values in settings.values() for name in values))
    columns = {}
    for name in names:
        values = [found.get(name) for found in settings.values()]
        told = [value for value, entry in zip(values, entries, strict=True) if entry.state != "damaged"]
        if len({json.dumps(value, sort_keys=True) for value in told}) > 1:
            columns[name] = _column(values)
    return pd.DataFrame(columns, index=pd.Index(list(settings), name="run"))


def _column(values: list[Any]) -> list[Any]:
    if all(value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in values):
        return values
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
