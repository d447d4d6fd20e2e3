"""Where a model lies, as the code at a picture writes it: a path that a reader of it has too, and none of the server's own."""

from __future__ import annotations

from pathlib import Path

from pages.shared import foreign_models, run_store
from pages.shared.models import ROOT, path_of

RUNS = Path("runs")
"""What a visitor reads of the folder of runs, which is nobody's business on a server."""


def shown_path(name: str) -> str:
    """The same as the code at a picture writes it: from the project's folder, or from `RUNS` where runs are kept elsewhere."""
    if foreign_models.is_foreign(name):
        return foreign_models.shown_path(name)
    path = path_of(name)
    if path.is_relative_to(ROOT):
        return str(path.relative_to(ROOT))
    folder = run_store.store().folder
    return str(RUNS / path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
