"""A short fault injection test; `make faults` runs more. Nothing is lost, and the run ends in the same bits."""

from __future__ import annotations

import random

from tests.faults.processes import FAULTS, disturb


def test_run_survives_a_shutdown_a_kill_a_full_disk_and_a_stop() -> None:
    states = disturb(FAULTS, random.Random(1679))
    assert states[:2] == ["interrupted", "interrupted"]  # on a fast machine the run may finish before the other faults
