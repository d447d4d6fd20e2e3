"""Where a model's and a run's files are in their folder. Only names, no contents: whoever asks need not wait for torch."""

from __future__ import annotations

from pathlib import Path

FILE = "model.safetensors"
"""The model, complete in itself."""
CARD = "card.json"
"""The readable copy of its card."""
STATE = "state.safetensors"
"""What a run goes on from that was interrupted."""


def is_finished(folder: Path) -> bool:
    """Whether a run of which this is the folder has come to its end: its model is there, and nothing to go on from."""
    return (folder / FILE).exists() and not (folder / STATE).exists()


def snapshot_file(out: Path, step: int) -> Path:
    """Where the snapshot of a step is."""
    return out / "snapshots" / f"{step:06d}.safetensors"


def snapshot_steps(out: Path) -> list[int]:
    """The steps of which there is a snapshot, in order; files of other names are none, wherever they come from."""
    try:
        names = [file.stem for file in (out / "snapshots").glob("*.safetensors")]
    except OSError:  # a folder that may not be read
        return []
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii() and name == f"{int(name):06d}")
