"""The first minute: from an empty environment to the first picture, in the app and in a notebook.

    python -m benchmarks.first_minute [--python PATH …] [--keep]

install   seconds of `pip install 'xformer-studio[app]'` into an empty environment, from a wheel of this tree. Run it twice: the
          first time downloads the packages, the second finds them in pip's cache
app       seconds from `xformer app` to the scene on Home, drawn in Chromium; the first start also compiles what was installed
notebook  seconds from `jupyter lab` to the attention view of the README's first example, drawn in Chromium
import    `import xformer`, and help `xformer --help`: the best of ten, with the start of Python; python is that start alone
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from benchmarks.chromium import chromium
from benchmarks.measure import Machine, options, show
from tests.browser.serving import ROOT, stop

LIMIT = 180
"""Seconds after which a server that does not answer, or a picture that does not appear, ends the benchmark."""
TURNS = 10
FIRST_CELL = 'import xformer\nxformer.attention_view(xformer.read("checkpoints/reverse", "3 7 12 9"))'


def main() -> None:
    pythons: dict[str, Any] = {"action": "append", "help": "the Python of the environment; may be repeated"}
    arguments = options(__doc__, rounds=1, python=pythons)
    machine = Machine.start(arguments.threads)
    with chromium() as browser:
        rows = [minute_of(python, browser) for python in arguments.python or [sys.executable]]
    notes = [
        f"Goals: app 60 s besides the download, notebook 20 s, import 0.15 s, help 0.3 s. Wheel: {rows[0]['wheel']} bytes."
    ]
    show("first minute", machine, rows, notes, arguments)


def minute_of(python: str, browser: Browser) -> dict[str, Any]:
    """Install into an environment of that Python, and return the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = wheel_in(folder)
        subprocess.run([python, "-m", "venv", folder / "env"], check=True)
        start = time.perf_counter()
        run(folder, "python", "-m", "pip", "install", "--quiet", f"{wheel}[app]")
        row: dict[str, Any] = {"python": version(folder), "wheel": wheel.stat().st_size}
        row["install s"] = time.perf_counter() - start
        row["app s"] = app_of(folder, browser)
        run(folder, "python", "-m", "pip", "install", "--quiet", f"{wheel}[notebook]")
        row["notebook s"] = notebook_of(folder, browser)
        row["import s"] = best(folder, "python", "-c", "import xformer")
        row["help s"] = best(folder, "xformer", "--help")
        row["python s"] = best(folder, "python", "-c", "pass")
        return row


def wheel_in(folder: Path) -> Path:
    """Build the wheel of this tree, without leftovers of earlier builds."""
    (folder / "build.cfg").write_text(f"[build]\nbuild_base={folder / 'build'}\n[egg_info]\negg_base={folder}\n")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    subprocess.run(command, check=True, env=os.environ | {"DIST_EXTRA_CONFIG": str(folder / "build.cfg")})
    return next(folder.glob("*.whl"))


def environment(folder: Path) -> dict[str, str]:
    """The variables of a new user: without ours, and with an empty home."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    ours = re.compile("XFORMER|PYTHON|XDG|JUPYTER|STREAMLIT")
    kept = {name: value for name, value in os.environ.items() if not ours.match(name)}
    return kept | {"HOME": str(home)}


def run(folder: Path, command: str, *arguments: str) -> str:
    """Run a command of the new environment, and return what it prints."""
    home = {"HOME": os.environ["HOME"]} if "pip" in arguments else {}  # pip's cache is the user's
    found = [folder / "env" / "bin" / command, *arguments]
    done = subprocess.run(found, check=True, cwd=folder, env=environment(folder) | home, stdout=subprocess.PIPE)
    return done.stdout.decode()


def version(folder: Path) -> str:
    """The version of the new environment's Python."""
    return run(folder, "python", "-c", "import platform; print(platform.python_version())").strip()


def best(folder: Path, command: str, *arguments: str) -> float:
    """The shortest time of a command."""
    found = []
    for _ in range(TURNS):
        start = time.perf_counter()
        run(folder, command, *arguments)
        found.append(time.perf_counter() - start)
    return min(found)


@contextmanager
def serving(folder: Path, port: int, path: str, command: str, *arguments: str) -> Iterator[str]:
    """Run a server of the new environment while the block runs, from its first answer at `path` on."""
    here = folder / "here"
    here.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [folder / "env" / "bin" / command, *arguments], cwd=here, env=environment(folder),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        start = time.perf_counter()
        while not answers(f"http://127.0.0.1:{port}{path}"):
            if process.poll() is not None or time.perf_counter() - start > LIMIT:
                sys.exit(f"{command} {' '.join(arguments)} did not start.")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process)


def answers(url: str) -> bool:
    """Return whether a server answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def new_page(browser: Browser) -> Page:
    """A window of a new user."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(1000 * LIMIT)
    return page


def app_of(folder: Path, browser: Browser) -> float:
    """The seconds from the command to the scene on Home."""
    page, port = new_page(browser), free_port()
    start = time.perf_counter()
    with serving(folder, port, "/_stcore/health", "xformer", "app", "--port", str(port)) as address:
        page.goto(address)
        page.locator(".st-key-scene canvas").first.wait_for()
        seconds = time.perf_counter() - start
        page.close()
    return seconds


def notebook_of(folder: Path, browser: Browser) -> float:
    """The seconds from the command to the attention view of the first example in the README."""
    cell = {
        "cell_type": "code",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
        "source": FIRST_CELL,
        "id": "a",
    }
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    here = folder / "here"
    here.mkdir(exist_ok=True)
    book = {"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (here / "view.ipynb").write_text(json.dumps(book))
    page, port = new_page(browser), free_port()
    settings = {"port": port, "open_browser": False, "allow_root": True, "port_retries": 0}
    command = [f"--ServerApp.{name}={value}" for name, value in settings.items()]
    command += ["--IdentityProvider.token=", "--ServerApp.password="]
    start = time.perf_counter()
    with serving(folder, port, "/api", "jupyter", "lab", *command) as address:
        page.goto(f"{address}/lab/tree/view.ipynb?reset")
        page.get_by_role("button", name="Idle").wait_for()
        page.locator(".jp-Notebook .jp-CodeCell .jp-InputArea-editor").first.click()
        page.keyboard.press("Control+Enter")
        page.locator(".jp-OutputArea .av .grid .base").first.wait_for()
        seconds = time.perf_counter() - start
        page.close()
    return seconds


if __name__ == "__main__":
    main()
