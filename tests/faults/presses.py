"""Buttons pressed in processes of their own, several in the same millisecond."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.faults.ground import Ground, aside
from tests.faults.zygote import NONE, Fault


def press(ground: Ground, n: int = 1, fault: Fault = NONE, **how: Any) -> list[dict[str, Any]]:
    """The answers that `n` tabs got; none where it was killed."""
    results = [aside(ground.store.folder) / f"answer-{number}" for number in range(n)]
    at = time.monotonic() + 0.3 if n > 1 else 0.0
    pids = [
        ground.zygote.start("press", fault, folder=str(ground.store.folder), at=at, result=str(result), **how)
        for result in results
    ]
    for pid in pids:
        ground.wait_until_gone(pid)
    return [json.loads(result.read_text()) if result.exists() else {} for result in results]
