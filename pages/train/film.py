"""The probe through every snapshot of a run: looked at a few at a time, kept, and played in the browser."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from pages.shared.byte_cache import shared
from xformer import Transformer
from xformer.adapters import TaskModel
from xformer.analysis.training_runs import best_heads, head_table
from xformer.reading import Reading
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.viz.timeline import FilmLayer, Frame, film_frame


@dataclass
class Album:
    """What has been looked at of one run with one probe: frames by (step, when its file was written)."""

    frames: dict[tuple[int, int], Frame] = field(default_factory=dict)


@dataclass(frozen=True)
class Film:
    """What the screen knows of a run's snapshots now."""

    frames: tuple[Frame, ...]
    layers: tuple[FilmLayer, ...]
    waiting: int
    """Snapshots that have not been looked at yet."""

    def step_at(self, step: int | None) -> int | None:
        """The step of the frame that a player shows when it rests at a step; at None it rests at the latest."""
        if not self.frames:
            return None
        at_or_before = [frame.step for frame in self.frames if step is None or frame.step <= step]
        return at_or_before[-1] if at_or_before else self.frames[0].step

    @cached_property
    def table(self) -> pd.DataFrame:
        """The scores of all heads; see `head_table`."""
        return head_table({frame.step: frame.scores for frame in self.frames})

    @cached_property
    def best(self) -> pd.DataFrame:
        """The best head at each step; see `best_heads`."""
        return best_heads(self.table)


def head_names(film: Film) -> dict[tuple[str, int], str]:
    """What each head that has a score is called."""
    scored = film.frames[-1].scores if film.frames else {}
    return {
        (layer.path, head): f"{layer.title} · head {head + 1}"
        for layer in film.layers
        for head in range(len(scored.get(layer.path, ())))
    }


def frame_cells(frame: Frame) -> int:
    """The bytes of a frame's planes."""
    return sum(codes.size for codes in frame.planes.values())


def album_key(run: str, source: tuple[int, ...]) -> tuple[str, str, tuple[int, ...]]:
    return "album", run, source


def album_of(run: str, source: tuple[int, ...]) -> Album:
    return shared.get(album_key(run, source), Album)


def frame_of(model: Transformer, task: Task, example: Example, step: int) -> Frame:
    """What a film keeps of a snapshot with that input."""
    subject = TaskModel(model, task)
    return film_frame(Reading(subject, example, subject.record(example, keep=["*.pattern", "*.mask", "logits"])), step)
