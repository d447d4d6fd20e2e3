"""Run a submission in a process of its own, with limits of time and memory, on a copy of its folder.

The right numbers are computed in the checker's process; only tensors come back. When the student's code hangs, ends Python or
uses up its memory, that task fails with one sentence, and the next one gets a new process.
"""

from __future__ import annotations

import atexit
import json
import linecache
import os
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch

from xformer.assignments.student import NOWHERE, Problem, Ran, SourcePlace
from xformer.assignments.task import TaskPart, Wrong
from xformer.errors import AssignmentError

START_SECONDS = 120.0
"""Longest time until the libraries are imported."""
LOAD_SECONDS = 20.0
"""Longest time to import a student's file."""
COPIED_FILE_BYTES = 5 * 1024**2
"""Larger files are not copied; no assignment needs them."""
PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True)
class RunLimits:
    """What a student's code may use.

    Attributes:
        seconds: The time of one call of a function.
        memory: The memory in bytes, beyond that of the libraries.
    """

    seconds: float = 5.0
    memory: int = 2 * 1024**3


class _Server:
    """The process that imports the libraries once, and copies itself for each submission."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(8)
        path = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH", "")]))
        one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-P", "-m", "xformer.assignments.worker", self._mark]
        self._process = subprocess.Popen(
            command, env=os.environ | one | {"PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        atexit.register(self.close)

    @property
    def is_running(self) -> bool:
        """Whether it can start another copy."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        atexit.unregister(self.close)
        _kill(self._process.pid)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close() if pipe is not None else None

    def ask(self, request: Mapping[str, Any] | None, seconds: float) -> tuple[dict[str, Any], bytes]:
        """Send a request, and return its reply and the bytes with it.

        Raises:
            _SilentError: There is no reply in time, or the copy has ended.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n" if request is not None else b"\n")
            self._process.stdin.flush()
        return self._read(seconds)

    def end(self, pid: int) -> None:
        """End a copy and all that it started."""
        _kill(pid)
        with suppress(_SilentError):
            while True:  # what it had still written
                self._read(10.0)

    def _read(self, seconds: float) -> tuple[dict[str, Any], bytes]:
        assert self._process.stdout is not None
        end, found, descriptor = time.monotonic() + seconds, b"", self._process.stdout.fileno()
        ended = re.compile(rb"\n%s (-?\d+)\n\Z" % self._mark.encode())
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while (left := end - time.monotonic()) > 0 and selector.select(left):
                if not (more := os.read(descriptor, 1 << 16)):
                    self.close()
                    raise _SilentError(-signal.SIGKILL)
                found += more
                if over := ended.search(found):
                    raise _SilentError(int(over[1]))
                line, newline, data = found.partition(b"\n")
                if newline:
                    try:
                        reply = json.loads(line)
                        if len(data) >= reply.get("bytes", 0):
                            return reply, data
                    except (ValueError, AttributeError):  # not what the worker writes
                        found = data
        raise _SilentError(None)


class _SilentError(Exception):
    """There is no reply: the copy has ended with `code`, or the time is over (None)."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


_servers: list[_Server] = []


def _server() -> _Server:
    if _servers and not _servers[0].is_running:
        _servers.pop().close()
    if not _servers:
        _servers.append(_Server())
    return _servers[0]


