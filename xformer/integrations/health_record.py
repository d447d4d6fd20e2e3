"""The record of `AttentionHealth`, in memory and as files, and its run in the run store.

    record = HealthRecord.load("runs/3fa9c1d2")
    record.table()                 one row per step, layer and head
    record.planes(200)             the patterns of the probe's first input, uint8 [head, row, col] by layer

    RUN/health/record.json         tokens, alarms
    RUN/health/000200.npz          the measures and patterns of step 200

Weights are kept only on request.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import UInt8

from xformer.analysis.attention_health import HEAD_MEASURES, LAYER_MEASURES
from xformer.config import ModelConfig, TrainConfig
from xformer.errors import CheckpointError, InputError
from xformer.files import strict_json, write_atomically
from xformer.integrations.health_alarms import Alarm, Measurement
from xformer.model import Transformer
from xformer.model_shape import ModelShape
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.training import liveness
from xformer.training.run_record import ELSEWHERE, EXTERNAL, NO_TASK
from xformer.training.run_store import RunStore, entry_of, insert_rows, move, set_columns

FOLDER, FILE = "health", "record.json"
"""The record's folder in the run's folder, and its file with tokens and alarms."""
MAX_KEPT = 16 * 1024**2
"""The limit on the bytes of patterns that a record keeps in memory. Beyond it, every second step is dropped."""
Planes = dict[str, UInt8[np.ndarray, "head row col"]]
"""Patterns as codes, by the path of the layer; see `xformer.viz.packing.plane`."""


@dataclass(eq=False)
class HealthRecord:
    """The probes, losses, alarms and patterns of one training.

    Args:
        tokens: The labels of the probe's first input.
        probes: The measurements of each probe.
        losses: The step and training loss in nats of each step with a known loss.
        alarms: The alarms in the order in which they were raised.
        problems: The step and a sentence for each kind of failure to record.
        target: The labels that the decoder of an encoder-decoder reads; else empty.
        folder: The folder of the run; None keeps everything in memory.
    """

    tokens: tuple[str, ...] = ()
    probes: list[Measurement] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)
    folder: Path | None = None
    target: tuple[str, ...] = ()
    kept: dict[int, Planes] = field(default_factory=dict, repr=False)
    """The patterns by step that are in no file."""
    problems: list[tuple[int, str]] = field(default_factory=list)

    def add(self, probe: Measurement, planes: Planes) -> None:
        """Add a probe with the patterns of its first input, in place of all probes of the same and later steps.

        Raises `OSError` if the file cannot be written; the probe is in memory then.
        """
        self.probes[:] = [*(one for one in self.probes if one.step < probe.step), probe]
        self.kept[probe.step] = planes
        if self.folder is not None:
            write_atomically(self.file(probe.step), _packed(probe, planes))
            del self.kept[probe.step]
        if sum(codes.nbytes for layers in self.kept.values() for codes in layers.values()) > MAX_KEPT:
            self.kept = {step: self.kept[step] for step in sorted(self.kept)[::2]}

    def forget(self, step: int) -> None:
        """Remove all probes from a step on."""
        gone = [probe.step for probe in self.probes if probe.step >= step]
        self.probes[:] = [one for one in self.probes if one.step < step]
        self.kept = {at: planes for at, planes in self.kept.items() if at < step}
        for at in gone if self.folder is not None else ():
            self.file(at).unlink(missing_ok=True)

    def write_words(self) -> None:
        """Write the tokens, alarms and problems into the folder, if there is one."""
        if self.folder is not None:
            values = {"tokens": self.tokens, "target": self.target, "alarms": [one.to_json() for one in self.alarms]}
            values["problems"] = self.problems
            write_atomically(self.folder / FOLDER / FILE, json.dumps(values).encode())

    def file(self, step: int) -> Path:
        """The file of a probe. Raises `InputError` for a record in memory."""
        if self.folder is None:
            raise InputError("A record in memory has no files; pass AttentionHealth a folder, like out='runs'.")
        return self.folder / FOLDER / f"{step:06d}.npz"

    def planes(self, step: int) -> Planes:
        """The patterns of the probe's first input at a step. Raises `InputError` for a step without patterns."""
        if step in self.kept:
            return self.kept[step]
        if self.folder is None or not (file := self.file(step)).exists():
            known = ", ".join(map(str, self.steps[:20]))
            raise InputError(f"The steps with patterns are {known or 'none yet'}, got {step}.")
        with np.load(file, allow_pickle=False) as found:
            return planes_of(found)

    @property
    def steps(self) -> list[int]:
        """The steps that have patterns."""
        return sorted(self.kept) if self.folder is None else [probe.step for probe in self.probes]

    def table(self) -> pd.DataFrame:
        """One row per step, layer and head, with the columns of `HEAD_MEASURES`.

        Example:
            >>> from xformer.integrations import HealthRecord
            >>> list(HealthRecord().table().columns)[:4]
            ['step', 'layer', 'head', 'score_max']
        """
        parts = [
            pd.DataFrame({"step": one.step, "layer": layer, "head": range(len(measures["entropy_p50"]))} | measures)
            for one in self.probes
            for layer, measures in one.heads.items()
        ]
        columns = ["step", "layer", "head", *HEAD_MEASURES]
        return pd.DataFrame(pd.concat(parts, ignore_index=True) if parts else None, columns=columns)

    def layer_table(self) -> pd.DataFrame:
        """One row per step and layer, with the columns of `LAYER_MEASURES`."""
        rows = [{"step": one.step, "layer": at} | found for one in self.probes for at, found in one.layers.items()]
        return pd.DataFrame(rows, columns=["step", "layer", *LAYER_MEASURES])

    def loss_table(self) -> pd.DataFrame:
        """The training loss and the probe's loss in nats, one row per step at which either is known."""
        probes = pd.Series({one.step: one.loss for one in self.probes}, dtype="float64", name="probe_loss")
        losses = pd.Series(dict(self.losses), dtype="float64", name="loss")
        return pd.concat([losses, probes], axis=1).sort_index().rename_axis("step").reset_index()

    @classmethod
    def load(cls, folder: str | Path, *, probes: bool = True) -> HealthRecord:
        """Read the record in a run's folder, without `probes` only its words. Losses are in the run store.

        Raises `CheckpointError` for damaged files.
        """
        folder = Path(folder)
        try:
            words = strict_json((folder / FOLDER / FILE).read_text(), "record")
            alarms = [Alarm(**alarm) for alarm in words["alarms"]]
            tokens, target = (tuple(map(str, words.get(name, ()))) for name in ("tokens", "target"))
            problems = [(int(step), str(text)) for step, text in words.get("problems", ())]
            found = []
            for file in probe_files(folder) if probes else ():
                with np.load(file, allow_pickle=False) as arrays:
                    found.append(probe_of(arrays))
            return cls(tokens, found, [], alarms, folder, target, problems=problems)
        except (OSError, KeyError, TypeError, ValueError, EOFError) as error:
            raise CheckpointError(f"{folder.name} has no readable attention record: {error}.") from None

    @staticmethod
    def is_in(folder: str | Path) -> bool:
        """Whether a run's folder holds a record."""
        return (Path(folder) / FOLDER / FILE).is_file()


