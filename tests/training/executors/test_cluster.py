"""Real clusters of simulated nodes, in a network namespace of their own; see `tests.faults.ray` for the long form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import loopback
from tests.faults.ray import PARTS, RESULT

ROOT = Path(__file__).parents[3]
PATIENCE = 1_800.0


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The failures of each part. One cluster for all of them, as it takes a quarter of a minute to start."""
    folder = tmp_path_factory.mktemp("ray")
    command = [sys.executable, "-m", "tests.faults.ray", "--short", "--seed", "0"]
    environment = os.environ | {RESULT: str(folder / "result.json"), "PYTHONPATH": str(ROOT)}
    with open(folder / "out", "w+b") as out:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=out, stderr=out, timeout=PATIENCE)
        output = (folder / "out").read_text("utf-8", "replace")
    if done.returncode == loopback.NOT_PERMITTED:
        pytest.skip("NOT RUN: a Ray cluster is tested in a network namespace of its own, which is not permitted here")
    assert (folder / "result.json").exists(), output[-4_000:]
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("part", PARTS)
def test_a_cluster_keeps_its_runs(part: str, failures: dict[str, list[str]]) -> None:
    """Runs and sweeps like those of processes; a node, the server and the head killed; two servers; the command line."""
    assert failures[part] == []


def test_no_process_of_ray_is_left(failures: dict[str, list[str]]) -> None:
    lines = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if _is_ours(file)]
    assert not [line for line in lines if b"/tmp/xf-" in line]


def _is_ours(file: Path) -> bool:
    try:
        return file.stat().st_uid == os.getuid() and bool(file.read_bytes())
    except OSError:  # it has just ended
        return False
