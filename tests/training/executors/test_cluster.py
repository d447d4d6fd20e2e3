"""A real Ray cluster of one node, in a network namespace of its own; `python -m tests.faults.ray` is the long form."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests import loopback

ROOT = Path(__file__).parents[3]


def test_a_run_is_trained_on_a_node_and_stopped_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.faults.ray", "--short"]
    with open(tmp_path / "out", "w+b") as out:  # a pipe would be held open by whatever is left
        done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=out, stderr=out)
    if done.returncode == loopback.NOT_PERMITTED:
        pytest.skip("NOT RUN: a Ray cluster is tested in a network namespace of its own, which is not permitted here")
    assert done.returncode == 0, (tmp_path / "out").read_text("utf-8", "replace")[-4_000:]
    left = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            left += [file] if file.stat().st_uid == os.getuid() and b"/tmp/xf-" in file.read_bytes() else []
    assert not left