STATISTICS: dict[str, Callable[[np.ndarray], Any]] = {"min": np.nanmin, "median": np.nanmedian, "max": np.nanmax}
"""The statistics of a measure over all heads."""
SUMMARY = tuple(f"{name}/{statistic}" for name in HEAD_MEASURES for statistic in STATISTICS)
"""The names in a summary."""


def summary(heads: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, float]:
    """The minimum, median and maximum over all heads of each known measure, for a table or TensorBoard.

    Example:
        >>> import numpy as np
        >>> summary({"decoder.0.attn": {"score_max": np.array([1.0, 4.0, 2.0])}})
        {'score_max/min': 1.0, 'score_max/median': 2.0, 'score_max/max': 4.0}
    """
    found = {}
    for name in HEAD_MEASURES:
        values = np.concatenate([measures[name] for measures in heads.values() if name in measures] or [np.empty(0)])
        if np.isfinite(values).any():
            found |= {f"{name}/{statistic}": float(f(values)) for statistic, f in STATISTICS.items()}
    return found


def probe_files(folder: Path) -> list[Path]:
    """The files of the probes in a run's folder, ordered by step."""
    found = [file for file in (folder / FOLDER).glob("*.npz") if file.stem.isdecimal() and file.stem.isascii()]
    return sorted(found, key=lambda file: int(file.stem))


