"""Starting the app on a free port, and the browser that looks at it: for the browser tests and the browser benchmark."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
"""Chromium's, for a page on this machine and nothing else."""


def launch(
    script: Sequence[str] = ("app.py",), *, log: Path = Path(os.devnull), port: int = 0, **env: str
) -> tuple[subprocess.Popen[bytes], str]:
    """Run Python with `script` as a Streamlit server, with `env` besides; returns when it answers, with its address.

    Without a `port` it gets a free one. What it writes is appended to the file `log`.
    """
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))
        port = free.getsockname()[1]
    with open(log, "ab") as file:
        server = subprocess.Popen(
            [sys.executable, *script, "--server.port", str(port)],
            cwd=ROOT,
            stdout=file,
            stderr=file,
            env={"XFORMER_RUNS": tempfile.mkdtemp(), **os.environ, "PYTHONPATH": str(ROOT), **env},
        )
    address = f"http://127.0.0.1:{port}"
    for _ in range(1200):
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health") as answer:
                if answer.read() == b"ok":
                    return server, address
        except OSError:
            time.sleep(0.05)
    stop(server)
    raise RuntimeError("the app did not start within a minute")


def stop(server: subprocess.Popen[bytes]) -> None:
    """End a server, by force where it does not follow."""
    server.terminate()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
