"""The metrics of runs as files for other tools: a table, and the event files that TensorBoard reads.

csv = metrics_csv({"3fa9c1d2 baseline": rows})
zipped = event_files({"3fa9c1d2 baseline": rows}, created={"3fa9c1d2 baseline": 1.7e9})
"""

from __future__ import annotations

import io
import math
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from xformer.training.spreadsheet import to_csv

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
    from tensorboardX import SummaryWriter  # only now: importing it takes a second

    with tempfile.TemporaryDirectory() as folder:
        with SummaryWriter(folder) as writer:
            for row in rows:
                for tag, value in scalars(row).items():  # a tag has no spaces; what is shown in its place has
                    writer.add_scalar(tag, value, row["step"], created + row.get("seconds", 0.0), display_name=tag)
        (file,) = Path(folder).iterdir()
        return file.read_bytes()
