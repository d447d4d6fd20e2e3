"""What `python -m tests.attack` and `python -m tests.faults` share: kinds of trials, and a table of the outcomes."""

from __future__ import annotations

import argparse
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


class Kind(NamedTuple):
    """Trials of one kind: `trials(n, draw)` yields the outcome of each, and raises `AssertionError` on a finding."""

    name: str
    trials: Callable[[int, random.Random], Iterator[str]]
    short: int
    """Trials of the short form; of an attack, those of the test suite."""
    long: int


def options_of(program: str) -> argparse.Namespace:
    """`short`, `only` and `seed`; the seed is printed, so that what was found can be found again."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--short", action="store_true", help="a few trials of each kind")
    parser.add_argument("--only", default="", help="the kinds whose name holds a word")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    return options


def try_all(kinds: Sequence[Kind], options: argparse.Namespace) -> int:
    """Try all kinds and print a line for each. Returns the exit status: 1 where there was a finding."""
    status = 0
    print(f"{'kind':<36} {'tried':>7} {'seconds':>8}  what came of it", flush=True)
    for kind in kinds:
        if options.only not in kind.name:
            continue
        came: Counter[str] = Counter()
        began, finding = time.monotonic(), ""
        try:
            for outcome in kind.trials(kind.short if options.short else kind.long, random.Random(options.seed)):
                came[outcome] += 1
        except Exception:
            status, finding = 1, f"FINDING in trial {came.total() + 1}:\n{traceback.format_exc()}"
        most = ", ".join(f"{n:,} × {what}" for what, n in came.most_common(4))
        print(
            f"{kind.name:<36} {came.total():>7,} {time.monotonic() - began:>8.1f}  {most}\n{finding}",
            end="",
            flush=True,
        )
    return status
