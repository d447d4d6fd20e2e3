"""A small file that would take all memory, and writing without end: both stay within what the server allows."""

from __future__ import annotations

import random
import time
import urllib.error
from collections.abc import Iterator

from tests.attack.ground import DISK, MB, Ground
from tests.attack.visitor import FindingError, Visitor
from xformer import ModelConfig, Transformer
from xformer.checkpoints import Checkpoint, to_bytes
from xformer.config import TaskConfig
from xformer.tasks import Task
from xformer.training.book import Book

MOST_MORE = 1500 * MB
"""So much more memory may the server hold afterwards: its caches have a limit of 1 GB, and torch keeps some."""


def bomb(n_layers: int, n_heads: int) -> bytes:
    """A model of half a megabyte whose patterns take gigabytes: layers × heads × n²."""
    task = Task(TaskConfig(name="reverse", architecture="encoder", symbols=9, min_len=1, max_len=79))
    config = ModelConfig(
        architecture="encoder", vocab_size=len(task.vocabulary), d_model=2, n_layers=n_layers, n_heads=n_heads, d_head=1,
        d_ff=0, max_len=80, pad_token=task.vocabulary.special.pad, end_token=task.vocabulary.special.end,
    )  # fmt: skip
    return to_bytes(Checkpoint(Transformer(config), task, {}))


def memory(ground: Ground, sizes: tuple[tuple[int, int], ...], draw: random.Random) -> Iterator[str]:
    """Upload such models and look at them on every screen with pictures of heads."""
    with Visitor(ground.base) as visitor:
        visitor.open("attention", "model=reverse")
        before = ground.memory()
        for n_layers, n_heads in sizes:
            visitor.open("runs")
            visitor.upload("runs_import", f"bomb-{n_layers}-{n_heads}.safetensors", bomb(n_layers, n_heads))
            mine = [entry for entry in Book(ground.folder / "runs").entries() if entry.owner == visitor.cookie]
            for entry in mine[:1]:
                for page in ("attention", "", "residual", "compare"):
                    visitor.open(page, f"model={entry.id}@{entry.step}&input={' '.join('1' * 79)}")
                    more = ground.memory() - before
                    if more > MOST_MORE:
                        raise FindingError(f"{n_layers} × {n_heads} heads took {more / MB:.0f} MB on {page or 'home'}")
            yield f"+{(ground.memory() - before) / MB:.0f} MB"


def disk(ground: Ground, texts: int, draw: random.Random) -> Iterator[str]:
    """Upload texts until the limit ought to refuse them, and files beside."""
    with Visitor(ground.base) as visitor:
        for number in range(texts):
            visitor.open("train")
            _unfold(visitor, "presets_text")
            visitor.press("change_characters")
            content = draw.randbytes(4 * MB).hex()[: 7 * MB].encode() + str(number).encode()
            try:
                visitor.upload("text_file", f"{number}.txt", content)
            except urllib.error.HTTPError as error:
                yield f"refused with {error.code}"
                continue
            used = ground.disk()
            if used > DISK + 2 * MB:
                raise FindingError(f"{used / MB:.0f} MB lie on the disk, and {DISK / MB:.0f} are allowed")
            yield f"{used / MB:.0f} MB"


def runs(ground: Ground, n: int, draw: random.Random) -> Iterator[str]:
    """Start as many runs as one can, with ever new cookies, and none: the limits hold and nobody's runs are none."""
    book = Book(ground.folder / "runs")
    for number in range(n):
        with Visitor(ground.base, cookie="" if number % 4 == 0 else None) as visitor:
            visitor.open("train")
            visitor.press("start_reverse-small")
            if number % 4 == 0 and any(entry.owner == "" for entry in book.entries()):
                raise FindingError("there is a run that belongs to nobody")
        yield "kept"
    under_way = [entry for entry in book.entries() if entry.is_active or entry.state == "queued"]
    if len(under_way) > 32:
        raise FindingError(f"{len(under_way)} runs are under way from one address")
    for entry in under_way:
        book.change(entry.id, state="stopped") if not entry.is_active else book.send(entry.id, "stop")
    time.sleep(1)


def _unfold(visitor: Visitor, key: str) -> None:
    from streamlit.proto.WidgetStates_pb2 import WidgetState

    state = WidgetState(id=visitor.screen.find(key), bool_value=True)
    visitor.states[state.id] = state
    visitor.run()
