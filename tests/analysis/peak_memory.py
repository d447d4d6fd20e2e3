"""How much memory an expression takes at its peak, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, threading, time
import numpy as np, pandas as pd, torch
import xformer
from xformer import analysis, viz
from xformer.analysis import {modules}
torch.set_num_threads(1)
{before}
def held():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
open("/proc/self/clear_refs", "w").write("5")  # the peak is counted from here
start = held()
result = {expression}
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM:")][0]
print("PEAK", int(peak.split()[1]) * 1024 - start)
"""
MODULES = "number_waves, embeddings"


def peak_of(expression: str, before: str = "", modules: str = MODULES) -> int:
    """Bytes of resident memory at the peak of an expression, above what is there after `before`."""
    program = PROGRAM.format(expression=expression, before=before, modules=modules)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    [line] = [line for line in run.stdout.splitlines() if line.startswith("PEAK")]
    return int(line.split()[1])
