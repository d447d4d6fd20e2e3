"""Tables of runs: an overview, the settings that differ between runs, and metrics as CSV and TensorBoard files.

    table = overview(entries, latest_rows(store))
    settings = differing(entries)
    csv = metrics_csv({"3fa9c1d2 baseline": rows})
    zipped = event_files({"3fa9c1d2 baseline": rows}, created={"3fa9c1d2 baseline": 1.7e9})

Spreadsheets execute CSV cells such as "=HYPERLINK(…)", so cells that look like formulas are prefixed with an apostrophe:
https://owasp.org/www-community/attacks/CSV_Injection.
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
from xformer.training.run_record import EXTERNAL, NO_TASK, RunRecord
from xformer.training.run_store import Row, exact_match

COLUMNS = ("name", "state", "step", "steps", "exact_match", "loss", "seconds", "device", "tags", "created")
TASK_NAMES = {"name": "task", "min_len": "shortest", "max_len": "longest", "end_token": "end token"}
"""New names for task settings whose own names clash with model settings."""
FROM_TASK = ("vocab_size", "pad_token", "start_token", "end_token")
"""Model settings that the task determines."""
SIZES = ("architecture", "n_layers", "n_heads", "d_model", "d_head", "d_ff")
"""The settings that are known for external models."""
REPORTING = ("log_every", "held_out", "snapshot_every")
"""Training settings that do not affect the weights."""


def overview(entries: Sequence[RunRecord], latest: Mapping[str, Row]) -> pd.DataFrame:
    """Return a table with a row for each run, indexed by id."""
    lines = []
    for entry in entries:
        row = latest.get(entry.id, {})
        steps = entry.train.get("steps")
        line: dict[str, Any] = {name: getattr(entry, name) for name in ("name", "state", "step", "seconds", "device")}
        line |= {"steps": steps if isinstance(steps, int) else None, "tags": list(entry.tags)}
        line |= {"exact_match": exact_match(entry, row), "loss": row.get("loss", entry.live.get("loss"))}
        lines.append(line | {"created": pd.Timestamp(entry.created, unit="s", tz="UTC")})
    table = pd.DataFrame(lines, index=pd.Index([entry.id for entry in entries], name="run"), columns=list(COLUMNS))
    return table.astype({"exact_match": "float64", "loss": "float64"})


def settings_of(entry: RunRecord) -> dict[str, Any]:
    """Return the settings of a run, without those that follow from others."""
    model, task = entry.model, entry.task
    if entry.preset == EXTERNAL:
        sizes = {name: model[name] for name in SIZES if name in model} | {"steps": entry.train.get("steps")}
        return sizes if task == NO_TASK.to_json() else sizes | {"task": task.get("name")}
    follows = {"d_value": model.get("d_head"), "causal": model.get("architecture") != "encoder"}
    follows |= {"final_norm": model.get("norm") == "pre"}
    chosen = {name: value for name, value in entry.train.items() if name not in REPORTING}
    chosen |= {TASK_NAMES.get(name, name): value for name, value in task.items() if name != "architecture"}
    own = {name: value for name, value in model.items() if name not in FROM_TASK}
    chosen |= {name: value for name, value in own.items() if name not in follows or follows[name] != value}
    return chosen | {name: entry.train[name] for name in REPORTING if name in entry.train}


def differing(entries: Sequence[RunRecord]) -> pd.DataFrame:
    """Return the settings that differ between runs: a row for each run, indexed by id, and a column for each setting.

    Numeric columns stay numeric; other values are JSON. A run without a setting has an empty cell. The comparison ignores
    damaged runs.
    """
    settings = {entry.id: settings_of(entry) for entry in entries}
    names = list(dict.fromkeys(name for values in settings.values() for name in values))
    columns = {}
    for name in names:
        values = [found.get(name) for found in settings.values()]
        readable = [value for value, entry in zip(values, entries, strict=True) if entry.state != "damaged"]
        if len({json.dumps(value, sort_keys=True) for value in readable}) > 1:
            columns[name] = _column(values)
    return pd.DataFrame(columns, index=pd.Index(list(settings), name="run"))


def _column(values: list[Any]) -> list[Any]:
    if all(value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in values):
        return values
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]


Rows = Sequence[Mapping[str, Any]]

TAGS = {
    "loss": "loss/training", "held_out_loss": "loss/held out", "held_out_exact_match": "held out/exact match",
    "held_out_token_accuracy": "held out/token accuracy", "learning_rate": "training/learning rate",
    "gradient_norm": "training/gradient norm", "tokens_per_second": "training/tokens per second",
}  # fmt: skip
"""The TensorBoard tag of each metric. Scores of heads are under "heads"."""


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with one cell per head: {"scores": {"encoder.0.attn": [0.1]}} becomes {"encoder.0.attn.0": 0.1}."""
    cells = {name: value for name, value in row.items() if not isinstance(value, (dict, list))}
    scores = row.get("scores")
    for site, heads in (scores if isinstance(scores, dict) else {}).items():
        cells |= {f"{site}.{head}": score for head, score in enumerate(heads)}
    return cells


