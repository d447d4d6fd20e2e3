"""Waiting time for a change when many visitors use the same real model, compared with plain forward passes.

    python -m benchmarks.lecture --visitors 30 --minutes 3 [--every 20] [--model hf:SmolLM2-135M-Instruct] [--json]

Each visitor makes a change about every `--every` seconds, at random times: another head (half of the changes), ablating or
restoring a head (a quarter), another screen (an eighth), another sentence (an eighth; one of nine, eight of which the class
shares). Every change reruns the whole page, as Back and Forward do, while clicking a head reruns only a part of it. The time is
measured from sending the change to the last message of the rerun.

For comparison, a plain forward pass of `transformers` with attention weights is timed in a separate process.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.crowd import resident
from benchmarks.measure import Machine, options, show
from tests.attack import visitor
from tests.attack.visitor import Visitor
from tests.browser.serving import launch, stop

SENTENCES = (
    "When Mary and John went to the store, John gave a drink to",
    "The cat sat on the mat because it was",
    "The capital of France is Paris and the capital of Italy is",
    "She hoped that she would come back after the",
    "One two three four five six seven",
    "The keys to the cabinet are on the",
    "My name is Anna. Hello, my name is",
    "If it rains tomorrow we will stay at",
)
NAMES = ("Anna", "Ben", "Clara", "David", "Eva", "Felix", "Greta", "Hugo")
SCREENS = ("attention", "attention", "attention", "residual", "feed_forward")
PASSES = 40
"""Number of timed forward passes."""
LAYERS, HEADS = 30, 9
"""Layers and heads of SmolLM2-135M. A smaller model shows its first head when a link names one that it lacks."""
FORWARD = """
import sys, time, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
torch.set_num_threads(int(sys.argv[2]))
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], attn_implementation="eager").eval()
inputs = [tokenizer(text, return_tensors="pt") for text in sys.argv[4:]]
with torch.no_grad():
    model(**inputs[0], output_attentions=True)
    began = time.process_time()
    for index in range(int(sys.argv[3])):
        model(**inputs[index % len(inputs)], output_attentions=True)
print(time.process_time() - began)
"""


def main() -> None:
    given = options(
        __doc__,
        rounds=1,
        visitors={"type": int, "default": 30, "help": "number of simultaneous visitors"},
        every={"type": float, "default": 20.0, "help": "seconds between the changes of a visitor"},
        minutes={"type": float, "default": 3.0, "help": "minutes to measure after all visitors have opened a screen"},
        model={"default": "hf:SmolLM2-135M-Instruct", "help": "name of the model in links"},
        apart={"action": "store_true", "help": "no two visitors use the same sentence, so no results are shared"},
        after={"type": int, "default": 0, "help": "seconds to measure memory after the last visitor has left"},
    )
    visitor.PATIENCE = 600.0
    machine = Machine.start(given.threads)
    rows, notes = measured(given.model, given.visitors, given.every, given.minutes * 60, given.after, apart=given.apart)
    show("A lecture", machine, rows, notes, given)


def measured(
    model: str, visitors: int, every: float, seconds: float, after: int, *, apart: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for all changes and one for each kind, and notes."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server, base = launch(XFORMER_RUNS=folder, XFORMER_OPEN="1", XFORMER_MAX_CONNECTIONS_BY_ADDRESS="1000")
        try:
            with Visitor(base) as first:
                first.open("attention", f"model={model}")
            began = resident(server.pid)
            crowd = [Attendee(base, model, every, number, apart=apart) for number in range(visitors)]
            memory, used = _watched(server.pid, crowd, seconds)
            leftover = list(_left(server.pid, after))
        finally:
            stop(server)
    if problems := [one.problem for one in crowd if one.problem]:
        raise problems[0]
    changes = [change for one in crowd for change in one.changes]
    rows = [_row("all", [took for _, took in changes])]
    rows += [_row(kind, [took for of, took in changes if of == kind]) for kind in sorted({kind for kind, _ in changes})]
    notes = [
        f"{visitors} visitors, each making a change every {every:g} s: {len(changes)} changes in {seconds:.0f} s"
        + (", no input shared." if apart else "."),
        f"The server used {used / len(changes):.2f} processor seconds per change.",
        f"Memory in MB: {began >> 20} at the start, then every half minute {', '.join(str(one >> 20) for one in memory)}.",
    ]
    if model.startswith("hf:"):
        forward = forward_passes(model, PASSES)
        times = used / len(changes) / forward
        notes.append(
            f"A plain forward pass takes {forward:.2f} processor seconds; a change took {times:.1f} times that."
        )
    notes += [f"{when} s after the last visitor left: {n_bytes >> 20} MB." for when, n_bytes in leftover]
    return rows, notes


def _watched(pid: int, crowd: list[Attendee], seconds: float) -> tuple[list[int], float]:
    """Run the visitors. Return the server's memory every half minute, and its processor seconds for their changes."""
    for one in crowd:
        one.start()
    while not all(one.has_opened.is_set() or not one.is_alive() for one in crowd):
        time.sleep(0.1)
    before, until, memory = processor_seconds(pid), time.monotonic() + seconds, [resident(pid)]
    for one in crowd:
        one.until = until
        one.may_begin.set()
    while time.monotonic() < until:
        time.sleep(min(30.0, max(0.1, until - time.monotonic())))
        memory.append(resident(pid))
    for one in crowd:
        one.join()
    return memory, processor_seconds(pid) - before


