"""How much memory an expression takes at its peak, measured in a process of its own."""

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
    if os.fork() == 0:  # nothing of one measurement is left in memory for the next
        names = dict(globals())
        exec(before, names)
        open("/proc/self/clear_refs", "w").write("5")  # the peak is counted from here
        start = held()
        result = eval(expression, names)
        [peak] = [line for line in open("/proc/self/status") if line.startswith("VmHWM:")]
        print("PEAK", int(peak.split()[1]) * 1024 - start, flush=True)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(1)
"""


def peaks_of(cases: Sequence[tuple[str, str]]) -> list[int]:
    """Bytes of resident memory at the peak of each expression, above what is there after the code that comes before it.

    Args:
        cases: Expressions, each with the code that comes before it.
    """
    program = PROGRAM.format(cases=list(cases))
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return [int(line.split()[1]) for line in run.stdout.splitlines() if line.startswith("PEAK")]
