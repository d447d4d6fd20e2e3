"""Timing on a machine that is never quiet: variants take turns, and what counts is the median of their ratios.

A shared machine slows down and speeds up by the second. Two programs timed one after the other differ by what happened in
between; two that take turns meet the same weather, and the ratio of neighbours is what is left. One thread is timed by the
processor time of the process, several by the wall clock.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from xformer.training.loop import prepare_process

WARM_UP = 3
STAT, SLEEP = Path("/proc/stat"), 0.5
KEPT = Path("build/figures")
"""Where a benchmark leaves its tables, a JSON file each."""


def options(about: str | None, *, rounds: int, **more: dict[str, Any]) -> argparse.Namespace:
    """The command line that all benchmarks share, and what one adds to it."""
    parser = argparse.ArgumentParser(description=(about or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help="how often each variant has its turn")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each table instead")
    parser.add_argument("--keep", action="store_true", help=f"write them to {KEPT} too, for benchmarks.figures")
    for name, settings in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    return parser.parse_args()


@dataclass(frozen=True)
class Machine:
    """Where a figure comes from, and how much of the machine was ours while it was taken."""

    threads: int
    others: float
    wall: float
    busy: float

    @classmethod
    def start(cls, threads: int) -> Machine:
        """Settle the process, and start the two clocks."""
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what it starts is compiled once, as on a user's machine
        prepare_process(threads)
        return cls(threads, taken_by_others(), time.perf_counter(), time.process_time())

    def facts(self) -> dict[str, Any]:
        """The machine in words and numbers, up to now."""
        share = (time.process_time() - self.busy) / (time.perf_counter() - self.wall)
        return {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "settings": f"{self.threads} thread{'' if self.threads == 1 else 's'}",
            "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
            "cores_we_got": round(share, 2),
            "taken_by_others": round(self.others, 2),
            "day": time.strftime("%Y-%m-%d"),
        }


def taken_by_others() -> float:
    """The share of all processors that others use while this process sleeps for a moment; 0 where the system does not tell."""

    def times() -> list[int]:
        return [int(one) for one in STAT.read_text().split("\n", 1)[0].split()[1:9]] if STAT.exists() else [0] * 8

    before = times()
    time.sleep(SLEEP)
    spent = [after - earlier for after, earlier in zip(times(), before, strict=True)]
    idle = spent[3] + spent[4]  # doing nothing, and waiting for a disk
    return 1 - idle / sum(spent) if sum(spent) else 0.0


def in_turns(variants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each variant in each of `rounds` turns, after a few that do not count."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(-WARM_UP, rounds):
        for name, run in variants.items():
            start = clock()
            run()
            if turn >= 0:
                seconds[name].append(clock() - start)
    return seconds


def ratio(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float]:
    """How many times as long `slow` took, turn by turn: lower quartile, median, upper quartile."""
    ratios = sorted(a / b for a, b in zip(slow, fast, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return low, middle, high


def show(
    name: str, machine: Machine, rows: list[dict[str, Any]], notes: Sequence[str], given: argparse.Namespace
) -> None:
    """Rows of raw figures as JSON, or as a table with what is needed to read it."""
    facts = machine.facts()
    text = json.dumps({"benchmark": name, "machine": facts, "rows": rows, "notes": list(notes)}, indent=1)
    if given.keep:
        KEPT.mkdir(parents=True, exist_ok=True)
        (KEPT / f"{name.replace(' ', '-')}.json").write_text(text + "\n", encoding="utf-8")
    if given.json:
        print(text)
        return
    table = Table(title=name, title_justify="left")
    for index, column in enumerate(rows[0]):
        table.add_column(column, justify="right" if index else "left")
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print(*notes, sep="\n", highlight=False)
    console.print(
        f"{facts['processor']}, {facts['cores']} cores, load {facts['load']}; torch {facts['torch']}, "
        f"{facts['settings']}. This process got {facts['cores_we_got']} of a core.",
        highlight=False,
    )


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) < 10 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
