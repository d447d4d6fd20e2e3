"""The peak memory of an expression, measured in a separate process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

PROGRAM = """
import os, resource, sys
import numpy as np, pandas as pd, torch
import xformer
from xformer import analysis, viz
from xformer.analysis import attention_patterns, embeddings, number_waves
torch.set_num_threads(1)

def held():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

for expression, before in {cases!r}:
    if os.fork() == 0:  # each measurement starts from the same memory
        names = dict(globals())
        exec(before, names)
        open("/proc/self/clear_refs", "w").write("5")  # resets the peak
        start = held()
        result = eval(expression, names)
        [peak] = [line for line in open("/proc/self/status") if line.startswith("VmHWM:")]
        print("PEAK", int(peak.split()[1]) * 1024 - start, flush=True)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(1)
"""


def peaks_of(cases: Sequence[tuple[str, str]]) -> list[int]:
    """Return the peak resident memory of each expression in bytes, above that after its setup code.

    Args:
        cases: Expressions, each with its setup code.
    """
    program = PROGRAM.format(cases=list(cases))
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return [int(line.split()[1]) for line in run.stdout.splitlines() if line.startswith("PEAK")]
