"""Pack a training recorded by `AttentionHealth` into one zip file, and import it on another machine.

    content = to_archive(store, run)                     # card.json, health/record.json, health/000200.npz
    imported = from_archive(store, content, owner="me")  # a run with the tag “imported”

A run's folder packed by any program is also an archive: `zip -r my-run.zip checkpoints/runs/3fa9c1d2`. Archives are untrusted:
sizes are checked before anything is unpacked, arrays are read without pickles, and only known values are kept. Archives do not
contain weights.
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
import zipfile
import zlib
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from xformer.config import ModelConfig, TaskConfig
from xformer.errors import CheckpointError, ConfigError, InputError
from xformer.files import CARD, strict_json, write_atomically
from xformer.integrations.health_alarms import Alarm, Measurement
from xformer.integrations.health_record import (
    FILE,
    FOLDER,
    SUMMARY,
    HealthRecord,
    Planes,
    planes_of,
    probe_files,
    probe_of,
)
from xformer.layer_path import PATH
from xformer.presets import Preset
from xformer.training.card import (
    MAX_SCORES,
    MAX_STEPS,
    TAG,
    ImportResult,
    Name,
    Note,
    card_of,
    first_problem,
    read_card,
)
from xformer.training.limits import Limits
from xformer.training.run_record import ELSEWHERE, EXTERNAL, FIGURES, is_number, metrics_row
from xformer.training.run_store import RunStore, new_id, one_line

MAX_PACKED = 60 * 1024**2
"""The size limit in bytes of an archive that is written, as the app reads uploads of up to 64 MB."""
MAX_BYTES = 512 * 1024**2
"""The limit on the bytes of all unpacked arrays."""
MAX_FILES = 4_096
"""The limit on the files of an archive, and on the arrays of a file."""
MAX_CARD_BYTES, MAX_ROWS = 32 * 1024**2, 20_000
"""The limit on the bytes of a card, and on the rows of its curve that are kept."""
_WANTED = re.compile(rf"(?P<folder>(?:[^/]+/)*)(?P<file>{CARD}|{FOLDER}/{FILE}|{FOLDER}/\d{{6,8}}\.npz)", re.ASCII)
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, EOFError, OSError, ValueError)
"""The errors that zipfile raises for damaged, encrypted and unsupported archives."""
_ENDS = ("finished", "failed", "stopped", "interrupted")
"""The states of a run that has ended."""
_Step = Annotated[int, Field(ge=0, le=MAX_STEPS)]
_Labels = tuple[Annotated[str, Field(max_length=200)], ...]


class _Alarm(BaseModel, strict=True):
    rule: Name
    step: _Step
    layer: Annotated[str, Field(pattern=rf"^({PATH})?\z")]
    head: Annotated[int, Field(ge=0, le=MAX_SCORES)] | None
    reason: Note
    frame: _Step


class _Record(BaseModel, strict=True):
    """The file `record.json` of an archive."""

    tokens: _Labels
    target: _Labels = ()
    alarms: Annotated[list[_Alarm], Field(max_length=1000)]
    problems: Annotated[list[tuple[_Step, Note]], Field(max_length=1000)] = []


def is_archive(content: bytes) -> bool:
    """Whether a file is a zip file."""
    return content.startswith(b"PK\3\4")


def write_card(store: RunStore, run: str) -> None:
    """Write a run's entry and curve into its folder, so that the folder alone can be imported."""
    write_atomically(store.folder_of(run) / CARD, _card(store, run))


def _card(store: RunStore, run: str) -> bytes:
    entry = store.entry(run)
    rows = [{name: value for name, value in row.items() if name != "scores"} for row in store.rows(run)]
    card = card_of(entry, rows, entry.step) | {"model": entry.model, "task": entry.task, "state": entry.state}
    return (json.dumps(card, indent=1) + "\n").encode()


def to_archive(store: RunStore, run: str) -> bytes:
    """Pack the record of a run. If it is too large, only every second probe, or fewer, is packed.

    Raises `CheckpointError` for a run without a record.
    """
    folder = store.folder_of(run)
    probes = probe_files(folder)
    if not HealthRecord.is_in(folder) or not probes:
        raise CheckpointError(f"The run “{store.entry(run).name}” has no recorded probe yet.")
    while len(probes) > MAX_FILES - 2 or sum(file.stat().st_size for file in probes) > MAX_PACKED:
        probes = probes[::-2][::-1]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(CARD, _card(store, run))
        for file in [folder / FOLDER / FILE, *probes]:
            archive.write(file, f"{FOLDER}/{file.name}")
    return packed.getvalue()


