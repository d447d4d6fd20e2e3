"""What is settled for a whole process: it says what it did, the process is so afterwards, and elsewhere nothing happens."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

import pytest

from xformer.training import process_tuning

# In a process of its own: these settings outlast a test.
SETTLE = """
import json, torch
from xformer.training.process_tuning import tune_process

settled = tune_process(threads=1)
tiny = float(torch.tensor([1e-40]) * 1.0)
print(json.dumps([vars(settled), str(settled), torch.get_num_threads(), tiny]))
"""

# Works until its priority is another one, or for far longer than it should have taken.
WORK = """
import os, sys, time
from types import ModuleType
sys.modules["torch"] = ModuleType("torch")  # nothing of it is needed here, and it takes longer than all else
from xformer.training.process_tuning import lower_priority_later

def priority():
    return [os.sched_getscheduler(0) == os.SCHED_IDLE, os.nice(0)]

usual, begun = priority(), time.process_time()
lower_priority_later(seconds=0.2)
time.sleep(0.4)
waited = priority() == usual
while priority() == usual and time.process_time() < begun + 20:
    pass
# the timer counts the ticks of a clock that are found busy, so it may ring a little early
print(usual[0], waited, priority()[0] or priority()[1] > usual[1], time.process_time() - begun >= 0.1)
"""


def test_a_settled_process_is_as_it_says() -> None:
    answer = subprocess.run([sys.executable, "-c", SETTLE], capture_output=True, text=True, check=True)
    settled, said, threads, tiny = json.loads(answer.stdout)
    assert settled["threads"] == threads == 1
    assert settled["flushes_denormals"] == (tiny == 0.0)
    assert ("memory kept" in said) == settled["keeps_memory"]
    assert "1 thread" in said
    assert "threads" not in said


@pytest.mark.parametrize("library", [object(), OSError("no such library"), TypeError("Windows has no main program")])
def test_elsewhere_nothing_happens(library: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: None) -> object:
        if isinstance(library, Exception):
            raise library
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert process_tuning.keep_memory() is False


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux has this priority")
def test_a_process_yields_once_it_has_worked_for_a_while() -> None:
    answer = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "True", "True", "True"]
