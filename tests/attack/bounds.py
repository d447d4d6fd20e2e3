"""A small file that would take all memory, and writing without end: both stay within what the server allows."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.attack.ground import BY_ADDRESS, DISK, MB, Ground
from tests.attack.visitor import FindingError, Visitor
from xformer import ModelConfig, Transformer
from xformer.checkpoints import Checkpoint, to_bytes
from xformer.config import TaskConfig
from xformer.tasks import Task
from xformer.training import jobs
from xformer.training.entry import Entry
from xformer.training.run_store import RunStore

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
            mine = [entry for entry in RunStore(ground.folder / "runs").entries() if entry.owner == visitor.cookie]
            for entry in mine[:1]:
                for page in ("attention", "", "residual", "compare"):
                    visitor.open(page, f"model={entry.id}@{entry.step}&input={' '.join('1' * 79)}")
                    more = ground.memory() - before
                    if more > MOST_MORE:
                        raise FindingError(f"{n_layers} × {n_heads} heads took {more / MB:.0f} MB on {page or 'home'}")
            yield f"+{(ground.memory() - before) / MB:.0f} MB"


def disk(ground: Ground, texts: int, draw: random.Random) -> Iterator[str]:
    """Upload texts of 6 MB until the limit ought to refuse them."""
    kept = 0
    with Visitor(ground.base) as visitor:
        for number in range(texts):
            visitor.open("train")
            visitor.open_menu("presets_text")
            visitor.press("change_characters")
            before = ground.disk()
            visitor.upload("text_file", f"{number}.txt", draw.randbytes(3 * MB).hex().encode())
            kept += ground.disk() - before > MB
            if ground.disk() > DISK:
                raise FindingError(f"{ground.disk() / MB:.0f} MB lie on the disk, and {DISK / MB:.0f} are allowed")
            yield "kept" if ground.disk() - before > MB else "refused"
    if not 0 < kept < texts:
        raise FindingError(f"{kept} of {texts} texts were kept: the limit was not tried")


def runs(ground: Ground, n: int, draw: random.Random) -> Iterator[str]:
    """Start runs with new cookies and without one: the limit of the address holds, and no run is without an owner."""
    store = RunStore(ground.folder / "runs")
    try:
        for number in range(n):
            cookie = "" if number % 4 == 0 else None
            with Visitor(ground.base, cookie=cookie) as visitor:
                visitor.open("train")
                visitor.press("start_induction")
            if any(entry.owner == "" for entry in store.entries()):
                raise FindingError("there is a run without an owner")
            if (found := len(_under_way(store))) > BY_ADDRESS:
                raise FindingError(f"{found} runs are under way from one address, and {BY_ADDRESS} are allowed")
            yield "refused without an owner" if cookie == "" else f"{found} under way"
        with Visitor(ground.base, headers={"X-Forwarded-For": "203.0.113.7"}) as visitor:  # as a proxy here says it
            visitor.open("train")
            visitor.press("start_induction")
            if not any(entry.owner == visitor.cookie for entry in store.entries()):
                raise FindingError("the limit of one address holds for another one too")
        yield "another address may"
    finally:
        for entry in _under_way(store):
            jobs.stop(store, entry.id)


def _under_way(store: RunStore) -> list[Entry]:
    return [entry for entry in store.entries() if entry.is_active or entry.state == "queued"]
