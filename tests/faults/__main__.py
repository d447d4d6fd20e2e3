"""`python -m tests.faults`: try every fault, print how many were tried and survived, and fail when one was not.

python -m tests.faults                  the long form, a quarter of an hour or so
python -m tests.faults --short          what the test suite does
python -m tests.faults --only kill      the kinds whose name holds a word
"""

from __future__ import annotations

import random
import sys
import time
import traceback

from tests.faults.ground import NotPossibleError
from tests.faults.kinds import KINDS, Kind
from tests.faults.zygote import Zygote
from tests.trial_options import trial_options


def main() -> int:
    """Try all kinds of faults; 0 when all were survived."""
    options = trial_options("python -m tests.faults")
    print(f"{'fault':<64} {'tried':>6} {'survived':>9} {'seconds':>8}", flush=True)
    zygote, tried, survived, began = Zygote(), 0, 0, time.monotonic()
    try:
        for kind in KINDS:
            if options.only in kind.name and (kind.short or not options.short):
                n_tried, n_survived = _try_all(kind, zygote, options.short, random.Random(options.seed))
                tried, survived = tried + n_tried, survived + n_survived
    finally:
        zygote.close()
    print(f"{'all':<64} {tried:>6} {survived:>9} {time.monotonic() - began:>8.0f}")
    return 0 if tried and survived == tried else 1


def _try_all(kind: Kind, zygote: Zygote, short: bool, draw: random.Random) -> tuple[int, int]:
    tried, failures, began, remark = 0, [], time.monotonic(), ""
    try:
        for trial in kind.trials(zygote, kind.short if short else kind.long, draw):
            tried += 1
            try:
                trial.run()
            except NotPossibleError:
                tried -= 1
                raise
            except Exception:
                failures.append(f"NOT SURVIVED: {trial.name}\n{traceback.format_exc()}")
    except NotPossibleError as reason:
        remark = f"  not tried: {reason}"
    survived = tried - len(failures)
    print(f"{kind.name:<64} {tried:>6} {survived:>9} {time.monotonic() - began:>8.1f}{remark}", flush=True)
    for failure in failures[:3]:
        print(failure, flush=True)
    return tried, survived


if __name__ == "__main__":
    sys.exit(main())
