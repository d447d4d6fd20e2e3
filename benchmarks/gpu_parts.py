"""The parts of `make gpu`: one function each, which runs on a device and returns rows with a figure, its value and its goal."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from xformer.model import Transformer
from xformer.presets import Preset, preset
from xformer.tasks import Task
from xformer.trace import record
from xformer.training import jobs
from xformer.training.loop import Run, choose_device
from xformer.training.many import reports
from xformer.training.run_store import RunStore
from xformer.training.sweeps import sweep

Rows = list[dict[str, Any]]


def row(figure: str, value: float | int | str, goal: str = "") -> dict[str, Any]:
    return {"figure": figure, "value": value} | ({"goal": goal} if goal else {})


def run_of(name: str, device: str, **train: Any) -> Run:
    [chosen] = sweep(name, **{setting: [value] for setting, value in train.items()})
    return Run(chosen, Task(chosen.task), choose_device(device), None)


TESTS = ("tests/training", "tests/adapters", "tests/integrations/test_attention_health.py")
"""Paths of the tests marked cuda."""


def tests(device: str, short: bool) -> Rows:
    """Run all tests marked cuda."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or (device == "cuda" and "skipped" in output):
        raise RuntimeError(f"the tests: {output}")
    return [row("tests", re.sub(r" in .*", "", output), "all passed")]


def hundred_percent(device: str, short: bool) -> Rows:
    """Measure the time from initial weights to the first report of 100 % exact match, in a warmed-up process."""
    rows = []
    run_of("reverse", device).train_step()
    for name in ("reverse", "reverse-small"):
        began = time.perf_counter()
        run = run_of(name, device, **({"steps": 8, "log_every": 4} if short else {}))
        reached = next(
            (time.perf_counter() - began for output in run.reports() if output.held_out.exact_match == 1.0), None
        )
        rows += [
            row(f"seconds to 100 % of {name}", "not reached" if reached is None else reached),
            row(f"steps that {name} took", run.step),
        ]
    return rows


def step(device: str, short: bool) -> Rows:
    """Measure a training step."""
    rows = []
    for name in ("reverse-small", "reverse"):
        run = run_of(name, device, steps=10_000)
        seconds = turns({"step": run.train_step}, 2 if short else 300, device)["step"]
        rows.append(row(f"ms a step of {name}", 1e3 * statistics.median(seconds)))
    return rows


def many(device: str, short: bool) -> Rows:
    """Compare 64 seeds of reverse-small trained together with one trained alone."""
    n, steps = (3, 4) if short else (64, 700)
    presets = sweep("reverse-small", seed=range(n), steps=[steps])
    runs = {number: Run(one, Task(one.task), choose_device(device), None) for number, one in enumerate(presets)}
    began = time.perf_counter()
    solved = {
        output.number for output in reports(runs) if output.progress and output.progress.held_out.exact_match >= 0.999
    }
    stacked = time.perf_counter() - began
    one = run_of("reverse-small", device, steps=10_000)
    alone = statistics.median(turns({"one": one.train_step}, min(steps, 100), device)["one"])
    return [
        row(f"seconds for {n} seeds, {steps} steps each", stacked),
        row(f"solved, of {n}", len(solved)),
        row("ms a model and step in the stack", 1e3 * stacked / n / steps),
        row("ms a step alone", 1e3 * alone),
        row("times as fast as one after the other", alone * n * steps / stacked, "≥ 10"),
    ]


def characters(device: str, short: bool) -> Rows:
    """Measure how many characters per second the small language model trains on."""
    run = run_of("characters", device, steps=10_000)
    seconds = statistics.median(turns({"step": run.train_step}, 2 if short else 200, device)["step"])
    return [row("characters a second", run.config.batch_size * run.preset.model.max_len / seconds)]


