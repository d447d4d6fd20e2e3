"""The command line that `python -m tests.attack` and `python -m tests.faults` share."""

from __future__ import annotations

import argparse
import time


def trial_options(program: str, *, has_short_form: bool = True) -> argparse.Namespace:
    """`short`, `only` and `seed`; the seed is printed, so that what was found can be found again."""
    parser = argparse.ArgumentParser(prog=program)
    if has_short_form:
        parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    return options
