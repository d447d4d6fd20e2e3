"""Start the app on a free port, for the browser tests and the browser benchmarks."""

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
"""Chromium options for pages on this machine only."""


def launch(
    script: Sequence[str] = ("app.py",), *, log: Path = Path(os.devnull), port: int = 0, base: str = "", **env: str
) -> tuple[subprocess.Popen[bytes], str]:
    """Start Python with `script` as a Streamlit server, and return its process and address once it responds.

    Args:
        script: The arguments of Python.
        log: The file to which the output is appended.
        port: The port; 0 for a free one.
        base: The path below which the app is served, like "/class"; `STREAMLIT_SERVER_BASE_URL_PATH` sets it.
        **env: Additional environment variables.
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
            with urllib.request.urlopen(f"{address}{base}/_stcore/health") as answer:
                if answer.read() == b"ok":
                    return server, address
        except OSError:
            time.sleep(0.05)
    stop(server)
    raise RuntimeError("the app did not start within a minute")


def stop(server: subprocess.Popen[bytes]) -> None:
    """Terminate a server, and kill it if it does not end within 10 seconds."""
    server.terminate()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
