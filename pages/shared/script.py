"""Turn the lines that draw a picture into a script: `python file.py` prints the table or writes a page with the picture.

script(["from xformer.viz import heatmaps", "heatmaps.vectors(trace)"])
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from pages.shared.models import RUNS

SHOW = "from xformer.viz.export import show"


def script(lines: Sequence[str]) -> str:
    """The lines and a last one that shows the picture; only the lines where the last of them prints."""
    code = "\n".join(lines)
    where = (
        [f"# {RUNS}/ stands for the folder of runs of the server that drew this"]
        if re.search(f"[\"']{RUNS}/", code)
        else []
    )
    *_, last = ast.parse(code).body
    if isinstance(last, ast.Expr) and not _prints(last.value):
        rows = code.split("\n")
        start = last.lineno - 1
        rows[start] = f"picture = {rows[start]}"
        code = "\n".join([*rows[:start], SHOW, *rows[start:], "show(picture)"])
    return "\n".join([*where, code])


def _prints(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("print", "show")
