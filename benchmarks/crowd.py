"""Memory of a server while many visitors view a model with very many heads, and after all of them have left.

    python -m benchmarks.crowd --visitors 28 [--layers 48 --heads 128 --tokens 40 --rest 30 --after 120] [--json]

Each visitor opens the screens in turn with a different input and stays connected until the last one is done. The heads of the
model are narrow, so its file is small and its patterns are large.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Machine, options, resident, show
from tests.attack import visitor
from tests.attack.visitor import Visitor
from tests.browser.serving import launch, stop
from tests.training.tiny import add_model

ROOT = Path(__file__).parents[1]
SCREENS = ("attention", "residual", "feed_forward", "embeddings", "")
CHANGE = "ablate:encoder.0.attn.1"
MB = 1024**2


def main() -> None:
    given = options(
        __doc__,
        rounds=1,
        visitors={"type": int, "default": 28, "help": "number of simultaneous visitors"},
        layers={"type": int, "default": 48},
        heads={"type": int, "default": 128},
        tokens={"type": int, "default": 40, "help": "tokens in each visitor's input"},
        rest={"type": int, "default": 30, "help": "seconds that visitors stay connected after the last screen"},
        after={"type": int, "default": 120, "help": "seconds to measure after the last visitor has left"},
    )
    machine = Machine.start(given.threads)
    visitor.PATIENCE = 900.0  # with this many visitors, each waits for the others
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        model = add_model(Path(folder), given.layers, given.heads)
        rows = list(measured(Path(folder), model, given.visitors, given.tokens, given.rest, given.after))
    notes = [f"{given.visitors} visitors, {given.layers} layers of {given.heads} heads, {given.tokens} tokens each."]
    show("A crowd", machine, rows, notes, given)


def measured(folder: Path, model: str, visitors: int, tokens: int, rest: int, after: int) -> Iterator[dict[str, Any]]:
    """Yield a row with the memory of the server for each phase."""
    os.environ |= {"XFORMER_RUNS": str(folder), "XFORMER_OPEN": "1"}
    server, base = launch()
    try:
        with Visitor(base) as first:
            for screen in SCREENS:
                first.open(screen, "model=reverse&input=3 7 12")
        yield row("a visitor with a small model has left", resident(server.pid), 0)
        crowd = [Looking(base, model, tokens, number) for number in range(visitors)]
        for one in crowd:
            one.start()
        most = 0
        while any(one.is_alive() and not one.done.is_set() for one in crowd):
            most = max(most, resident(server.pid))
            time.sleep(0.2)
        yield row("while they look, at most", most, 0)
        time.sleep(rest)
        yield row(f"{rest} s after all have looked, still connected", resident(server.pid), 0)
        for one in crowd:
            one.leave.set()
        for one in crowd:
            one.join()
        problems = [one.problem for one in crowd if one.problem]
        if problems:
            raise problems[0]
        left = time.monotonic()
        for seconds in range(30, after + 1, 30):
            time.sleep(max(0.0, left + seconds - time.monotonic()))
            yield row(f"{seconds} s after they have left", resident(server.pid), seconds)
    finally:
        stop(server)


def row(when: str, n_bytes: int, seconds: int) -> dict[str, Any]:
    return {"when": when, "MB": round(n_bytes / MB), "seconds after": seconds}


class Looking(threading.Thread):
    """A visitor who opens all screens and stays until stopped."""

    def __init__(self, base: str, model: str, tokens: int, number: int) -> None:
        super().__init__(daemon=True)
        self.base, self.model = base, model
        draw = random.Random(number)
        self.input = " ".join(str(draw.randrange(1, 10)) for _ in range(tokens))
        self.done, self.leave = threading.Event(), threading.Event()
        self.problem: Exception | None = None

    def run(self) -> None:
        try:
            with Visitor(self.base) as one:
                for screen in SCREENS:
                    one.open(screen, f"model={self.model}&input={self.input}&edits={CHANGE}")
                self.done.set()
                self.leave.wait()
        except Exception as error:
            self.problem = error


if __name__ == "__main__":
    main()
