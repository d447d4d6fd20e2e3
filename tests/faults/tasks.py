"""What a forked process does: train a run, look after the queue as a server does, or press a button as a visitor does."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.faults import ground
from tests.faults.zygote import spawn_by
from xformer.errors import XformerError
from xformer.paths import STATE
from xformer.training import jobs, loop, worker
from xformer.training.limits import Limits
from xformer.training.run_store import RunStore

LAST_STATE = "last-state.safetensors"


def train(lock: int, *, address: str, folder: str, run: str, token: str, log: str) -> int:
    """Be the worker of a run. The last state, which a finished run has no use for, is kept beside the store to be compared."""
    jobs._spawn = spawn_by(address)
    worker.lower_priority = lambda entry: None  # the machine may be busy
    finish = loop.Run._finish

    def keep_and_finish(one: loop.Run) -> None:
        if one.out is not None and (one.out / STATE).exists():
            shutil.copy(one.out / STATE, ground.aside(Path(folder)) / f"{run}-{LAST_STATE}")
        finish(one)

    loop.Run._finish = keep_and_finish
    return worker.main([run, "--folder", folder, "--token", token, "--lock", str(lock)])


def reconcile(*, address: str, folder: str, seconds: float) -> int:
    """Be a server: tend the run store in a loop."""
    jobs._spawn = spawn_by(address)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(XformerError, OSError):  # as the server's own loop
            jobs.reconcile(RunStore(folder))
        time.sleep(0.05)
    return 0


def press(*, address: str, folder: str, button: str, at: float, result: str, **arguments: Any) -> int:
    """Be a tab: press a button at a moment, and write down what came of it."""
    jobs._spawn = spawn_by(address)
    store = RunStore(folder)
    while time.monotonic() < at:
        time.sleep(0)
    try:
        if button == "start":
            limits = Limits(waiting=arguments["waiting"]) if "waiting" in arguments else None
            answer = jobs.submit(store, ground.SHORT, owner=arguments.get("owner", ""), limits=limits)
        elif button == "resume":
            answer = jobs.resume(store, arguments["run"])
        elif button == "fork":
            answer = jobs.fork(store, arguments["run"], arguments["step"], ground.SHORT)
        else:
            answer = jobs.reconcile(store)
        result_text = {"answer": answer}
    except XformerError as error:
        result_text = {"error": str(error)}
    Path(f"{result}.part").write_text(json.dumps(result_text))
    os.replace(f"{result}.part", result)
    return 0


TASKS: dict[str, Callable[..., int]] = {"worker": train, "reconcile": reconcile, "press": press}
