"""The probe through every snapshot of a run: looked at a few at a time, kept, and played in the browser."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from pages.components.training_player import Rest, training_player
from pages.shared import run_store
from pages.shared.byte_cache import budget, shared
from pages.train.visit import film_key, told
from xformer import Transformer, load
from xformer.analysis.learning import APPEARS, LEARNED, appearance, best_heads, first_passing, head_table, look, thinned
from xformer.config import ModelConfig
from xformer.errors import InputError, XformerError
from xformer.memory import check_fits
from xformer.names import layer_title
from xformer.site import Site
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.training.run_store import Entry
from xformer.training.snapshots import snapshot_file, snapshot_steps
from xformer.viz.film import FilmLayer, Frame, pack_film, plane

MOST_FRAMES = 120
MOST_BYTES = 1_200_000
"""Of all planes of a film."""
MOST_CELLS = 4_000_000
"""Of one frame, which a browser is sent as a byte each."""
BUDGET = 0.25
"""Seconds that one run of the page spends on looking at snapshots; the rest follows with the next."""


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

    def table(self) -> pd.DataFrame:
        """The scores of all heads; see `head_table`."""
        return head_table({frame.step: frame.scores for frame in self.frames})


def check_size(config: ModelConfig, example: Example) -> None:
    """Raise `InputError` where a film of that input is more than may be looked at, or than a browser can be sent."""
    source, target = example.stream.shape[1], None if example.target is None else example.target.shape[1]
    check_fits(config, source, target, allowed_bytes=budget())
    heads, tokens = config.n_layers * config.n_heads, max(source, target or 0)
    if heads * tokens**2 > MOST_CELLS:
        raise InputError(
            f"A film of {heads:,} heads over {tokens:,} tokens has {heads * tokens**2:,} cells a frame, and at most "
            f"{MOST_CELLS:,} can be shown; type a shorter input."
        )


def develop(entry: Entry, task: Task, example: Example, wanted: int | None) -> Film:
    """Look at the snapshots of a run that have not been looked at yet, as many as the budget allows.

    The step that is wanted comes first, then the others: coarse, then fine.
    """
    folder = run_store.store().folder_of(entry.id)
    album = _album(entry.id, example.source)
    steps = snapshot_steps(folder)
    cells = sum(frame_cells(frame) for frame in list(album.frames.values())[:1])
    steps = thinned(steps, min(MOST_FRAMES, max(2, MOST_BYTES // cells)) if cells else MOST_FRAMES)
    begun, waiting = time.perf_counter(), 0
    keys: dict[int, tuple[int, int]] = {}
    for step in _coarse_to_fine(steps, wanted):
        try:
            key = (step, snapshot_file(folder, step).stat().st_mtime_ns)
        except OSError:  # a run that goes on from an earlier step has just removed it
            continue
        keys[step] = key
        if key in album.frames:
            continue
        if time.perf_counter() - begun > BUDGET:
            waiting += 1
            continue
        try:
            checkpoint = load(snapshot_file(folder, step))
        except XformerError:
            continue
        album.frames[key] = _frame(checkpoint.model, task, example, step)
        shared.put(_key(entry.id, example.source), album)  # with its new size
    frames = tuple(album.frames[keys[step]] for step in steps if step in keys and keys[step] in album.frames)
    return Film(frames, _layers(task, example, frames), waiting)


def play(entry: Entry, task: Task, example: Example, film: Film, exact: Sequence[tuple[int, float]]) -> Rest:
    """Draw the player of a run, and return where it rests."""
    is_pair, is_image = example.target is not None, task.rule.is_image
    if is_image:  # its tokens are patches: the picture names them
        reads = {"right answer": [task.vocabulary.labels[token] for token in example.answer]}
    else:
        reads = {"source" if is_pair else "reads": task.position_names(example.stream[0].tolist())}
    if example.target is not None:
        reads["decoder reads"] = task.position_names(example.target[0].tolist())
    packed = pack_film(
        film.layers,
        film.frames,
        reads=reads,
        offset=0 if is_image else int((example.labels[0] >= 0).long().argmax()),
        score=task.score_name,
        steps=entry.train.get("steps", 1),
        exact=exact,
        marks=[(step, words) for step, words in moments(film, exact).items()],
        best=_best(film),
        live=entry.is_active or entry.state == "queued",
        told=told(entry.id),
        judged=not task.rule.is_open_ended,
    )
    return training_player(packed, key=film_key(entry.id))


def moments(film: Film, exact: Sequence[tuple[int, float]]) -> dict[int, str]:
    """Steps worth a mark: where a head appears, and where the task is learned."""
    appears = appearance(best_heads(film.table()))
    learned = first_passing([step for step, _ in exact], [value for _, value in exact], LEARNED)
    marks: dict[int, str] = {}
    if appears is not None:
        marks[appears] = f"a head passes {APPEARS:g}"
    if learned is not None:
        marks[learned] = f"{marks[learned]}, {LEARNED:.0%} right" if learned in marks else f"{LEARNED:.0%} right"
    return marks


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


def _key(run: str, source: tuple[int, ...]) -> tuple[str, str, tuple[int, ...]]:
    return "album", run, source


def _album(run: str, source: tuple[int, ...]) -> Album:
    return shared.get(_key(run, source), Album)


def _frame(model: Transformer, task: Task, example: Example, step: int) -> Frame:
    seen = look(model, task, example, step)
    label = task.vocabulary.labels
    planes = {path: plane(pattern, seen.allowed[path]) for path, pattern in seen.patterns.items()}
    return Frame(
        step, planes, seen.scores, tuple(label[token] for token in seen.predicted), seen.right, seen.probability
    )


def _layers(task: Task, example: Example, frames: Sequence[Frame]) -> tuple[FilmLayer, ...]:
    if not frames:
        return ()
    source = tuple(task.position_names(example.stream[0].tolist()))
    target = source if example.target is None else tuple(task.position_names(example.target[0].tolist()))
    layers = []
    for path, codes in frames[0].planes.items():
        site = Site.parse(path)
        queries, keys = (target if stack == "decoder" else source for stack in (site.query_stack, site.key_stack))
        layers.append(FilmLayer(path, layer_title(path, is_pair=example.target is not None), len(codes), queries, keys))
    return tuple(layers)


def _best(film: Film) -> tuple[int, int]:
    """The (layer, head) to enlarge: the best of the latest frame once it stands out, before that the last one's first."""
    last = len(film.layers) - 1
    scores: Mapping[str, Sequence[float]] = film.frames[-1].scores
    found = max(
        (
            (score, index, head)
            for index, layer in enumerate(film.layers)
            for head, score in enumerate(scores.get(layer.path, ()))
        ),
        default=(0.0, last, 0),
    )
    return (found[1], found[2]) if found[0] >= 0.3 else (last, 0)


def _coarse_to_fine(steps: Sequence[int], wanted: int | None) -> list[int]:
    order = [step for step in steps if step <= (wanted or 0)][-1:] if wanted is not None else []
    order += steps[-1:]
    for stride in (16, 8, 4, 2, 1):
        order += steps[::stride]
    return list(dict.fromkeys(order))