def from_archive(
    store: RunStore, content: bytes, *, owner: str, limits: Limits | None = None, private: bool = False
) -> ImportResult:
    """Import an untrusted archive as an ended run.

    Raises `CheckpointError` or `RunStoreError` if the archive is rejected; nothing is kept then.
    """
    files = _files_of_run(content)
    if CARD not in files:
        raise CheckpointError(f"The archive has no {CARD}; pack a run's whole folder, or use Download in Runs.")
    if len(files[CARD]) > MAX_CARD_BYTES:
        raise CheckpointError(f"The archive's {CARD} may have {MAX_CARD_BYTES:,} bytes, got {len(files[CARD]):,}.")
    card = strict_json(files[CARD].decode(errors="replace"), CARD)
    if not isinstance(card, dict):
        raise CheckpointError(f"The archive's {CARD} must be a JSON object, got {type(card).__name__}.")
    about = read_card({name: value for name, value in card.items() if name != "curve"})
    try:
        model, task = ModelConfig.from_json(card["model"]), TaskConfig.from_json(card["task"])
        found = _Record.model_validate_json(files[f"{FOLDER}/{FILE}"])
    except (ConfigError, KeyError) as error:
        raise CheckpointError(f"The archive's {CARD} has no valid model or task: {error}") from None
    except ValidationError as error:
        raise CheckpointError(f"The archive's {FILE} is invalid{first_problem(error)}.") from None
    (limits or Limits()).check_disk(2 * len(content), "This record", store.entries(), store.folder)
    run = new_id()
    alarms = [Alarm(**alarm.model_dump()) for alarm in found.alarms]
    record = HealthRecord(found.tokens, alarms=alarms, folder=store.folder_of(run), target=found.target)
    record.problems = found.problems
    with store.removed_on_failure(run):  # files and rows come first, so that an entry never lacks them
        shapes, left = {}, MAX_BYTES
        for name in sorted(name for name in files if name.endswith(".npz")):
            arrays, left = _arrays(files[name], name, left)
            probe, planes = _checked(arrays, name)
            shapes = shapes or _drawable(record, planes)
            if {layer: codes.shape for layer, codes in planes.items()} != shapes:
                raise CheckpointError(f"The archive's {name} has patterns of a different shape than the first probe.")
            record.add(probe, planes)
        if not record.probes:
            raise CheckpointError("The archive has no probe; its folder health needs files like 000200.npz.")
        record.write_words()
        rows = _rows(card.get("curve"), record, about.train.steps)
        last, name = record.probes[-1].step, about.name or "imported"
        state = card["state"] if card.get("state") in _ENDS else "interrupted"
        columns = {"tags": json.dumps([TAG]), "device": ELSEWHERE, "step": last, "seconds": about.seconds}
        settings = Preset(EXTERNAL, about.title or name, about.about, model, task, about.train)
        store.put_rows(run, rows)
        how: dict[str, Any] = {"owner": owner, "name": name, "device": ELSEWHERE, "private": private}
        store.add(settings, state=state, run=run, columns=columns, **how)
        write_card(store, run)
    return ImportResult(run, name, last, is_new=True)


def _files_of_run(content: bytes) -> dict[str, bytes]:
    """The files of an archive's only run, by their path in the run's folder."""
    found, _ = _unpacked(content, MAX_BYTES, "The archive")
    matches = [match for name in found if (match := _WANTED.fullmatch(name))]
    folders = {match["folder"] for match in matches if match["file"] == f"{FOLDER}/{FILE}"}
    if len(folders) != 1:
        what = f"An archive must hold one recorded run, with {CARD} and {FOLDER}/{FILE}"
        raise CheckpointError(f"{what}; this one holds {len(folders)}.")
    return {match["file"]: found[match[0]] for match in matches if match["folder"] in folders}


