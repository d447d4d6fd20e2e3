"""A process that has its imports behind it and forks the workers of runs at once: a server keeps one, nobody waits for torch.

It is given a run as a new process would be: by its arguments, and its lock and its log as open files (SCM_RIGHTS). So there is
no moment at which the lock has no holder; whoever kills the spare with a run in its hands has killed the worker of that run.
It ends with its server, whose socket it reads; the workers it has forked do not. Where there is none, or none that listens,
a worker is started the slow way.

It has one thread, or it does not fork; and it touches no GPU, so that its workers may.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from xformer.memory import free_bytes
from xformer.training import liveness

FLAG = "--spare"
COMMAND = (sys.executable, "-m", "xformer.training.worker", FLAG)
SIZE = 300 * 10**6
"""A process that has torch imported."""
PLENTY, SHORT = 6 * SIZE, 3 * SIZE
"""Free memory with which one is started, and without which one is given up."""
GPUS = ("/dev/nvidiactl", "/dev/kfd")
"""Where one of these is, a worker may train on a GPU, and does not yield to everyone; the priority is that of the spare."""
AGAIN_SECONDS = 30.0
"""After one that has ended, or was given up, the next one is started so much later."""
MESSAGE = 1 << 16


class Spare:
    """The spare of this process and the way to it; safe to be used by several threads."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None
        self._way: socket.socket | None = None
        self._not_before = 0.0
        self._one_at_a_time = threading.Lock()

    def keep(self) -> None:
        """Have one, unless memory is short. For a server to call again and again; forks nothing of this process but an exec."""
        with self._one_at_a_time:
            free, now = free_bytes(), time.monotonic()
            if self.process is not None and (self.process.poll() is not None or free < SHORT):
                self._give_up()
                self._not_before = now + AGAIN_SECONDS
            if self.process is None and free >= PLENTY and now >= self._not_before and sys.platform == "linux":
                with suppress(OSError):
                    self._start()

    def take(self, arguments: Sequence[str], lock: int, log: int) -> bool:
        """Have a run trained by a worker that the spare forks; whether it was handed over."""
        with self._one_at_a_time:
            if self.process is None or self._way is None or self.process.poll() is not None:
                return False
            liveness.sign(lock, self.process.pid)  # until the worker signs it
            try:
                socket.send_fds(self._way, ["\0".join(arguments).encode()], [lock, log])
            except OSError:  # it has just ended, or does not listen
                self._give_up()
                return False
            # Somebody waits for its imports now. Not everywhere may one take back that it yields.
            with suppress(OSError):
                os.sched_setscheduler(self.process.pid, os.SCHED_OTHER, os.sched_param(0))
            return True

    def close(self) -> None:
        """End it; the workers it has forked go on."""
        with self._one_at_a_time:
            self._give_up()

    def _start(self) -> None:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setblocking(False)  # nobody waits for one that is halted
        with its:
            self.process = subprocess.Popen(
                self.command,
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=Path(__file__).parents[2],
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                process_group=0,  # an interrupt at the terminal is not meant for its workers
            )
        self._way = mine
        if not any(map(os.path.exists, GPUS)):
            os.sched_setscheduler(self.process.pid, os.SCHED_IDLE, os.sched_param(0))

    def _give_up(self) -> None:
        if self._way is not None:
            self._way.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = self._way = None


spare = Spare()
"""That of this process: none, until somebody asks to keep one."""


def serve(train: Callable[[list[str], int], int]) -> int:
    """Fork a process for each run that is handed over, until nobody is there to do so. Returns in each of them, too."""
    way = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers, so they leave no zombies
    gc.collect()
    gc.freeze()  # else a look at every object would copy what they share
    me = os.getpid()
    while len(os.listdir("/proc/self/task")) == 1:
        content, files, _, _ = socket.recv_fds(way, MESSAGE, 2)
        if not content:
            break
        if os.fork() == 0:
            way.close()
            return train([*content.decode().split("\0"), "--lock", str(_become(*files))], me)
        for file in files:
            os.close(file)
    return 0


def _become(lock: int, log: int) -> int:
    """Be the worker that holds a lock and writes into a log, as if started by itself."""
    liveness.sign(lock, os.getpid())
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    return lock
