"""Timing on a shared machine: variants alternate, and the result is the median of their ratios.

The speed of a shared machine changes from second to second, which distorts a comparison of programs timed one after the other.
Programs that alternate run under the same conditions, so the ratio of adjacent turns is reliable. A single thread is timed by
process time, several threads by wall-clock time.
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
"""Folder for the saved tables, one JSON file each."""


def options(about: str | None, *, rounds: int, **more: dict[str, Any]) -> argparse.Namespace:
    """Parse the command line: the options that all benchmarks share, and those in `more`."""
    parser = argparse.ArgumentParser(description=(about or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each variant")
    parser.add_argument("--threads", type=int, default=1, help="number of torch threads")
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    parser.add_argument("--keep", action="store_true", help=f"also save the tables in {KEPT} for tools.figures")
    for name, settings in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    return parser.parse_args()


@dataclass(frozen=True)
class Machine:
    """The machine of a measurement, and the share of it that this process got."""

    threads: int
    used_by_others: float
    wall: float
    busy: float

    @classmethod
    def start(cls, threads: int) -> Machine:
        """Prepare the process and start both clocks."""
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # child processes cache bytecode, as on a user's machine
        prepare_process(threads)
        return cls(threads, share_used_by_others(), time.perf_counter(), time.process_time())

    def facts(self) -> dict[str, Any]:
        """Return a description of the machine and its load up to now."""
        share = (time.process_time() - self.busy) / (time.perf_counter() - self.wall)
        return {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "settings": f"{self.threads} thread{'' if self.threads == 1 else 's'}",
            "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
            "cores_we_got": round(share, 2),
            "taken_by_others": round(self.used_by_others, 2),
            "day": time.strftime("%Y-%m-%d"),
        }


def share_used_by_others() -> float:
    """Return the share of all processors that other processes use while this one sleeps briefly; 0 if it is unknown."""

    def times() -> list[int]:
        return [int(one) for one in STAT.read_text().split("\n", 1)[0].split()[1:9]] if STAT.exists() else [0] * 8

    before = times()
    time.sleep(SLEEP)
    spent = [after - earlier for after, earlier in zip(times(), before, strict=True)]
    idle = spent[3] + spent[4]  # idle and iowait
    return 1 - idle / sum(spent) if sum(spent) else 0.0


def in_turns(variants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each variant in `rounds` turns, after some warm-up turns."""
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
    """Return the quartiles of the ratio `slow` / `fast` over the turns: lower quartile, median, upper quartile."""
    ratios = sorted(a / b for a, b in zip(slow, fast, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return low, middle, high


def show(
    name: str, machine: Machine, rows: list[dict[str, Any]], notes: Sequence[str], given: argparse.Namespace
) -> None:
    """Print the rows as JSON, or as a table with notes and the machine."""
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


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
