"""The process in which a student's code runs: it answers one request after the other, and is ended when it takes too long.

    python -P -m xformer.assignments.worker MARK

Requests are lines of JSON on the standard input: load the file, run a case, find a line, or train the model. A reply is a
line of JSON, followed by the tensors as safetensors; no pickle leaves the process. What the student's code prints is dropped.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import sys
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
import safetensors.numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xformer.assignments.bugs import BUGS
from xformer.assignments.grading import LocalCode
from xformer.assignments.student import Problem, Ran, problem_of
from xformer.assignments.task import TaskPart
from xformer.assignments.tasks import TASKS

FILE_BYTES = 64 * 1024**2
"""The largest file that the student's code may write."""
CPU_SECONDS = 600
"""The processor time after which the system ends a process that nobody ends."""
MAX_NUMBERS = 2_000_000
"""The most numbers that a result may have; the right ones have a few hundred."""
PARTS: dict[str, TaskPart] = {
    f"{task.name}.{part.name}": part for task in (*TASKS.values(), *BUGS.values()) for part in task.parts
}
_PATCHABLE = {
    "torch": torch,
    "torch.nn.functional": F,
    "torch.Tensor": Tensor,
    "torch.nn": nn,
    "torch.nn.Module": nn.Module,
}
_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


def loaded(path: Path) -> types.ModuleType:
    """Execute a student's file as a module; of a notebook, only imports, definitions and assignments. Raises what it raises."""
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [one for one in json.loads(text)["cells"] if one["cell_type"] == "code"]
        sources = ["".join(one["source"]) for one in cells]
        text = "\n\n".join("\n".join("" if line[:1] in "%!" else line for line in one.split("\n")) for one in sources)
        linecache.cache[str(path)] = len(text), None, text.splitlines(keepends=True), str(path)
    tree = ast.parse(text, str(path))
    if path.suffix == ".ipynb":
        tree.body = [one for one in tree.body if isinstance(one, _DEFINITIONS)]
    exec(compile(tree, str(path), "exec"), vars(module))
    return module


class Worker:
    """Answers requests about one file."""

    def __init__(self, path: Path) -> None:
        self.path, self.functions = path, {}
        self._originals = {name: dict(vars(owner)) for name, owner in _PATCHABLE.items()}

    def answer(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Answer one request with JSON and tensors."""
        student = LocalCode(self.functions)
        match request:
            case {"load": True}:
                self.functions = vars(loaded(self.path))
                return {"declared": str(self.functions.get("CAUSE", ""))[:100]}, {}
            case {"part": name, "case": case, "mistakes": mistakes}:
                return asdict(student.locate(PARTS[name], case, [PARTS[name].wrongs[one] for one in mistakes])), {}
            case {"part": name, "diagnose": True}:
                found = student.diagnose(PARTS[name])
                return {} if found is None else {"problem": asdict(found)}, {}
            case {"part": name, "case": case}:
                ran = student.run(PARTS[name], case)
                if (n := sum(one.numel() for one in ran.outputs.values())) > MAX_NUMBERS:
                    ran = Ran({}, Problem("wrong_shape", f"It returns {n:,} numbers."))
                return ({} if ran.problem is None else {"problem": asdict(ran.problem)}), dict(ran.outputs)
            case {"train": seconds, "out": out}:
                from xformer.assignments.training import train_and_show

                return train_and_show(self.functions, seconds, Path(out)), {}
            case _:
                raise ValueError(f"unknown request {request}")

    def restore(self) -> list[str]:
        """Undo changes of PyTorch by the student's code, and return the names of what it had replaced."""
        found = []
        for name, owner in _PATCHABLE.items():
            for attribute, value in self._originals[name].items():
                if vars(owner).get(attribute) is not value and not attribute.startswith("__"):
                    with suppress(AttributeError, TypeError):
                        setattr(owner, attribute, value)
                        if callable(value):
                            found.append(f"{name}.{attribute}")
        return found


def _answered(act: Callable[[], tuple[dict[str, Any], dict[str, Tensor]]]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The answer, or the problem, whatever is raised."""
    try:
        return act()
    except (SystemExit, KeyboardInterrupt):
        return {
            "problem": asdict(Problem("stopped_python", "It calls exit, which ends Python; return a result instead."))
        }, {}
    except BaseException as error:  # the student's code may raise anything
        return {"problem": asdict(problem_of(error))}, {}


def _packed(tensors: Mapping[str, Tensor]) -> bytes:
    plain = {
        name: one.float() if one.dtype in (torch.bfloat16, torch.float16) else one for name, one in tensors.items()
    }
    return safetensors.numpy.save({name: np.array(one.numpy(), order="C") for name, one in plain.items()})


def limit(memory: int) -> None:
    """Limit what this process may use: memory beyond that of the libraries (on Linux), time, files."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        limits = {"FSIZE": FILE_BYTES, "CPU": CPU_SECONDS, "CORE": 0}
        if (statm := Path("/proc/self/statm")).exists():
            limits["AS"] = int(statm.read_text().split()[0]) * resource.getpagesize() + memory
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def serve(path: Path, memory: int, requests: TextIO, replies: BinaryIO) -> None:
    """Answer requests about one file until there is an empty one."""
    worker = Worker(path)
    os.chdir(path.parent)
    sys.path.append(str(path.parent))  # last, so that the student's files replace no module
    write, flush, dumps, pack = replies.write, replies.flush, json.dumps, _packed
    limit(memory)
    write(b'{"pid": %d}\n' % os.getpid())
    flush()
    for line in requests:
        if not line.strip():
            return
        reply, tensors = _answered(lambda line=line: worker.answer(json.loads(line)))
        patched = worker.restore()
        try:
            data = pack(tensors) if tensors else b""
        except Exception as error:
            reply, data = (
                {"problem": asdict(Problem("wrong_type", f"It returns a tensor that cannot be read: {error}."))},
                b"",
            )
        write(dumps(reply | {"bytes": len(data), "patched": patched}).encode() + b"\n" + data)
        flush()


def main(mark: str) -> None:
    """Serve one submission after the other, each in a copy of this process; `mark` is written with the exit code of each.

    Importing PyTorch takes seconds, and copying a process does not. Where that is not safe, this process serves one and ends.
    """
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    torch.set_num_threads(1)
    for line in requests:
        found = json.loads(line or "{}")
        if "start" not in found:
            continue
        if not sys.platform.startswith("linux"):
            serve(Path(found["start"]), found["memory"], requests, replies)
            return
        if (pid := os.fork()) == 0:
            os.setsid()
            serve(Path(found["start"]), found["memory"], requests, replies)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        replies.write(f"\n{mark} {code}\n".encode())
        replies.flush()


if __name__ == "__main__":
    main(sys.argv[1])
