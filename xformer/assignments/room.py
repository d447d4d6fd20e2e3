"""Report the tasks that a student has solved to the room of a class, if the student asks for it.

Only a nickname and, for each task that was tried, whether it is solved are sent; no code. The room shows them to its lecturer.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from xformer.assignments.bugs import BUGS
from xformer.assignments.report import Report
from xformer.assignments.tasks import TASKS
from xformer.errors import InputError
from xformer.formatting import error_message

SETS: Mapping[str, Sequence[str]] = {"assignment_gpt": tuple(TASKS), "assignment_bugs": tuple(BUGS)}
"""The tasks of each set, by the name under which a room stores them; a task is identified by its place."""
SECONDS = 10.0
_LINK = re.compile(r"(https?://[^/?#]+(?:/[^?#]*)?)/join/([A-Za-z ]{6,12})/?")


def report_to_room(reports: Sequence[Report], link: str, nickname: str) -> int:
    """Send which tasks are solved to a room.

    Args:
        reports: The reports of one student.
        link: The address at which students join the room, as "http://192.168.1.5:8501/join/ABCDEF".
        nickname: The name that the lecturer sees.

    Returns:
        The number of tasks that were sent.

    Raises:
        InputError: The link is not that of a room, or the room does not take the report.
    """
    if (found := _LINK.fullmatch(link.strip())) is None:
        raise InputError(f"A room is given by the address to join it, as http://HOST/join/ABCDEF; got {link!r:.200}.")
    tried = {
        one.task: one.status == "passed" for report in reports for one in report.results if one.status != "not_written"
    }
    messages: list[dict[str, object]] = [{"type": "nickname", "name": nickname[:80]}]
    messages += [
        {"type": "work", "lesson": name, "step": step, "tries": 1, "solved": tried[task]}
        for name, tasks in SETS.items()
        for step, task in enumerate(tasks)
        if task in tried
    ]
    body = "\n".join(map(json.dumps, messages)).encode()
    headers = {"Content-Type": "application/x-ndjson", "Cookie": f"xformer_visitor={_visitor()}"}
    address = f"{found[1]}/room/{found[2].replace(' ', '').upper()}/work"
    try:
        with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=SECONDS):
            return len(messages) - 1
    except urllib.error.HTTPError as error:
        why = error.read(500).decode("utf-8", "replace").strip()
        raise InputError(f"The room did not take the report: {why or error.reason}") from error
    except OSError as error:
        raise InputError(f"The room cannot be reached: {error_message(error, 200)}") from error


def _visitor() -> str:
    """The number by which rooms recognise this student, as the cookie of a browser; made once."""
    folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "xformer"
    file = folder / "visitor"
    if not file.is_file() or not re.fullmatch(r"[0-9a-f]{32}", file.read_text()):
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(secrets.token_hex(16))
        file.chmod(0o600)
    return file.read_text()