def metrics_csv(runs: Mapping[str, Rows]) -> bytes:
    """Return the rows of all runs as a CSV file with escaped formulas and the run in the first column."""
    return to_csv(pd.DataFrame([{"run": name} | flat(row) for name, rows in runs.items() for row in rows]))


def event_files(runs: Mapping[str, Rows], created: Mapping[str, float]) -> bytes:
    """Return a zip file with a folder for each run that contains its TensorBoard event file.

    `created` is the Unix time at which each run was created. The wall time of an event is that time plus the training seconds.
    """
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, rows in runs.items():
            file = f"{folder_name(name)}/events.out.tfevents.{int(created[name])}.xformer"
            archive.writestr(file, _event_file(rows, created[name]))
    return zipped.getvalue()


def folder_name(name: str) -> str:
    """Return a name as a folder name, with a dash for each character other than letters, digits, space, "_" and "-"."""
    return "".join(letter if letter.isalnum() or letter in " _-" else "-" for letter in name).strip(" -") or "run"


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a row by their TensorBoard tags."""
    excluded = {"step", "steps", "seconds", "done", "held_out_samples"}
    numbers = {name: one for name, one in flat(row).items() if type(one) in (int, float) and math.isfinite(one)}
    return {TAGS.get(name, f"heads/{name}"): float(one) for name, one in numbers.items() if name not in excluded}


def _event_file(rows: Rows, created: float) -> bytes:
    """Return the event file of one run."""
    with needed("tensorboardX", "A TensorBoard file", "xformer-studio[tensorboard]"):
        from tensorboardX import SummaryWriter  # imported here because that takes a second

    with tempfile.TemporaryDirectory() as folder:
        with SummaryWriter(folder) as writer:
            for row in rows:
                for tag, value in scalars(row).items():  # tensorboardX replaces spaces in tags but not in display names
                    writer.add_scalar(tag, value, row["step"], created + row.get("seconds", 0.0), display_name=tag)
        (file,) = Path(folder).iterdir()
        return file.read_bytes()


_FORMULA = re.compile("[=+\\-@\t\r\n＝＋－＠]")

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.ASCII | re.IGNORECASE)


def to_csv(table: pd.DataFrame) -> bytes:
    """Return a table as a CSV file without its index and with escaped formulas."""
    safe = table.rename(columns=inert)
    for index in range(len(table.columns)):
        if not pd.api.types.is_numeric_dtype(table.dtypes.iloc[index]):
            safe.isetitem(index, [inert(cell) for cell in table.iloc[:, index]])
    return safe.to_csv(index=False).encode("utf-8", "replace")


def inert(cell: object) -> object:
    """Prefix a string that a spreadsheet would execute with an apostrophe; return any other value unchanged."""
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\r", " ")  # an unquoted carriage return would start a new line
    return f"'{text}" if len(text) > 1 and _FORMULA.match(cell) and not _NUMBER.fullmatch(text) else text
