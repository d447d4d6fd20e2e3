"""Seeded mutants of every file that is read from anyone: refused with a sentence, or read; nothing else may come of them."""

from __future__ import annotations

import json
import random
import string
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.attack.visitor import FindingError
from tests.training.tiny import tiny_preset
from xformer import load, record
from xformer.checkpoints import from_bytes
from xformer.errors import XformerError
from xformer.trace import load_trace, save_trace
from xformer.training.card import from_file, to_file
from xformer.training.loop import iter_train
from xformer.training.run_store import RunStore

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, 2**63, 2**40, -(2**70), "", "=cmd|' /C calc'!A0", "\ud800", "a" * 5000, [], {}, [[[]]],
    {"name": []}, "../../etc/passwd", 0.5, "nan", [2**31], "\x1b[2J", "<b>", [0, 2**62],
)  # fmt: skip


@cache
def originals() -> dict[str, bytes]:
    """A checkpoint, a run as a file, and a trace, of a model that takes a moment to read."""
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(folder)
        run = store.add(tiny_preset(), name="good", state="finished")
        rows = [progress.row() for progress in iter_train(tiny_preset(), out=store.folder_of(run), device="cpu")]
        store.put_rows(run, rows)
        store.change(run, step=12)
        model = load(store.folder_of(run)).model
        save_trace(record(model, torch.tensor([[1, 2, 3]])), Path(folder) / "trace.safetensors")
        return {
            "checkpoint": (store.folder_of(run) / "model.safetensors").read_bytes(),
            "import": to_file(store, run),
            "trace": (Path(folder) / "trace.safetensors").read_bytes(),
        }


def mutant(good: bytes, draw: random.Random) -> bytes:
    """A file with something wrong in its bytes, in its header, or in the JSON within the header."""
    how = draw.randrange(6)
    data = bytearray(good)
    if how == 0:  # some bytes are others
        for _ in range(draw.choice((1, 1, 2, 8, 64))):
            data[draw.randrange(len(data))] = draw.randrange(256)
    elif how == 1:  # the end is missing, or something stands twice
        cut = draw.randrange(len(data))
        data = data[:cut] if draw.random() < 0.5 else data[:cut] + data[max(0, cut - 99) :]
    elif how == 2:  # the header says that it is longer or shorter
        data[:8] = draw.choice((0, 1, 7, len(data), 2**31, 2**63, draw.randrange(2**20))).to_bytes(8, "little")
    else:
        n = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + n])
        _change(header, draw)
        text = json.dumps(header)
        if how == 5:  # and its letters too
            place = draw.randrange(len(text))
            text = text[:place] + draw.choice(string.printable) + text[place + draw.randrange(2) :]
        head = text.encode("utf-8", "replace")
        data = bytearray(len(head).to_bytes(8, "little") + head + data[8 + n :])
    return bytes(data)


def _change(header: dict[str, Any], draw: random.Random) -> None:
    """Put something odd into one place, inside of the JSON in the metadata too."""
    meta = header.get("__metadata__", {})
    if meta and draw.random() < 0.7:
        name = draw.choice(list(meta))
        try:
            inner = json.loads(meta[name])
        except ValueError:
            inner = None
        if isinstance(inner, (dict, list)) and inner:
            _put(inner, draw)
            meta[name] = json.dumps(inner)
        else:
            meta[name] = draw.choice(ODD)
    else:
        _put(header, draw)


def _put(where: Any, draw: random.Random) -> None:
    while True:
        keys = list(where) if isinstance(where, dict) else range(len(where))
        key = draw.choice(keys) if keys else None
        if key is None or not isinstance(where[key], (dict, list)) or not where[key] or draw.random() < 0.3:
            break
        where = where[key]
    if isinstance(where, dict) and (key is None or draw.random() < 0.2):
        where[draw.choice(["", "\ud800", "=1", "d_model", "__metadata__", "x" * 999])] = draw.choice(ODD)
    elif key is not None:
        where[key] = draw.choice(ODD)


def attempts(kind: str, n: int, draw: random.Random) -> Iterator[str]:
    """Read n mutants, and say of each what came of it. Raises `FindingError` for anything but a value or a sentence."""
    good = originals()[kind]
    with tempfile.TemporaryDirectory() as folder:
        read = _reader(kind, Path(folder))
        for number in range(n):
            content = mutant(good, draw)
            try:
                read(content)
            except XformerError as error:
                if not str(error).strip() or len(str(error)) > 2000:
                    raise FindingError(f"{kind} mutant {number}: a refusal of {len(str(error))} letters") from error
                str(error).encode()
                yield "refused"
            except Exception as error:
                raise FindingError(f"{kind} mutant {number}: {type(error).__name__}: {error}") from error
            else:
                yield "read"


def _reader(kind: str, folder: Path) -> Callable[[bytes], object]:
    if kind == "checkpoint":
        return from_bytes
    if kind == "trace":
        return lambda content: load_trace(_file(folder, content))
    store = RunStore(folder / "runs")

    def take(content: bytes) -> None:
        taken = from_file(store, content, owner="me", file_name="a\ud800=1.safetensors")
        if taken.is_new:
            entry = store.entry(taken.run)
            f"{entry.name}{entry.title}{entry.about}{entry.message}".encode()  # can be shown
            to_file(store, taken.run)
            entry.settings()

    return take


def _file(folder: Path, content: bytes) -> Path:
    file = folder / "trace.safetensors"
    file.write_bytes(content)
    return file