def _left(pid: int, after: int) -> Iterator[tuple[int, int]]:
    left = time.monotonic()
    for seconds in range(30, after + 1, 30):
        time.sleep(max(0.0, left + seconds - time.monotonic()))
        yield seconds, resident(pid)


def _row(kind: str, seconds: list[float]) -> dict[str, Any]:
    cut = statistics.quantiles(seconds, n=20) if len(seconds) > 1 else seconds * 19
    return {
        "change": kind,
        "n": len(seconds),
        "p50 s": round(statistics.median(seconds), 2),
        "p95 s": round(cut[18], 2),
        "max s": round(max(seconds), 2),
    }


class Attendee(threading.Thread):
    """A visitor who opens a screen, then makes changes at random times until the time is up."""

    def __init__(self, base: str, model: str, every: float, number: int, *, apart: bool) -> None:
        super().__init__(daemon=True)
        self.apart = apart
        self.base, self.every, self.draw = base, every, random.Random(number)
        self.name_of_visitor = f"{NAMES[number % len(NAMES)]} {number}"
        self.screen = "attention"
        self.link = {"model": model, "input": self._sentence(number % len(SENTENCES)), "head": "1.1"}
        self.has_opened, self.may_begin, self.until = threading.Event(), threading.Event(), 0.0
        self.changes: list[tuple[str, float]] = []
        self.problem: Exception | None = None

    def run(self) -> None:
        try:
            with Visitor(self.base) as visit:
                visit.open(self.screen, self._query)
                self.has_opened.set()
                self.may_begin.wait()
                at = time.monotonic() + self.draw.random() * self.every
                while at < self.until:
                    time.sleep(max(0.0, at - time.monotonic()))
                    kind = self._change()
                    began = time.monotonic()
                    visit.open(self.screen, self._query, is_history=True)
                    self.changes.append((kind, time.monotonic() - began))
                    at = max(time.monotonic(), at + self.every * (0.5 + self.draw.random()))
        except Exception as error:
            self.problem = error

    def _change(self) -> str:
        kind = self.draw.choices(("head", "ablation", "screen", "sentence"), (4, 2, 1, 1))[0]
        layer, head = self.draw.randrange(LAYERS), self.draw.randrange(HEADS)
        if kind == "head":
            self.link["head"] = f"{layer + 1}.{head + 1}"
        elif kind == "ablation" and self.link.pop("edits", None) is None:
            self.link["edits"] = f"ablate:decoder.{layer}.attn.{head}"
        elif kind == "screen":
            self.screen = self.draw.choice(SCREENS)
        elif kind == "sentence":
            self.link["input"] = self._sentence(self.draw.randrange(len(SENTENCES) + 1))
        return kind

    def _sentence(self, number: int) -> str:
        """Return a sentence that the class shares, or the visitor's own."""
        if number >= len(SENTENCES):
            return f"{self.name_of_visitor} thinks that the answer is"
        own = f"{self.name_of_visitor} says: " if self.apart else ""
        return own + SENTENCES[number]

    @property
    def _query(self) -> str:
        return "&".join(f"{name}={value}" for name, value in self.link.items())


def forward_passes(model: str, n: int, threads: int = 1) -> float:
    """Return the mean processor seconds of `n` forward passes of the Transformers library with attention weights."""
    folder = str(Path("models") / model.removeprefix("hf:"))
    command = [sys.executable, "-c", FORWARD, folder, str(threads), str(n), *SENTENCES]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    return float(done.stdout) / n


def processor_seconds(pid: int) -> float:
    """Return the processor seconds that a process has used."""
    times = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
