"""A process that has torch in memory and forks others from it, so that a worker is there at once.

What it forks are processes like any other: killed by signals, holding locks, writing files. It serves on a socket, and takes
the lock of a worker as an open file, as `subprocess` would hand it over.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import disk

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fault:
    """What goes wrong in a process: calls on a folder (see `disk.arm`), and mischief by name with its arguments."""

    calls: tuple[int, int, int] | None = None
    """First, last, error; the folder is the run store's."""
    log: str = os.devnull
    """Where the calls are written down."""
    mischief: dict[str, dict[str, Any]] = field(default_factory=dict)


NONE = Fault()


class Zygote:
    """The process and the way to it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="xformer-faults-"))
        self.address = str(self.folder / "socket")
        library = disk.library(self.folder)
        self.can_refuse = library is not None
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        if library is not None:
            environment["LD_PRELOAD"] = str(library)
        command = [sys.executable, "-m", "tests.faults.zygote", self.address]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment)
        deadline = time.monotonic() + 120
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the process that forks the others did not start")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            return self.alive() == []
        except OSError:
            return False

    def start(self, task: str, fault: Fault = NONE, lock: int | None = None, **arguments: Any) -> int:
        """Fork a process that does one of `TASKS`; returns its number."""
        return start(self.address, task, fault, lock, **arguments)

    def alive(self) -> list[int]:
        """The processes forked so far that have not ended, be it as zombies."""
        return ask(self.address, {"task": "alive"})["pids"]

    def close(self) -> None:
        """End it, and all that it has forked."""
        for pid in self.alive():
            end(pid)
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def start(address: str, task: str, fault: Fault = NONE, lock: int | None = None, **arguments: Any) -> int:
    """Ask the zygote for a process."""
    request = {"task": task, "fault": vars(fault), "arguments": {"address": address, **arguments}}
    return ask(address, request, [] if lock is None else [lock])["pid"]


def ask(address: str, request: dict[str, Any], files: list[int] | None = None) -> dict[str, Any]:
    """One question, one answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(request).encode()], files or [])
        return json.loads(connection.recv(1 << 16))


def end(pid: int) -> None:
    """Kill a process, if it is there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def spawn_by(address: str, fault: Fault = NONE) -> Callable[..., None]:
    """In place of `process.spawn`: a worker from the zygote, with what goes wrong in it."""
    from xformer.training import liveness
    from xformer.training.executors.process import LOG

    def spawn(store: Any, run: str, token: str, lock: int) -> None:
        log = str(store.folder_of(run) / LOG)
        arguments = {"folder": str(store.folder), "run": run, "token": token, "log": log}
        liveness.sign(lock, start(address, "worker", fault, lock, **arguments))

    return spawn


def serve(address: str) -> None:
    """Fork the requested processes, as long as the process that started this one is there."""
    from tests.faults.ground import SHORT
    from tests.faults.tasks import TASKS
    from xformer.training.loop import iter_train, prepare_process

    prepare_process()
    list(iter_train(SHORT))  # once here, so that what torch imports on first use is there in every process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for them; this avoids zombies
    forked: list[int] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(address)
        door.listen(64)
        door.settimeout(1.0)
        parent = os.getppid()
        while os.getppid() == parent:  # its parent may be killed, too
            try:
                connection, _ = door.accept()
            except TimeoutError:
                continue
            connection.settimeout(None)
            with connection:
                content, files, _, _ = socket.recv_fds(connection, 1 << 16, 4)
                if not content:
                    continue
                request = json.loads(content)
                if request["task"] == "alive":
                    forked = [pid for pid in forked if os.path.exists(f"/proc/{pid}")]
                    answer: dict[str, Any] = {"pids": forked}
                else:
                    pid = os.fork()
                    if pid == 0:
                        door.close()
                        connection.close()
                        _become(TASKS[request["task"]], request, files)
                    forked.append(pid)
                    answer = {"pid": pid}
                for file in files:
                    os.close(file)
                connection.sendall(json.dumps(answer).encode())


def _become(task: Callable[..., int], request: dict[str, Any], files: list[int]) -> None:
    """Do a task and end; never returns."""
    from tests.faults.mischief import MISCHIEF

    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        arguments, fault = request["arguments"], Fault(**request["fault"])
        if "log" in arguments:
            log = os.open(arguments["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
        for name, details in fault.mischief.items():
            MISCHIEF[name](**details)
        if fault.calls is not None:
            disk.arm(arguments["folder"], *fault.calls, fault.log)
        code = task(*files, **arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