def _unpacked(content: bytes, most: int, what: str) -> tuple[dict[str, bytes], int]:
    """Unpack a zip file of up to `most` bytes. Returns its files, and how many of the `most` bytes are left."""
    try:
        if content.count(b"PK\1\2") > 4 * MAX_FILES:  # zipfile allocates memory for all entries when it opens a file
            raise CheckpointError(f"{what} has too many files; at most {MAX_FILES:,} are read.")
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [one for one in archive.infolist() if what != "The archive" or _WANTED.fullmatch(one.filename)]
            size = sum(one.file_size for one in members)
            if len(members) > MAX_FILES or size > most:
                found = f"{len(members):,} files with {size:,} bytes"
                raise CheckpointError(f"{what} has {found}; at most {MAX_FILES:,} with {most:,} are read.")
            found = {}
            for one in members:
                with archive.open(one) as file:  # without a size, a read would inflate all data
                    found[one.filename] = file.read(one.file_size)
    except _DAMAGED as error:
        raise CheckpointError(f"{what} is not a readable zip file: {error or 'it is damaged'}.") from None
    return found, most - size


def _arrays(content: bytes, name: str, most: int) -> tuple[dict[str, np.ndarray], int]:
    """The arrays of a NumPy archive, checked to have as many bytes as their headers claim, and to hold numbers or text."""
    files, left = _unpacked(content, most, f"The archive's {name}")
    found = {}
    for file, raw in files.items():
        stream = io.BytesIO(raw)
        try:
            np.lib.format.read_magic(stream)
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            if dtype.kind not in "fuU" or math.prod(shape) * dtype.itemsize != len(raw) - stream.tell():
                raise ValueError
            stream.seek(0)
            found[file.removesuffix(".npy")] = np.load(stream, allow_pickle=False)
        except (ValueError, TypeError, MemoryError, OverflowError):
            raise CheckpointError(f"The archive's {name} has no array of numbers under {file!r:.60}.") from None
    return found, left


def _checked(arrays: dict[str, np.ndarray], name: str) -> tuple[Measurement, Planes]:
    """The probe and the patterns in the arrays of a file. Raises `CheckpointError` if they are inconsistent."""
    with suppress(KeyError, TypeError, ValueError, OverflowError, RecursionError):
        probe, planes = probe_of(arrays), planes_of(arrays)
        is_valid = probe.step <= MAX_STEPS and f"{FOLDER}/{probe.step:06d}.npz" == name
        is_valid &= planes.keys() == probe.heads.keys() and 0 < sum(map(len, planes.values())) <= MAX_SCORES
        for layer, codes in planes.items():
            of_heads = np.array(list(probe.heads[layer].values()))  # [measure, head]
            is_valid &= codes.dtype == np.uint8 and codes.ndim == 3
            is_valid &= of_heads.dtype.kind == "f" and of_heads.shape[1:] == codes.shape[:1]
        if is_valid:
            return replace(probe, note=one_line(probe.note, 300)), planes
    raise CheckpointError(f"The archive's {name} is not a probe of AttentionHealth.")


def _drawable(record: HealthRecord, planes: Planes) -> dict[str, tuple[int, ...]]:
    """The shapes of the patterns. Raises `CheckpointError` if the app could not draw them."""
    from xformer.viz.attention_health import health_timeline  # imported here because it needs altair

    try:
        health_timeline(record.tokens, {0: planes}, scores={}, steps=1, target_tokens=record.target)
    except InputError as error:
        raise CheckpointError(f"The archive's patterns cannot be drawn. {error}") from None
    return {layer: codes.shape for layer, codes in planes.items()}


def _rows(curve: Any, record: HealthRecord, steps: int) -> list[dict[str, Any]]:
    """The curve of the card, with the loss and scores of the probes. Damaged rows of the card are left out.

    Of a curve with more than `MAX_ROWS` rows, every second one is kept, or fewer.
    """
    rows: dict[int, dict[str, Any]] = {}
    curve = curve if isinstance(curve, list) else []
    every = max(1, -(-len(curve) // MAX_ROWS))
    for one in curve[::-every][::-1]:
        if isinstance(one, dict) and (row := metrics_row(one.get("step"), one)) and row["step"] <= MAX_STEPS:
            kept = {name: row[name] for name in (*FIGURES, *SUMMARY) if is_number(row.get(name))}
            rows[row["step"]] = kept | {"note": one_line(row.get("note"), 300)}
    for probe in record.probes:
        row = rows.setdefault(probe.step, {"step": probe.step, "steps": steps})
        if math.isfinite(probe.loss):
            row.setdefault("held_out_loss", probe.loss)
        row["scores"] = probe.induction
    return [rows[step] for step in sorted(rows)]
