"""The names of the files in the folder of a model or a run. Imports no torch."""

from __future__ import annotations

from pathlib import Path

FILE = "model.safetensors"
"""The model with its configuration."""
CARD = "card.json"
"""The readable copy of its card."""
STATE = "state.safetensors"
"""The state that an interrupted run resumes from."""


def is_finished(folder: Path) -> bool:
    """Whether the run of this folder is finished: it has a model and no state to resume from."""
    return (folder / FILE).exists() and not (folder / STATE).exists()


def snapshot_file(out: Path, step: int) -> Path:
    """The file of the snapshot of a step."""
    return out / "snapshots" / f"{step:06d}.safetensors"


def snapshot_steps(out: Path) -> list[int]:
    """The steps that have a snapshot, in order; files with other names are ignored."""
    try:
        names = [file.stem for file in (out / "snapshots").glob("*.safetensors")]
    except OSError:  # a folder that may not be read
        return []
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii() and name == f"{int(name):06d}")
