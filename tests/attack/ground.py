"""A server to attack: on 127.0.0.1, for several people, with a folder of its own and tight limits; and what it takes."""

from __future__ import annotations

import os
import tempfile
import urllib.request
from pathlib import Path
from typing import Self
from unittest.mock import patch

from tests.attack.visitor import FindingError
from tests.browser.serving import launch, stop

MB = 1024**2
BY_ADDRESS = 4
"""Runs that one address may have under way there."""


class Ground:
    """The server, while this is open."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="xformer-attack-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self.log = self.folder / "server.log"
        settings = {
            "XFORMER_RUNS": str(self.folder / "runs"),
            "XFORMER_DATA": str(self.folder / "data"),
            "XFORMER_OPEN": "0",
            "XFORMER_MAX_WAITING": "2",
            "XFORMER_MAX_WAITING_BY_ADDRESS": str(BY_ADDRESS),
        }
        with patch.dict(os.environ, settings):
            self.server, self.base = launch(log=self.log)
        return self

    def __exit__(self, *error: object) -> None:
        stop(self.server)
        self._folder.cleanup()

    def check(self) -> None:
        """Raise `FindingError` where the server no longer answers."""
        with urllib.request.urlopen(f"{self.base}/_stcore/health", timeout=30) as answer:
            if answer.read() != b"ok" or self.server.poll() is not None:
                raise FindingError("the server no longer answers")

    def memory(self) -> int:
        """Bytes of memory that the server holds."""
        for line in Path(f"/proc/{self.server.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise FindingError("the server is gone")
