"""Where each model of a sweep looks, from time to time: one small map a model, of its best head, on one input for all.

    steps = map_steps(folder)
    maps = read_maps(folder, steps[-1])        # uint8 [member, query, key], as in the planes of a film

A file a moment, `maps/000200.npy`, never written again: what is there is whole.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from xformer.adapters.on_demand import LEVELS, MASKED
from xformer.files import write_atomically
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.trace import record
from xformer.training.loop import Run
from xformer.training.sweeps import Member

Maps = UInt8[np.ndarray, "member query key"]
FRAMES = 30
"""About so many moments are kept."""


def probe(members: Sequence[Member]) -> Example:
    """What all of them are looked at with: an input that none of them is trained on."""
    return Task(members[0].preset.task).probe(members[0].preset.train.seed)


def map_steps(folder: Path) -> list[int]:
    """The steps of which there are maps, in order."""
    return sorted(int(file.stem) for file in (folder / "maps").glob("*.npy") if file.stem.isdecimal())


def read_maps(folder: Path, step: int) -> Maps:
    """The maps of a step. Raises `OSError` or `ValueError` where there are none, or the file is no such."""
    maps = np.load(folder / "maps" / f"{step:06d}.npy", allow_pickle=False)
    if maps.dtype != np.uint8 or maps.ndim != 3:
        raise ValueError(f"maps/{step:06d}.npy holds no maps.")
    return maps


class MapMaker:
    """Looks at the models of a sweep while they are trained."""

    def __init__(self, folder: Path, members: Sequence[Member], runs: Mapping[int, Run]) -> None:
        self.folder, self.n, self.runs = folder, len(members), dict(runs)
        self.probe = probe(members)
        self.every = _round_up(max(member.preset.train.steps for member in members) / FRAMES)
        self.step = max((run.step for run in runs.values()), default=0)
        self.maps: np.ndarray | None = None
        for later in map_steps(folder):  # of a sweep that goes on, those that have left are as they were
            if later > self.step:
                (folder / "maps" / f"{later:06d}.npy").unlink(missing_ok=True)
            else:
                self.maps = read_maps(folder, later)
        self.made_at = -1

    def look(self, *, now: bool = False) -> None:
        """Keep the maps of this step, where it is time to, or it is asked for."""
        self.step = max((run.step for run in self.runs.values()), default=self.step)
        if self.step == self.made_at or not (now or self.step % self.every == 0):
            return
        for number, run in self.runs.items():
            self._draw(number, run)
        if self.maps is not None:
            content = io.BytesIO()
            np.save(content, self.maps, allow_pickle=False)
            write_atomically(self.folder / "maps" / f"{self.step:06d}.npy", content.getvalue())
        self.made_at = self.step

    def leave(self, number: int) -> None:
        """From now on this model is as it is."""
        run = self.runs.pop(number)
        self.step = max(self.step, run.step)
        self._draw(number, run)

    def _draw(self, number: int, run: Run) -> None:
        found = self._best_head(run)
        if self.maps is None:
            self.maps = np.zeros((self.n, *found.shape), np.uint8)
        self.maps[number] = found

    @torch.no_grad()
    def _best_head(self, run: Run) -> UInt8[np.ndarray, "query key"]:
        """Of the heads that the task is about, the map of the one that does most of it."""
        inputs = [one.to(run.device) for one in (self.probe.stream, self.probe.target) if one is not None]
        run.model.eval()
        trace = record(run.model, *inputs, keep=["*.pattern", "*.mask"])
        run.model.train()
        scores = run.task.head_scores(trace, self.probe)
        _, path, head = max((score, path, head) for path, heads in scores.items() for head, score in enumerate(heads))
        pattern = trace.patterns()[path][0, head].nan_to_num()  # [query, key]
        cells = (pattern * LEVELS).round().clamp(0, LEVELS)
        if (mask := f"{path}.mask") in trace:
            allowed = trace[mask][0].expand(len(scores[path]), *cells.shape)[head]
            cells = cells.masked_fill(~allowed, MASKED)
        return cells.to(torch.uint8).cpu().numpy()


def _round_up(value: float) -> int:
    """The next round number of steps."""
    return next((n for n in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1_000) if n >= value), max(1, round(value)))