def _kill(pid: int) -> None:
    """End a process and its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL) if hasattr(os, "killpg") else os.kill(pid, signal.SIGTERM)


@dataclass
class Submission:
    """A student's file, run in a process of its own. Use it as a context manager.

    Attributes:
        file: The file.
        limits: What it may use.
        notes: What was noticed about the file, one sentence each.
        declared: The value of `CAUSE` in the file.
    """

    file: Path
    limits: RunLimits = field(default_factory=RunLimits)
    notes: list[str] = field(default_factory=list)
    declared: str = ""
    _server: _Server | None = None
    _pid: int = 0
    """The process of the student's code; 0 if none runs."""
    _folder: str = ""
    _broken: Problem | None = None
    """Why the file cannot be loaded."""

    def __enter__(self) -> Submission:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def run(self, part: TaskPart, case: int) -> Ran:
        """Run one case of a part."""
        reply, data = self._asked({"part": _key(part), "case": case})
        if "problem" in reply:
            return Ran({}, self._problem(reply["problem"]))
        return Ran(safetensors.torch.load(data) if data else {})

    def locate(self, part: TaskPart, case: int, mistakes: Sequence[Wrong]) -> SourcePlace:
        """Find the line at which the numbers become those of a mistake; an empty place if the code does not answer."""
        reply, _ = self._asked(
            {"part": _key(part), "case": case, "mistakes": [list(part.wrongs).index(one) for one in mistakes]}
        )
        return NOWHERE if "problem" in reply else self._place(reply)

    def diagnose(self, part: TaskPart) -> Problem | None:
        """Return what the doctor finds in a model; None for nothing."""
        reply, _ = self._asked({"part": _key(part), "diagnose": True}, 60.0)
        return self._problem(reply["problem"]) if "problem" in reply else None

    def train(self, seconds: float, out: Path) -> Mapping[str, Any]:
        """Train the model of the file; see `xformer.assignments.training`."""
        reply, _ = self._asked({"train": seconds, "out": str(out.absolute())}, seconds + 60.0)
        return reply

    def _problem(self, found: Mapping[str, Any]) -> Problem:
        place = found.get("place") or NOWHERE
        place = place if isinstance(place, SourcePlace) else self._place(place)
        return Problem(str(found["cause"]), str(found.get("sentence", "")), place)

    def _place(self, found: Mapping[str, Any]) -> SourcePlace:
        """A line in the student's file. Its text is read here, as the code may have deleted the copy."""
        line, text = str(found["line"]), str(found["text"])
        name, _, number = line.rpartition(":")
        if not text and name == self.file.name and number.isdecimal():
            text = linecache.getline(str(self.file), int(number)).strip()
        return SourcePlace(line, text)

    def stop(self) -> None:
        """End the process and all that it started, and delete the copy of the folder."""
        if self._pid and self._server is not None:
            self._server.end(self._pid)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._pid, self._folder = 0, ""

    def _asked(self, request: Mapping[str, Any], seconds: float | None = None) -> tuple[dict[str, Any], bytes]:
        """Send a request and wait for its reply. A problem with the process is a reply, too."""
        if self._broken is None and not self._pid:
            self._start()
        if self._broken is not None:
            return {"problem": vars(self._broken)}, b""
        return self._exchanged(request, seconds or self.limits.seconds)

    def _start(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="xformer-")
        shutil.copytree(self.file.parent, self._folder, symlinks=True, dirs_exist_ok=True, ignore=_not_copied)
        self._server = _server()
        wanted = {"start": str(Path(self._folder, self.file.name)), "memory": self.limits.memory}
        try:
            self._pid = self._server.ask(wanted, START_SECONDS)[0]["pid"]
        except _SilentError as error:
            self.stop()
            raise AssignmentError("The process that runs submissions did not start; try again.") from error
        reply, _ = self._exchanged({"load": True}, LOAD_SECONDS)
        self.declared = str(reply.get("declared", ""))
        if "problem" in reply:
            problem = self._problem(reply["problem"])
            sentence = f"{self.file.name} cannot be imported. {problem.sentence}"
            self._broken = Problem(problem.cause, sentence, problem.place)
            self.stop()

    def _exchanged(self, request: Mapping[str, Any], seconds: float) -> tuple[dict[str, Any], bytes]:
        assert self._server is not None
        try:
            reply, data = self._server.ask(request, seconds)
        except _SilentError as silent:
            if silent.code is not None:
                _kill(self._pid)  # what it started
                self._pid = 0
            self.stop()
            return {"problem": vars(_why_silent(silent.code, seconds))}, b""
        for name in reply.get("patched", ()):
            note = f"{self.file.name} replaces {name}; it was restored, and the right numbers are computed elsewhere."
            if note not in self.notes:
                self.notes.append(note)
        return reply, data


def _why_silent(code: int | None, seconds: float) -> Problem:
    if code is None:
        return Problem("time_limit", f"It was still running after {seconds:g} seconds; is there a loop without an end?")
    if code == -signal.SIGKILL:
        return Problem("memory_limit", "The system ended it; it may have used too much memory.")
    how = f"with code {code}" if code >= 0 else f"by the signal {signal.Signals(-code).name}"
    return Problem("stopped_python", f"It ended Python {how}; a function should return a result.")


def _key(part: TaskPart) -> str:
    from xformer.assignments.worker import PARTS

    return next(name for name, one in PARTS.items() if one is part)


def _not_copied(folder: str, names: list[str]) -> list[str]:
    """Hidden files, caches, links and large files."""

    def is_left_out(path: Path) -> bool:
        if path.name.startswith(".") or path.name in ("__pycache__", "node_modules") or path.is_symlink():
            return True
        return path.is_file() and path.stat().st_size > COPIED_FILE_BYTES

    return [name for name in names if is_left_out(Path(folder, name))]
