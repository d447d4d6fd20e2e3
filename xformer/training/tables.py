"""All runs at a glance: one line per run, how well it does, and only those settings in which the runs differ.

table = overview(entries, latest_rows(run store))       # one line per run
settings = differing([entry for entry in entries])  # one column per setting that is not the same in all of them
"""

from __future__ import annotations

import io
import json
import math
import re
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from xformer.installed import needed
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


Rows = Sequence[Mapping[str, Any]]

TAGS = {
    "loss": "loss/training",
    "held_out_loss": "loss/held out",
    "held_out_exact_match": "held out/exact match",
    "held_out_token_accuracy": "held out/token accuracy",
    "learning_rate": "training/learning rate",
    "gradient_norm": "training/gradient norm",
    "tokens_per_second": "training/tokens per second",
}
"""How TensorBoard groups what is measured; heads' scores come under "heads"."""


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with one cell a head: {"scores": {"encoder.0.attn": [0.1]}} becomes {"encoder.0.attn.0": 0.1}."""
    cells = {name: value for name, value in row.items() if not isinstance(value, (dict, list))}
    scores = row.get("scores")
    for site, heads in (scores if isinstance(scores, dict) else {}).items():
        cells |= {f"{site}.{head}": score for head, score in enumerate(heads)}
    return cells


def metrics_table(runs: Mapping[str, Rows]) -> pd.DataFrame:
    """All rows of runs under each other, the run in the first column."""
    return pd.DataFrame([{"run": name} | flat(row) for name, rows in runs.items() for row in rows])


def metrics_csv(runs: Mapping[str, Rows]) -> bytes:
    """The same as a CSV file, which a spreadsheet takes for nothing but words and numbers."""
    return to_csv(metrics_table(runs))


def event_files(runs: Mapping[str, Rows], created: Mapping[str, float]) -> bytes:
    """A zip with one folder a run, in each the event file that TensorBoard shows as that run.

    `created` is when each began, in seconds since 1970: the wall time of an event is that and the seconds of training.
    """
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, rows in runs.items():
            file = f"{folder_name(name)}/events.out.tfevents.{int(created[name])}.xformer"
            archive.writestr(file, _event_file(rows, created[name]))
    return zipped.getvalue()


def folder_name(name: str) -> str:
    """A name as that of a folder anywhere: letters, digits, spaces, and a dash for the rest."""
    kept = "".join(letter if letter.isalnum() or letter in " _-" else "-" for letter in name)
    return kept.strip(" -") or "run"


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row that are drawn against the steps, by their tag in TensorBoard."""
    heads = {"step", "steps", "seconds", "done", "held_out_samples", *TAGS}
    found = {
        TAGS.get(name, f"heads/{name}"): value for name, value in flat(row).items() if name in TAGS or name not in heads
    }
    return {
        tag: float(value)
        for tag, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }


def _event_file(rows: Rows, created: float) -> bytes:
    """The event file of one run, as TensorBoard's own kind of writer writes it."""
    with needed("tensorboardX", "A TensorBoard file", "xformer[tensorboard]"):
        from tensorboardX import SummaryWriter  # only now: importing it takes a second

    with tempfile.TemporaryDirectory() as folder:
        with SummaryWriter(folder) as writer:
            for row in rows:
                for tag, value in scalars(row).items():  # a tag has no spaces; what is shown in its place has
                    writer.add_scalar(tag, value, row["step"], created + row.get("seconds", 0.0), display_name=tag)
        (file,) = Path(folder).iterdir()
        return file.read_bytes()


_FORMULA = re.compile("[=+\\-@\t\r\n＝＋－＠]")

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.ASCII | re.IGNORECASE)


def to_csv(table: pd.DataFrame) -> bytes:
    """A table as a CSV file, its index left out."""
    safe = table.rename(columns=inert)
    for place in range(len(table.columns)):
        if not pd.api.types.is_numeric_dtype(table.dtypes.iloc[place]):
            safe.isetitem(place, [inert(cell) for cell in table.iloc[:, place]])
    return safe.to_csv(index=False).encode("utf-8", "replace")


def inert(cell: object) -> object:
    """A text that a spreadsheet would run, with an apostrophe in front; a number, a single sign and all else as they are."""
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\r", " ")  # unquoted, it would begin another line
    return f"'{text}" if len(text) > 1 and _FORMULA.match(cell) and not _NUMBER.fullmatch(text) else text
