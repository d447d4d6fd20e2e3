"""How training slows down other pages, and how visitors slow down training, measured in Chromium.

    python -m benchmarks.training_room [--rounds 40] [--json]

toggles    click to new pixels on the Attention screen with one run training and four queued, compared with a stopped worker
           (SIGSTOP), in turns of five clicks
watching   the worker's processor time per step with and without a visitor on its Train screen, in turns of 3 seconds; and that
           of the plain loop in its own process, also writing snapshots
newcomer   seconds from opening the Train screen to the first report of 100 % exact match, in the run store and on the screen,
           with default settings, in an idle window
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from benchmarks.browser import click
from benchmarks.chromium import chromium, server, window
from benchmarks.measure import Machine, options, show
from xformer.presets import Preset, preset
from xformer.training import jobs
from xformer.training.run_store import RunStore

# Whether the screen shows the figures of that step or of a later one.
SHOWN = """(step) => Array.from(document.querySelectorAll(".train-tiles div")).some((tile) =>
  tile.textContent.startsWith("Step") && parseInt(tile.querySelector("b").textContent.replace(",", "")) >= step)"""
THERE = """() => Array.from(document.querySelectorAll("button:enabled")).some((button) => button.innerText.endsWith("Start"))"""
SERVERS = 5
CLICKS = 5
WATCH_SECONDS = 3.0


def main() -> None:
    arguments = options(__doc__, rounds=40)
    machine = Machine.start(arguments.threads)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, chromium() as browser:
        os.environ["XFORMER_RUNS"] = folder
        store = RunStore(folder)
        tables = {
            "newcomer": newcomer(browser, store),
            "toggles beside a training": toggles(browser, store, arguments.rounds),
            "watching": watching(browser, store, arguments.rounds // 2),
        }
        for entry in store.entries():
            jobs.stop(store, entry.id)
        time.sleep(2.0)
    for name, rows in tables.items():
        show(name, machine, rows, [], arguments)


def newcomer(browser: Browser, store: RunStore) -> list[dict[str, Any]]:
    """Measure the first two visitors who press Start and wait for 100 %, on `SERVERS` fresh servers; return medians."""
    visits: dict[str, list[dict[str, float]]] = {"first after a cold start": [], "second": []}
    for _ in range(SERVERS):
        first = window(browser)
        with server("app.py") as address:
            for visitor, page in (("first after a cold start", first), ("second", None)):
                visits[visitor].append(visit(page or window(browser), f"{address}/train?run=new", store))
    return [
        {"visitor": visitor} | {name: statistics.median(one[name] for one in found) for name in found[0]}
        for visitor, found in visits.items()
    ]


def visit(page: Page, address: str, store: RunStore) -> dict[str, float]:
    """Return the seconds of one visitor, from opening the address to the figure on the screen."""
    n_before, run, solved = len(store.entries()), "", []
    opened = time.perf_counter()
    page.goto(address)
    page.wait_for_function(THERE, timeout=60_000)  # polls at each frame; other waits of Playwright poll less often
    page.get_by_role("button", name="Start").first.click()
    pressed = time.perf_counter()
    while not solved and time.perf_counter() - opened < 300:
        time.sleep(0.05)
        entries = store.entries()
        run = entries[0].id if len(entries) > n_before else ""
        solved = [row["step"] for row in store.rows(run) if row["held_out_exact_match"] == 1.0] if run else []
    reported = time.perf_counter()
    page.wait_for_function(SHOWN, arg=solved[0], timeout=60_000)
    shown = time.perf_counter()
    page.close()
    while store.entry(run).is_active:
        time.sleep(0.2)
    return {
        "page open to pressed s": pressed - opened,
        "page open to 100 % reported s": reported - opened,
        "page open to 100 % s": shown - opened,
    }


def toggles(browser: Browser, store: RunStore, rounds: int) -> list[dict[str, Any]]:
    """Measure clicks while the worker runs and while it is stopped, in turns."""
    with server("-m", "streamlit", "run", "benchmarks/apps/toggles.py") as address:
        runs = [jobs.submit(store, long_run()) for _ in range(5)]
        pid = wait_for_pid(store, runs[0])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{address}/?screen=attention&model=reverse&panel=change+the+run")
        page.locator(".st-key-strip .strip").wait_for(timeout=60_000)
        page.wait_for_timeout(2500)
        targets = [".st-key-mask button >> text=causal", ".st-key-mask button >> text=as trained"]
        times: dict[int, list[float]] = {signal.SIGCONT: [], signal.SIGSTOP: []}
        for turn in range(-2, 2 * max(rounds, CLICKS) // CLICKS):
            state = (signal.SIGCONT, signal.SIGSTOP)[turn % 2]
            os.kill(pid, state)
            page.wait_for_timeout(300)
            found = [click(page, targets[(turn * CLICKS + i) % 2], ".st-key-strip .strip") for i in range(CLICKS)]
            times[state] += found if turn >= 0 else []
        os.kill(pid, signal.SIGCONT)
        for run in runs:
            jobs.stop(store, run)
        page.close()
    going, standing = times[signal.SIGCONT], times[signal.SIGSTOP]
    return [
        {
            "figure": name,
            "idle ms": figure(standing),
            "one trains, four wait ms": figure(going),
            "ratio": figure(going) / figure(standing),
        }
        for name, figure in (("median", statistics.median), ("p95", p95))
    ]


def watching(browser: Browser, store: RunStore, rounds: int) -> list[dict[str, Any]]:
    """Measure the processor time per step with and without a visitor, in turns, and of the plain loop."""
    with server("app.py") as address:
        run = jobs.submit(store, long_run())
        pid = wait_for_pid(store, run)
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        costs: dict[str, list[float]] = {"watched": [], "unwatched": []}
        for turn in range(-2, 2 * rounds):
            name = ("watched", "unwatched")[turn % 2]
            page = context.new_page()
            page.goto(f"{address}/train?run={run}" if name == "watched" else "about:blank")
            time.sleep(2.0)
            before, step = cpu_seconds(pid), store.entry(run).step
            time.sleep(WATCH_SECONDS)
            cost = (cpu_seconds(pid) - before) / max(1, store.entry(run).step - step)
            costs[name] += [cost] if turn >= 0 else []
            page.close()
        jobs.stop(store, run)
    watched, unwatched = costs["watched"], costs["unwatched"]
    plain = plain_loop()
    ratio = statistics.median(a / b for a, b in zip(watched, unwatched, strict=True))
    return [
        {"who": "the plain loop in a process of its own", "processor ms a step": plain * 1e3, "ratio": None},
        {"who": "worker, no visitors", "processor ms a step": statistics.median(unwatched) * 1e3, "ratio": None},
        {"who": "worker, watched", "processor ms a step": statistics.median(watched) * 1e3, "ratio": ratio},
    ]


def long_run() -> Preset:
    """Return the preset reverse with enough steps to be still training when it is stopped."""
    chosen = preset("reverse")
    return replace(chosen, train=chosen.train.replace(steps=200_000, snapshot_every=200))


def plain_loop() -> float:
    """Return the processor seconds per step of `iter_train`, after a warm-up."""
    code = (
        "import itertools, tempfile, time\n"
        "from benchmarks.training_room import long_run\n"
        "from xformer.training.loop import prepare_process\n"
        "from xformer.training.loop import iter_train\n"
        "prepare_process()\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    reports = iter_train(long_run(), out=folder, device='cpu')\n"
        "    first = next(itertools.islice(reports, 5, None)).step\n"
        "    before = time.process_time()\n"
        "    last = next(itertools.islice(reports, 30, None)).step\n"
        "    print((time.process_time() - before) / (last - first))\n"
        "    reports.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def wait_for_pid(store: RunStore, run: str) -> int:
    """Wait until a run trains; return the id of its process."""
    for _ in range(600):
        jobs.reconcile(store)
        entry = store.entry(run)
        if entry.pid and entry.step > 20:
            return entry.pid
        time.sleep(0.1)
    raise RuntimeError("the run did not start within a minute")


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def p95(values: list[float]) -> float:
    """Return the 95th percentile."""
    return sorted(values)[int(0.95 * len(values))]


if __name__ == "__main__":
    main()
