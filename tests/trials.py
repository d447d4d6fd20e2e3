"""Kinds of trials and the table of their outcomes, for `python -m tests.attack` and `python -m tests.faults`."""

from __future__ import annotations

import argparse
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


class Kind(NamedTuple):
    """Trials of one kind: `trials(n, draw)` yields the outcome of each trial, and raises `AssertionError` on a finding."""

    name: str
    trials: Callable[[int, random.Random], Iterator[str]]
    short: int
    """Number of trials with `--short`, which for attacks is also the number in the test suite."""
    long: int


def options_of(program: str) -> argparse.Namespace:
    """Parse the options `short`, `only` and `seed`, and print the seed, so that a finding can be reproduced."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--short", action="store_true", help="run a few trials of each kind")
    parser.add_argument("--only", default="", help="run only the kinds whose name contains this text")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    return options


def try_all(kinds: Sequence[Kind], options: argparse.Namespace) -> int:
    """Run all kinds and print a line for each. Returns the exit status: 1 if there was a finding."""
    status = 0
    print(f"{'kind':<36} {'trials':>7} {'seconds':>8}  outcomes", flush=True)
    for kind in kinds:
        if options.only not in kind.name:
            continue
        outcomes: Counter[str] = Counter()
        began, finding = time.monotonic(), ""
        try:
            for outcome in kind.trials(kind.short if options.short else kind.long, random.Random(options.seed)):
                outcomes[outcome] += 1
        except Exception:
            status, finding = 1, f"FINDING in trial {outcomes.total() + 1}:\n{traceback.format_exc()}"
        most = ", ".join(f"{n:,} × {what}" for what, n in outcomes.most_common(4))
        print(
            f"{kind.name:<36} {outcomes.total():>7,} {time.monotonic() - began:>8.1f}  {most}\n{finding}",
            end="",
            flush=True,
        )
    return status
