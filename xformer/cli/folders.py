"""The runs of the command line: folders with a model or the state of an interrupted run, which no run store knows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xformer.errors import InputError, XformerError
from xformer.formatting import percent
from xformer.paths import FILE, STATE
from xformer.training.card import read_metadata
from xformer.training.entry import DAMAGED, is_number


@dataclass(frozen=True)
class Found:
    """One folder, and what its file says of itself."""

    path: Path
    card: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""
    """Why it cannot be read, as one sentence."""

    @property
    def name(self) -> str:
        return self.path.name

    def line(self) -> tuple[object, ...]:
        """What a list shows of it, whatever stands in its card."""
        card, rows = self.card, self.card.get("curve") or self.card.get("rows")
        last = rows[-1] if isinstance(rows, list) and rows and isinstance(rows[-1], dict) else {}
        train = card.get("train") if isinstance(card.get("train"), dict) else {}
        step, seconds = (card.get(name) if is_number(card.get(name)) else 0 for name in ("step", "seconds"))
        share = last.get("held_out_exact_match")
        exact = percent(float(share)) if share is not None and is_number(share) else "–"
        state = DAMAGED if self.trouble else "stopped" if (self.path / STATE).exists() else "finished"
        preset, seed = card.get("preset", ""), (train or {}).get("seed", "")
        return self.name, "", preset, seed, f"{step:,}", state, exact, f"{seconds:.1f}"

    def delete(self) -> None:
        """Remove the folder. Raises `InputError` for one that is only a link to another place."""
        if self.path.is_symlink():
            raise InputError(f"{str(self.path)!r:.200} is a link to another folder; delete that one, or the link.")
        shutil.rmtree(self.path)


def found_in(folder: Path) -> Iterator[Found]:
    """The runs in a folder, by name; a half-written one is among them, and says that it is damaged."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or not any((path / name).exists() for name in (FILE, STATE, "snapshots")):
            continue
        try:
            yield Found(path, read_metadata(path))
        except (XformerError, OSError) as error:
            yield Found(path, trouble=str(error))