@torch.no_grad()
def recording(device: str, short: bool) -> Rows:
    """Compare a forward pass that records all activations with the plain one."""
    tokens = 16 if short else 512
    sizes = {"vocab_size": 128, "d_model": 384, "n_layers": 6, "n_heads": 12, "d_head": 32, "d_value": 32, "d_ff": 1536}
    config = preset("reverse").model.replace(max_len=tokens, **sizes)
    model = Transformer(config, torch.Generator().manual_seed(0)).eval().to(device)
    read = torch.randint(1, 128, (1, tokens), generator=torch.Generator().manual_seed(1)).to(device)
    seconds = turns({"plain": lambda: model(read), "all": lambda: record(model, read)}, 2 if short else 50, device)
    plain, kept = (1e3 * statistics.median(seconds[kind]) for kind in ("plain", "all"))
    return [
        row(f"ms of a plain pass over {tokens} tokens", plain),
        row("ms of a recorded one", kept),
        row("times the plain pass", kept / plain, "≤ 2"),
    ]


def worker(device: str, short: bool) -> Rows:
    """Measure the time from submitting a run to its first report, including the start of its process."""
    with temporary_store() as store:
        began = time.perf_counter()
        run = jobs.submit(store, brief(short), device=device)
        wait(store, lambda: bool(store.rows(run)))
        return [row("seconds from Start to the first report", time.perf_counter() - began)]


def out_of_memory(device: str, short: bool) -> Rows:
    """Check that a run on a GPU without free memory continues on the processor and reports it."""
    with temporary_store() as store:
        held = []
        if device == "cuda":
            free, _ = torch.cuda.mem_get_info()
            held.append(torch.empty(max(0, free - (64 << 20)), dtype=torch.uint8, device="cuda"))
        run = jobs.submit(store, brief(short), device=device)
        wait(store, lambda: store.entry(run).state in ("finished", "failed"))
        entry = store.entry(run)
        del held
        if entry.state != "finished" or (device == "cuda" and entry.device != "cpu"):
            raise RuntimeError(f"the run is {entry.state} on {entry.device}: {entry.message}")
        return [row("a run on a full GPU", f"finished on {entry.device}", "finished on cpu")]


def two_runs(device: str, short: bool) -> Rows:
    """Check that two runs for one device take turns and both finish."""
    with temporary_store() as store:
        began = time.perf_counter()
        runs = [jobs.submit(store, brief(short), device=device) for _ in range(2)]
        together = []

        def both_finished() -> bool:
            entries = [store.entry(run) for run in runs]
            together.append(sum(entry.is_active for entry in entries))
            if any(entry.state == "failed" for entry in entries):
                raise RuntimeError(entries[0].message or entries[1].message)
            return all(entry.state == "finished" for entry in entries)

        wait(store, both_finished)
        took = time.perf_counter() - began
        return [row("most at a time", max(together), "1"), row("seconds for both", took)]


PARTS: dict[str, Callable[[str, bool], Rows]] = {
    "tests": tests,
    "hundred percent": hundred_percent,
    "step": step,
    "64 seeds": many,
    "characters": characters,
    "record": recording,
    "worker": worker,
    "out of memory": out_of_memory,
    "two runs": two_runs,
}


def turns(variants: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, list[float]]:
    """Return the seconds of each variant in `rounds` turns, after warm-up turns; a GPU is synchronised."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(-6, rounds):
        for name, run in variants.items():
            began = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def brief(short: bool) -> Preset:
    """Return the preset of a brief run."""
    [chosen] = sweep("reverse-mirror", steps=[8 if short else 300], log_every=[4])
    return chosen


@contextmanager
def temporary_store() -> Iterator[RunStore]:
    """Yield a temporary run store; its runs are stopped at the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["XFORMER_RUNS"] = folder
        store = RunStore(Path(folder))
        try:
            yield store
        finally:
            for entry in store.entries():
                jobs.stop(store, entry.id)


def wait(store: RunStore, done: Callable[[], bool]) -> None:
    """Process the queue until `done` returns true; the time limit of the part applies."""
    while not done():
        jobs.reconcile(store)
        time.sleep(0.02)
