"""Thumbnails of runs and shipped models: the final attention on one unseen input, and the loss curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from pages.compute import models, visible_runs
from pages.compute.byte_cache import budget
from pages.compute.call import is_dark
from xformer import Transformer, load
from xformer.adapters import TaskModel
from xformer.analysis.training_runs import thinned
from xformer.checkpoints import FILE
from xformer.config import ModelConfig
from xformer.errors import InputError, XformerError
from xformer.files import snapshot_file
from xformer.integrations.health_record import HealthRecord, planes_of, probe_files, probe_of
from xformer.layer_path import layer_title
from xformer.memory import check_fits
from xformer.reading import Reading
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.training.run_record import RunRecord
from xformer.viz.timeline import Frame, TimelineLayer, head_to_enlarge, layers_of, timeline_frame
from xformer.viz.training_runs import THUMBNAIL_WIDE, thumbnail

MAX_CELLS = 4_000_000
"""Maximum cells of one frame; each takes one byte."""
CARD = THUMBNAIL_WIDE + 32
"""Width of a card with a thumbnail in CSS pixels; three fit side by side at 1280 px."""
MAX_POINTS = 80
"""Approximate number of points of the loss curve; more cannot be seen."""
Curve = tuple[tuple[float, float], ...]
"""Losses by step."""


def check_size(config: ModelConfig, example: Example) -> None:
    """Raise `InputError` if evaluating an input takes too much memory, or if its frames are too large to send."""
    source, target = example.input_ids.shape[1], None if example.target is None else example.target.shape[1]
    check_fits(config, source, target, allowed_bytes=budget())
    heads, tokens = config.n_layers * config.n_heads, max(source, target or 0)
    if heads * tokens**2 > MAX_CELLS:
        raise InputError(
            f"A timeline of {heads:,} heads over {tokens:,} tokens has {heads * tokens**2:,} cells per frame, and at most "
            f"{MAX_CELLS:,} can be shown; type a shorter input."
        )


def frame_of(model: Transformer, task: Task, example: Example, step: int) -> Frame:
    """Return the timeline frame of a snapshot on an input."""
    adapter = TaskModel(model, task)
    trace = adapter.record(example, keep=["*.pattern", "*.mask", "logits"])
    return timeline_frame(Reading(adapter, example, trace), step)


def draw_shipped(name: str) -> None:
    """Draw the thumbnail of a shipped model, if there is one of that name."""
    file = models.FOLDER / name / FILE
    if file.exists():
        _show(_drawn(file.parent, file.stat().st_mtime_ns, is_dark(), None))


def draw_run(entry: RunRecord, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Draw the thumbnail of a run at its latest step; return False if it has no weights or record that can be drawn."""
    folder = visible_runs.store().folder_of(entry.id)
    try:
        if HealthRecord.is_in(folder):
            path = next(reversed(probe_files(folder)), folder)
            return _show(_drawn_record(path, path.stat().st_mtime_ns, is_dark(), _loss(rows)))
        if not (steps := visible_runs.steps_of(entry.id)):
            return False
        file = snapshot_file(folder, steps[-1])
        path = file if file.exists() else folder
        return _show(_drawn(path, path.stat().st_mtime_ns, is_dark(), _loss(rows)))
    except OSError:  # removed in the meantime
        return False


def _show(found: tuple[str, str] | None) -> bool:
    if found is not None:
        svg, label = found
        st.image(svg, width=THUMBNAIL_WIDE, alt=label)
    return found is not None


def _loss(rows: Sequence[Mapping[str, Any]]) -> Curve:
    losses = {row["step"]: row.get("held_out_loss") or row.get("loss") for row in rows}
    known = {step: loss for step, loss in losses.items() if isinstance(loss, float)}
    return tuple((float(step), known[step]) for step in thinned(list(known), MAX_POINTS))


@st.cache_data(max_entries=256, show_spinner=False)
def _drawn(path: Path, written: int, dark: bool, loss: Curve | None) -> tuple[str, str] | None:
    """Return the thumbnail of a weights file as SVG and its description. `written`, the file's time, is part of the key."""
    try:
        checkpoint = load(path)
        if (task := checkpoint.task) is None:
            return None
        example = task.probe(0)
        check_size(checkpoint.model.config, example)
    except XformerError:
        return None
    frame = frame_of(checkpoint.model, task, example, 0)
    layers = layers_of(task, example, [frame])
    layer, head = head_to_enlarge(layers, frame)
    curve = loss if loss is not None else _loss(checkpoint.card.get("curve", []))
    return thumbnail(frame.planes[layers[layer].path][head], curve, dark=dark), _label(layers[layer].title, head)


@st.cache_data(max_entries=256, show_spinner=False)
def _drawn_record(path: Path, written: int, dark: bool, loss: Curve) -> tuple[str, str] | None:
    """Return the thumbnail of an `AttentionHealth` file, showing the head with the most induction, and its description."""
    try:
        with np.load(path, allow_pickle=False) as found:
            planes = planes_of(found)
            scores = {layer: list(of["induction"]) for layer, of in probe_of(found).heads.items()}
    except (OSError, KeyError, TypeError, ValueError, EOFError):
        return None
    layers = [TimelineLayer(path, layer_title(path), len(codes), (), ()) for path, codes in planes.items()]
    layer, head = head_to_enlarge(layers, Frame(0, planes, scores, (), (), ()))
    return thumbnail(planes[layers[layer].path][head], loss, dark=dark), _label(layers[layer].title, head)


def _label(layer: str, head: int) -> str:
    return f"Attention of {layer}, head {head + 1}, and the loss over the steps"