def _packed(probe: Measurement, planes: Planes) -> bytes:
    """Pack a probe and its patterns into a NumPy archive without pickles."""
    arrays: dict[str, np.ndarray] = {f"plane:{path}": codes for path, codes in planes.items()}
    for layer, measures in probe.heads.items():
        arrays[f"heads:{layer}"] = np.stack([measures[name] for name in HEAD_MEASURES])  # [measure, head]
        arrays[f"layer:{layer}"] = np.array([probe.layers[layer][name] for name in LAYER_MEASURES])
    archive = io.BytesIO()
    about = np.array(json.dumps({"step": probe.step, "loss": probe.loss, "note": probe.note}))
    np.savez_compressed(archive, allow_pickle=False, about=about, **arrays)
    return archive.getvalue()


def probe_of(found: Mapping[str, np.ndarray]) -> Measurement:
    """The probe in the arrays of its file."""
    about = json.loads(str(found["about"]))
    names = [name.removeprefix("heads:") for name in found if name.startswith("heads:")]
    heads = {name: dict(zip(HEAD_MEASURES, found[f"heads:{name}"], strict=True)) for name in names}
    layers = {name: dict(zip(LAYER_MEASURES, map(float, found[f"layer:{name}"]), strict=True)) for name in names}
    return Measurement(int(about["step"]), heads, layers, float(about["loss"]), str(about["note"]))


def planes_of(found: Mapping[str, np.ndarray]) -> Planes:
    """The patterns in the arrays of a probe's file."""
    return {name.removeprefix("plane:"): found[name] for name in found if name.startswith("plane:")}


def settings_of(shape: ModelShape, model: Any, task: Task | None, *, name: str, steps: int, every: int) -> Preset:
    """The settings under which the run store lists a training by another program.

    For an external model, the configuration holds its sizes only.
    """
    d_head = shape.d_model // max(1, *shape.heads.values())
    own = model.config if isinstance(model, Transformer) else None
    config = own or ModelConfig(
        architecture=shape.architecture, vocab_size=max(1, shape.vocab_size or shape.n_inputs), d_model=max(1, shape.d_model),
        n_layers=shape.n_layers, n_heads=max(shape.heads.values()), d_head=max(1, d_head),
        d_ff=max(shape.neurons.values(), default=0), max_len=1, positions="none",
    )  # fmt: skip
    about = f"{type(model).__name__}, trained by another program: optimiser, schedule and data are its own."
    train = TrainConfig(steps=max(1, steps), log_every=max(1, every), snapshot_every=0)
    return Preset(EXTERNAL, name, about, config, NO_TASK if task is None else task.config, train)


class OutsideRun:
    """A training by another program as a run in the run store, which the app shows live and can stop.

    This process writes the run, under a lock that is released when the process ends.

    Args:
        store: The run store.
        settings: The settings of the run. Their title is the run's name.
    """

    def __init__(self, store: RunStore, settings: Preset) -> None:
        self.store = store
        self.id = store.add(settings, name=settings.title, owner="here", device=ELSEWHERE, state="stopped")
        self.folder = store.folder_of(self.id)
        self._lock = liveness.take(self.folder / liveness.LOCK)
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The seconds since the run was created."""
        return time.perf_counter() - self._began

    def start(self) -> None:
        """List the run as running."""
        with self.store.database.writing() as db:
            move(db, entry_of(db, self.id), "queued")
            move(db, entry_of(db, self.id), "running", worker=secrets.token_hex(8), device=ELSEWHERE, pid=os.getpid())

    def write(self, row: Mapping[str, Any], live: Mapping[str, float]) -> None:
        """Append a row of metrics with its `step` and `seconds`. The app shows `live` and the row's note with the run."""
        message = {"message": row["note"][:500]} if row["note"] else {}
        with self.store.database.writing() as db:
            insert_rows(db, self.id, [dict(row)])
            set_columns(db, self.id, step=row["step"], seconds=row["seconds"], live=json.dumps(live), **message)

    def forget(self, step: int) -> None:
        """Remove the metrics from a step on."""
        with self.store.database.writing() as db:
            db.execute("DELETE FROM metrics WHERE run = ? AND step >= ?", (self.id, step))

    def take_commands(self) -> set[str]:
        """The kinds of commands that the app has sent since the last call."""
        with self.store.database.writing() as db:
            kinds = {line["kind"] for line in db.execute("SELECT kind FROM commands WHERE run = ?", (self.id,))}
            db.execute("DELETE FROM commands WHERE run = ?", (self.id,))
        return kinds

    def end(self, state: str) -> None:
        """Record the end of the run and release its lock; a second call does nothing."""
        if self._lock is None:
            return
        with self.store.database.writing() as db:
            move(db, entry_of(db, self.id), state, worker=None, pid=None)
        os.close(self._lock)
        self._lock = None
