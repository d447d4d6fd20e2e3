"""Many visitors at once, each with secrets in what they type, draw, change and upload: no other visitor may be sent one."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.attack.damaged import originals
from tests.attack.ground import Ground
from tests.attack.visitor import FindingError, Visitor
from xformer.checkpoints import Checkpoint, from_bytes, to_bytes
from xformer.training.run_store import RunStore


def attempts(ground: Ground, n: int, draw: random.Random) -> Iterator[str]:
    """Let up to twenty visitors look and type n times in all; then compare what each received with what each typed."""
    visitors = min(n, 20)
    crowd = [_One(ground, n // visitors, random.Random(draw.random())) for _ in range(visitors)]
    with ThreadPoolExecutor(visitors) as pool:
        jobs = [pool.submit(one.run) for one in crowd]
    for number, job in enumerate(jobs):
        if problem := job.exception():
            raise FindingError(f"visitor {number}: {problem}") from problem
    for one in crowd:
        for canary in one.seen - one.secrets:
            raise FindingError(f"a visitor was sent {canary!r}, which is a secret of another")
        yield from ("kept",) * len(one.secrets)
    took = sorted(seconds for one in crowd for seconds in one.took)
    yield f"p95 of a page {took[len(took) * 95 // 100] * 1000:,.0f} ms"
    if not any(one.seen for one in crowd):
        raise FindingError("no visitor was sent even their own secrets: nothing was tried")


@dataclass
class _One:
    ground: Ground
    looks: int
    draw: random.Random
    secrets: set[bytes] = field(default_factory=set)
    seen: set[bytes] = field(default_factory=set)
    took: list[float] = field(default_factory=list)

    def run(self) -> None:
        with Visitor(self.ground.base) as visitor:
            for _ in range(self.looks):
                self._look(visitor)
            self._import(visitor)
            self.seen, self.took = visitor.seen, visitor.took

    def _canary(self) -> str:
        word = f"canary{secrets.token_hex(6)}"
        self.secrets.add(word.encode())
        return word

    def _look(self, visitor: Visitor) -> None:
        page = self.draw.choice(("", "attention", "residual", "compare"))
        visitor.open(page, f"model=reverse&input={self._canary()}")
        visitor.open(page, f"model=reverse&input=3 7 12&edits={self._canary()}")
        visitor.open("first_principles", f"text=the {self._canary()}")
        visitor.open("", f"model=characters&input=The {self._canary()} and more")
        visitor.open("runs", f"find={self._canary()}")
        visitor.open("train")
        visitor.open("compare")

    def _import(self, visitor: Visitor) -> None:
        """A file whose name, and the name in it, are secrets; only its owner finds it, and knows its link."""
        visitor.open("runs")
        good, canary = from_bytes(originals()["import"]), self._canary()
        card = {**good.card, "name": canary, "about": self._canary()}
        visitor.upload(
            "runs_import", f"{self._canary()}.safetensors", to_bytes(Checkpoint(good.model, good.task, card))
        )
        store = RunStore(self.ground.folder / "runs")
        [entry] = [entry for entry in store.entries() if entry.owner == visitor.cookie]
        if entry.name != canary or not entry.private:
            raise FindingError(f"the import came to be {entry.name!r}, private {entry.private}")
        for stranger in ("", secrets.token_hex(16)):
            with Visitor(self.ground.base, cookie=stranger) as other:
                for page, query in (
                    ("train", f"run={entry.id}"),
                    ("runs", f"runs={entry.id}"),
                    ("", f"model={entry.id}@{entry.step}"),
                    ("compare", f"a={entry.id}&b=reverse"),
                ):
                    other.open(page, query)
                if other.seen:
                    raise FindingError(f"a stranger was sent {other.seen}")
