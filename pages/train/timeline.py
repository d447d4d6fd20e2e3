"""The timeline of a run: one input through every snapshot, its player, the curves, and what to notice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from pages.components.training_player import resting, training_player
from pages.shared import run_store
from pages.shared.byte_cache import shared
from pages.shared.call import Call, heads_from_1
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import chart_spec, is_dark
from pages.shared.link import address
from pages.shared.picture import Figures, csv, figure_files, html, menu
from pages.shared.run_thumbnail import check_size, frame_of
from pages.shared.script import script
from pages.train.state import player_key, player_target
from xformer import load
from xformer.analysis.training_runs import (
    APPEARS,
    LEARNED,
    appearance,
    best_heads,
    dip,
    emerged,
    first_passing,
    head_table,
    settled,
    thinned,
)
from xformer.errors import InputError, XformerError
from xformer.formatting import percent
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.training.entry import Entry
from xformer.training.snapshots import snapshot_file, snapshot_steps
from xformer.viz.timeline import (
    FilmLayer,
    Frame,
    film_still,
    head_to_enlarge,
    layers_of,
    of_input,
    pack_film,
)
from xformer.viz.training_curves import (
    CURVES,
    Curves,
    curve_chart,
    domain_of,
    head_curves,
    head_frame,
    metric_data,
    with_marks,
)
from xformer.widgets.page import film_page

HEIGHT = 230
"""CSS pixels: the height of a chart, with axes."""
MOST_FRAMES = 120
MOST_BYTES = 1_200_000
"""Maximum size of a timeline that is sent to the browser."""
BUDGET = 0.25
"""Seconds of evaluating snapshots in one run of the page."""
MOST_HEADS = 16
"""With more heads, only the best head of each layer has a curve."""
ACTIVE = ("queued", "running", "paused")
"""The states in which a run can go on by itself."""


@dataclass
class SnapshotCache:
    """The evaluated snapshots of a run on one input, by step and modification time of the file."""

    frames: dict[tuple[int, int], Frame] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """The snapshots of a run on one input, as far as they are evaluated."""

    frames: tuple[Frame, ...]
    layers: tuple[FilmLayer, ...]
    waiting: int
    """Number of snapshots that are not evaluated yet."""

    def step_at(self, step: int | None) -> int | None:
        """The step of the frame that the player shows at a step; None is the latest."""
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

    @cached_property
    def head_names(self) -> dict[tuple[str, int], str]:
        """The display names of the heads that have a score, by layer path and head."""
        scores = self.frames[-1].scores if self.frames else {}
        return {
            (layer.path, head): f"{layer.title} · head {head + 1}"
            for layer in self.layers
            for head in range(len(scores.get(layer.path, ())))
        }


@dataclass(frozen=True)
class RunView:
    """A run as the screen shows it: its timeline on one input and its metrics."""

    entry: Entry
    settings: Preset
    task: Task
    example: Example
    timeline: Timeline
    frame: pd.DataFrame
    """The metrics, one row per report."""
    exact: Sequence[tuple[int, float]]
    """Exact match by step; empty for a text."""

    @property
    def key(self) -> str:
        return player_key(self.entry.id)

    @property
    def step(self) -> int | None:
        """The step that the player shows."""
        return self.timeline.step_at(resting(self.key).step)

    @cached_property
    def marks(self) -> dict[int, str]:
        """The steps at which a head appears and at which the task is learned."""
        appears = appearance(self.timeline.best)
        learned = first_passing([step for step, _ in self.exact], [share for _, share in self.exact], LEARNED)
        marks: dict[int, str] = {}
        if appears is not None:
            marks[appears] = f"a head passes {APPEARS:g}"
        if learned is not None:
            marks[learned] = ", ".join([*filter(None, [marks.get(learned)]), f"{LEARNED:.0%} right"])
        return marks

    def packed(self, *, live: bool, target: tuple[int, int | None]) -> bytes:
        """The data of the player; `target` is how often it was sent to a step, and which."""
        return pack_film(
            self.timeline.layers,
            self.timeline.frames,
            **of_input(self.task, self.example),
            steps=self.entry.train.get("steps", 1),
            exact=self.exact,
            marks=list(self.marks.items()),
            best=head_to_enlarge(self.timeline.layers, self.timeline.frames[-1]),
            live=live,
            target=target,
        )


def timeline_of(entry: Entry, settings: Preset, task: Task, example: Example, wanted: int | None) -> Timeline:
    """The timeline of an input; an empty one and an error message where it would be too large."""
    try:
        check_size(settings.model, example)
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/block:")
        return Timeline((), (), 0)
    return _evaluate(entry, task, example, wanted)


def _evaluate(entry: Entry, task: Task, example: Example, wanted: int | None) -> Timeline:
    """Evaluate snapshots for as long as the budget allows: first the wanted step, then coarse to fine."""
    folder, cache_key = run_store.store().folder_of(entry.id), ("snapshots", entry.id, example.source)
    cache = shared.get(cache_key, SnapshotCache)
    cells = sum(codes.size for frame in list(cache.frames.values())[:1] for codes in frame.planes.values())
    most = min(MOST_FRAMES, max(2, MOST_BYTES // cells)) if cells else MOST_FRAMES
    steps = thinned(snapshot_steps(folder), most)
    begun, waiting = time.perf_counter(), 0
    keys: dict[int, tuple[int, int]] = {}
    for step in _coarse_to_fine(steps, wanted):
        try:
            key = (step, snapshot_file(folder, step).stat().st_mtime_ns)
        except OSError:  # removed by a run that was resumed from an earlier step
            continue
        keys[step] = key
        if key in cache.frames:
            continue
        if time.perf_counter() - begun > BUDGET:
            waiting += 1
            continue
        try:
            checkpoint = load(snapshot_file(folder, step))
        except XformerError:
            continue
        cache.frames[key] = frame_of(checkpoint.model, task, example, step)
        shared.put(cache_key, cache)  # with its new size
    frames = tuple(cache.frames[keys[step]] for step in steps if step in keys and keys[step] in cache.frames)
    return Timeline(frames, layers_of(task, example, frames), waiting)


def _coarse_to_fine(steps: Sequence[int], wanted: int | None) -> list[int]:
    order = [step for step in steps if wanted is not None and step <= wanted][-1:] + list(steps[-1:])
    for stride in (16, 8, 4, 2, 1):
        order += steps[::stride]
    return list(dict.fromkeys(order))


def player(view: RunView) -> None:
    """Draw the player of a run, or why there is no picture yet."""
    entry = view.entry
    if view.timeline.frames:
        packed = view.packed(live=entry.state in ACTIVE or entry.is_active, target=player_target(entry.id))
        training_player(packed, key=view.key)
    elif not view.settings.train.snapshot_every:
        st.info("This run keeps no snapshots, so there is no picture before it is finished.")
    elif entry.state == "queued":
        st.info("The first picture comes when the run starts.", icon=":material/hourglass_top:")
    elif entry.state in ACTIVE:
        st.info("The first picture comes with the first snapshot, in a few seconds.", icon=":material/hourglass_top:")
    else:
        st.info("This run has no snapshots; “New run” starts another.")


def metric_chart(call: Call) -> None:
    """Show a call of `viz.metric_curves`."""
    options, (frame,) = call.options, call.readings
    curves = CURVES[options["what"]]
    st.markdown(f"**{curves.title}**")
    data = metric_data(frame, options["what"], options["shown"], options["marks"])
    _show(data, curves, options["steps"], options["height"])


def head_panel(view: RunView) -> None:
    """Draw the scores of the heads over the snapshots."""
    timeline, names, title = view.timeline, view.timeline.head_names, f"Heads: {view.task.rule.score_name} score"
    st.markdown(
        f"**{title}**",
        help="The share of a head’s attention at the positions that the task needs: 0 is none, 1 is all.",
    )
    if not names:
        data, curves = (
            pd.DataFrame({"step": [], "best": []}, dtype=float),
            head_curves(title, {"best": "best head"}, [0]),
        )
    else:
        table = timeline.table
        if len(names) > MOST_HEADS:
            table = table.loc[table.groupby(["step", "layer"])["score"].idxmax()].assign(head=0)
            names = {
                (one.path, 0): f"{one.title}, best head" for one in timeline.layers if one.path in {*table["layer"]}
            }
        hues = [head for _, head in names]
        hues = hues if len(set(hues)) > 1 else list(range(len(names)))
        wide, columns = head_frame(table)
        curves = head_curves(title, {columns[pair]: name for pair, name in names.items()}, hues)
        data = with_marks(wide, view.step, view.marks.items())
    _show(data, curves, view.settings.train.steps, HEIGHT)


def _show(data: pd.DataFrame, curves: Curves, steps: int, height: int) -> None:
    dark = is_dark()
    ends = (0.0, 1.0) if curves.share else domain_of(data, list(curves.names))
    names, columns = tuple(curves.names.items()), tuple(data.columns)
    picture = (curves.title, names, curves.hues, steps, height, dark, columns, ends)
    spec = dict(chart_spec(picture, lambda: curve_chart(data, curves, steps=steps, dark=dark, height=height)))
    for name in ("data", "datasets"):  # sent beside the chart, so that a new point changes nothing else
        spec.pop(name, None)
    st.vega_lite_chart(data, spec, theme="streamlit", width="stretch", key=f"chart_{curves.axis}")


def code_and_files(view: RunView, calls: Sequence[Call]) -> None:
    """Offer the code of the pictures, their numbers, and the player as figures and as a page."""
    (frame,), run, step = calls[0].readings, view.entry.id, view.step
    pictures = [call.written({id(frame): "frame"}) for call in calls]
    lines = [
        "import os, xformer",
        "from xformer.training.run_store import RunStore",
        "from xformer.viz.training_curves import metrics_frame",
        'runs = os.environ.get("XFORMER_RUNS", "checkpoints/runs")  # where this app keeps its runs',
        f'frame = metrics_frame(RunStore(runs).rows("{run}"))',
    ]
    if step is not None:
        snapshot = snapshot_file(Path(run), step).as_posix()
        lines.append(f'r = xformer.read(f"{{runs}}/{snapshot}", {list(view.example.source)})')
        head = "" if (chosen := resting(view.key).head) is None else f", head={chosen}"
        pictures.append(f"xformer.viz.film_still({{{step}: r}}{head}{', dark=True' if is_dark() else ''})")
    lines.append("[" + ",\n ".join(pictures) + "]")
    with menu("training"):
        st.code(script(lines), language="python", width=900)
        csv(frame, "metrics", run, "Metrics as CSV")
        csv(lambda: heads_from_1(view.timeline.table), "heads", run, "Head scores as CSV")
        _figures(view, calls)


def _figures(view: RunView, calls: Sequence[Call]) -> None:
    """Offer the player at its last frame as a page, and what it shows as a figure with the curves."""
    rest, link, run = resting(view.key), address(), view.entry.id
    about = [f"{view.entry.name}: {view.task.vocabulary.text(list(view.example.source))}", f"run {run}"]

    def caption() -> list[str]:
        return [*about, *link()]

    def packed() -> bytes:
        return view.packed(live=False, target=(1, None))

    def charts(dark: bool) -> list[Any]:
        still = [film_still(packed(), step=rest.step, head=rest.head, dark=dark)] if view.timeline.frames else []
        return [*still, *(call.in_theme(dark).make() for call in calls)]

    if view.timeline.frames:
        html(lambda: film_page(packed(), caption()), "training", run)
    figure_files(Figures(charts, caption), "training", run)


def finding(view: RunView) -> str:
    """When the head with the task’s pattern appeared and when the answers became right; "" where neither has happened."""
    sentences, timeline = [], view.timeline
    if not timeline.waiting and (found := emerged(timeline.table)) is not None:
        name = timeline.head_names[found.layer, found.head].replace(" · ", " ")
        gain = f"{percent(found.first, 0)} → {percent(found.last, 0)}"
        sentences.append(f"The **{view.task.rule.score_name}** appears at step {found.step:,} ({name}: {gain}).")
    steps, shares = view.frame["step"].tolist(), view.frame["held_out_exact_match"].fillna(0.0).tolist()
    if not view.task.rule.is_open_ended and (step := settled(steps, shares, LEARNED)) is not None:
        share = min(share for at, share in zip(steps, shares, strict=True) if at >= step)
        which = "All" if share == 1 else f"{percent(share, 1)} of"
        sentences.append(f"{which} held-out answers right from step {step:,.0f}.")
    return " ".join(sentences)


def notes(view: RunView) -> list[str]:
    """What to notice in the curves and snapshots, as Markdown; each computed sentence names its step."""
    task, frame, timeline = view.task, view.frame, view.timeline
    steps = [int(step) for step in frame["step"].dropna()]
    exact = [] if task.rule.is_open_ended else frame["held_out_exact_match"].fillna(0.0).tolist()
    is_learned = first_passing(steps, exact, LEARNED) is not None if exact else False
    is_learned = is_learned or (bool(timeline.head_names) and appearance(timeline.best) is not None)
    look_for = task.rule.look_for
    found = [look_for if is_learned else f"In a trained model: {look_for[0].lower()}{look_for[1:]}"]
    if timeline.head_names:
        found += _head_notes(view)
    if exact and (fallen := dip(steps, exact)) is not None:
        rate = dict(zip(steps, frame["learning_rate"], strict=False)).get(fallen[0], 0.0)
        words = f"Exact match dips to {percent(fallen[1], 1)} at step {fallen[0]:,} and comes back."
        if rate >= 0.25 * view.settings.train.peak_lr > 0:
            words += f" The learning rate was still {rate:.2g} there."
        found.append(words)
    return found


def _head_notes(view: RunView) -> list[str]:
    """Where no head has the task’s pattern, or one had it before training."""
    best, score_name = view.timeline.best, f"{view.task.rule.score_name} score"
    first, last = best.iloc[0], best.iloc[-1]
    step = int(last["step"])
    found = []
    if first["score"] >= APPEARS:
        found.append(
            f"At step {int(first['step']):,} a head already scores {first['score']:.2f} on this input ({score_name}): with so "
            "few tokens, chance can give that much."
        )
    elif last["score"] < APPEARS:
        found.append(
            f"Up to step {step:,} no head has half of its attention where the task needs it: the best {score_name} is "
            f"{last['score']:.2f}."
        )
    return [*found, *_diffuse_layers(view.timeline, step)]


def _diffuse_layers(timeline: Timeline, step: int) -> list[str]:
    """Layers in which no head has the task’s pattern, where another layer has a clear one."""
    best = timeline.table.loc[timeline.table["step"] == step].groupby("layer")["score"].max()
    titles = [layer.title for layer in timeline.layers if best.get(layer.path, 1.0) < 0.3]
    if len(best) < 2 or best.max() < 0.8 or not titles:
        return []
    is_one = len(titles) == 1
    words = titles[0] if is_one else f"{', '.join(titles[:-1])} and {titles[-1]}"
    words = words[0].upper() + words[1:]
    return [f"{words} {'stays' if is_one else 'stay'} below 0.3 at step {step:,}: no head there has this pattern."]
