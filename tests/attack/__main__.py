"""`python -m tests.attack`: attack a server of one's own on 127.0.0.1, print what came of it, and fail on a finding.

python -m tests.attack                  the long form, some minutes
python -m tests.attack --short          what the test suite does
python -m tests.attack --only links     the kinds whose name holds a word
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from collections import Counter

from tests.attack.ground import MB, Ground
from tests.attack.kinds import KINDS, Kind
from tests.attack.visitor import FindingError
from tests.trial_options import trial_options


def main() -> int:
    """Try all attacks; 0 where there is no finding."""
    options = trial_options("python -m tests.attack")
    print(f"{'attack':<36} {'tried':>7} {'findings':>9} {'seconds':>8} {'server, MB':>11}  what came of it", flush=True)
    findings = 0
    with Ground() as ground:
        for kind in KINDS:
            if options.only in kind.name:
                n = kind.short if options.short else kind.long
                findings += _try(kind, ground, n, random.Random(options.seed))
    print(f"{findings} findings")
    return 1 if findings else 0


def _try(kind: Kind, ground: Ground, n: int, draw: random.Random) -> int:
    came: Counter[str] = Counter()
    began, finding = time.monotonic(), ""
    try:
        for what in kind.attempts(ground, n, draw):
            came[what] += 1
        ground.check()
    except FindingError as error:
        finding = str(error)
    except Exception:
        finding = traceback.format_exc()
    seconds, most = time.monotonic() - began, ", ".join(f"{n:,} × {what}" for what, n in came.most_common(4))
    memory = ground.memory() / MB
    print(f"{kind.name:<36} {came.total():>7,} {bool(finding):>9} {seconds:>8.1f} {memory:>11.0f}  {most}", flush=True)
    if finding:
        print(f"  FINDING: {finding}", flush=True)
    return bool(finding)


if __name__ == "__main__":
    sys.exit(main())
