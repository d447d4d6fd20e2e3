"""The probe through every snapshot of a run: looked at a few at a time, kept, and played in the browser."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from pages.components.training_player import Rest, resting, training_player
from pages.shared import run_store
from pages.shared.byte_cache import budget, shared
from pages.shared.call import Call, heads_from_1
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import chart_spec, is_dark
from pages.shared.link import address
from pages.shared.picture import Figures, csv, figure_files, html, menu
from pages.shared.script import script
from pages.train.state import film_key, player_target
from xformer import Transformer, load
from xformer.adapters import TaskModel
from xformer.analysis.training_runs import (
    APPEARS,
    LEARNED,
    appearance,
    best_heads,
    dip,
    first_passing,
    head_table,
    thinned,
)
from xformer.config import ModelConfig
from xformer.errors import InputError, XformerError
from xformer.formatting import percent
from xformer.memory import check_fits
from xformer.presets import Preset
from xformer.reading import Reading
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.training.entry import Entry
from xformer.training.snapshots import snapshot_file, snapshot_steps
from xformer.viz.timeline import (
    FilmLayer,
    Frame,
    film_frame,
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


MOST_FRAMES = 120

MOST_BYTES = 1_200_000
"""Of all planes of a film."""

MOST_CELLS = 4_000_000
"""Of one frame, which a browser is sent as a byte each."""

BUDGET = 0.25
"""Seconds that one run of the page spends on looking at snapshots; the rest follows with the next."""


GOES_ON = ("queued", "running", "paused")
"""The states in which more is to come."""


def film_of(entry: Entry, settings: Preset, task: Task, example: Example, wanted: int | None) -> Film:
    """The film of that input; an empty one, and a sentence, where it would be too large."""
    try:
        check_size(settings.model, example)
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/block:")
        return Film((), (), 0)
    return develop(entry, task, example, wanted)


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
    album = album_of(entry.id, example.source)
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
        album.frames[key] = frame_of(checkpoint.model, task, example, step)
        shared.put(album_key(entry.id, example.source), album)  # with its new size
    frames = tuple(album.frames[keys[step]] for step in steps if step in keys and keys[step] in album.frames)
    return Film(frames, layers_of(task, example, frames), waiting)


def nothing_yet(entry: Entry, settings: Preset) -> None:
    """Why there is no picture, in place of it."""
    if not settings.train.snapshot_every:
        st.info("This run keeps no snapshots, so there is nothing to look at before it is finished.")
    elif entry.state == "queued":
        st.info("The first picture comes when it starts.", icon=":material/hourglass_top:")
    elif entry.state in GOES_ON:
        st.info("The first picture comes with its first snapshot, in a few seconds.", icon=":material/hourglass_top:")
    else:
        st.info("This run left no snapshot to look at; “New run” starts another.")


def _coarse_to_fine(steps: Sequence[int], wanted: int | None) -> list[int]:
    order = [step for step in steps if step <= (wanted or 0)][-1:] if wanted is not None else []
    order += steps[-1:]
    for stride in (16, 8, 4, 2, 1):
        order += steps[::stride]
    return list(dict.fromkeys(order))


def play(entry: Entry, task: Task, example: Example, film: Film, exact: Sequence[tuple[int, float]]) -> Rest:
    """Draw the player of a run, and return where it rests."""
    is_live = entry.is_active or entry.state == "queued"
    packed = _packed(entry, task, example, film, exact, live=is_live, told=player_target(entry.id))
    return training_player(packed, key=film_key(entry.id))


def files(
    entry: Entry, task: Task, example: Example, film: Film, exact: Sequence[tuple[int, float]]
) -> tuple[Callable[[], str], Figures]:
    """The player as a page of its own, at the last frame that there is, and as a figure what it shows where it rests."""
    rest, dark, link = resting(film_key(entry.id)), is_dark(), address()
    about = [f"{entry.name}: {task.vocabulary.text(list(example.source))}", f"run {entry.id}"]

    def caption() -> list[str]:
        return [*about, *link()]

    def packed() -> bytes:
        return _packed(entry, task, example, film, exact, live=False, told=(1, None))

    def charts() -> list[Any]:
        return [film_still(packed(), step=rest.step, head=rest.head, dark=dark)]

    return lambda: film_page(packed(), caption()), Figures(charts, caption, dark)


def _packed(
    entry: Entry,
    task: Task,
    example: Example,
    film: Film,
    exact: Sequence[tuple[int, float]],
    *,
    live: bool,
    told: tuple[int, int | None],
) -> bytes:
    return pack_film(
        film.layers,
        film.frames,
        **of_input(task, example),
        steps=entry.train.get("steps", 1),
        exact=exact,
        marks=[(step, words) for step, words in moments(film, exact).items()],
        best=head_to_enlarge(film.layers, film.frames[-1]),
        live=live,
        told=told,
    )


def moments(film: Film, exact: Sequence[tuple[int, float]]) -> dict[int, str]:
    """Steps worth a mark: where a head appears, and where the task is learned."""
    appears = appearance(film.best)
    learned = first_passing([step for step, _ in exact], [value for _, value in exact], LEARNED)
    marks: dict[int, str] = {}
    if appears is not None:
        marks[appears] = f"a head passes {APPEARS:g}"
    if learned is not None:
        marks[learned] = f"{marks[learned]}, {LEARNED:.0%} right" if learned in marks else f"{LEARNED:.0%} right"
    return marks


HEIGHT, TALL = 172, 230
"""CSS pixels of a chart beside the picture and of one below it, its axes included."""

SCORE = "The share of a head’s attention that lies where this task needs it: 0 is none of it, 1 is all."

MOST_HEADS = 16
"""Up to so many heads each has a curve of its own, beyond that only the best one of each layer."""


def metric_chart(call: Call, *, switch: bool = False) -> Call:
    """Show a call of `viz.metric_curves`; `switch` adds one for a logarithmic axis. What comes back is the call it has made."""
    of, (frame,) = dict(call.options), call.readings
    curves = CURVES[of["what"]]
    with st.container(horizontal=True, vertical_alignment="center", key=f"head_{curves.axis}_{of['height']}"):
        st.markdown(f"**{curves.title}**", width="stretch")
        if switch:
            of["log"] = st.toggle("logarithmic", key="train_log", persist_state="session")
    data = metric_data(frame, of["what"], of["shown"], of["marks"])
    _show(data, curves, of["steps"], of["height"], of.get("log", False))
    return replace(call, options=of)


def head_panel(film: Film, task: Task, steps: int, shown: int | None, marks: Mapping[int, str]) -> None:
    """The scores of the heads on the probe, over the snapshots."""
    names = head_names(film)
    st.markdown(f"**Heads: {task.rule.score_name} score**", help=SCORE)
    if not names:
        curves = head_curves(f"Heads: {task.rule.score_name} score", {"best": "best head"}, [0])
        _show(
            pd.DataFrame({"step": pd.Series(dtype=float), "best": pd.Series(dtype=float)}), curves, steps, TALL, False
        )
        return
    table = film.table
    if len(names) > MOST_HEADS:
        table = table.loc[table.groupby(["step", "layer"])["score"].idxmax()].assign(head=0)
        titles = {layer.path: layer.title for layer in film.layers}
        names = {(path, 0): f"{titles[path]}, best head" for path in dict.fromkeys(table["layer"])}
        hues = list(range(len(names)))
    else:
        hues = [head for _, head in names]
        if len(dict.fromkeys(hues)) == 1:
            hues = list(range(len(names)))
    wide, columns = head_frame(table)
    curves = head_curves(
        f"Heads: {task.rule.score_name} score", {columns[pair]: name for pair, name in names.items()}, hues
    )
    _show(with_marks(wide, shown, marks.items()), curves, steps, TALL, False)


def code_and_files(
    entry: Entry,
    calls: Sequence[Call],
    film: Film,
    example: Example,
    step: int | None,
    files: tuple[Callable[[], str], Figures] | None,
) -> None:
    """The code of the curves and of the picture of the shown step, their numbers, and the player as figures and as a page."""
    (frame,) = calls[0].readings
    pictures = [call.written({id(frame): "frame"}) for call in calls]
    lines = [
        "import os, xformer",
        "from xformer.training.run_store import RunStore",
        "from xformer.viz.training_curves import metrics_frame",
        'runs = os.environ.get("XFORMER_RUNS", "checkpoints/runs")  # where this app keeps what it trains',
        f'frame = metrics_frame(RunStore(runs).rows("{entry.id}"))',
    ]
    if step is not None:
        snapshot = snapshot_file(Path(entry.id), step).as_posix()
        lines.append(f'r = xformer.read(f"{{runs}}/{snapshot}", {list(example.source)})')
        head = "" if (chosen := resting(film_key(entry.id)).head) is None else f", head={chosen}"
        pictures.append(f"xformer.viz.film_still({{{step}: r}}{head}{', dark=True' if is_dark() else ''})")
    lines.append("[" + ",\n ".join(pictures) + "]")
    with menu("training"):
        st.code(script(lines), language="python", width=900)
        csv(frame, "metrics", entry.id, "Metrics as CSV")
        csv(lambda: heads_from_1(film.table), "heads", entry.id, "Head scores as CSV")
        if files is not None:
            with st.container(horizontal=True, gap="small"):
                figure_files(files[1], "training", entry.id)
                html(files[0], "training", entry.id)


def _show(data: pd.DataFrame, curves: Curves, steps: int, height: int, log: bool) -> None:
    dark = is_dark()
    ends = (0.0, 1.0) if curves.share else domain_of(data, list(curves.names), log)
    picture = (
        curves.title,
        tuple(curves.names.items()),
        curves.hues,
        steps,
        height,
        log,
        dark,
        tuple(data.columns),
        ends,
    )
    spec = dict(chart_spec(picture, lambda: curve_chart(data, curves, steps=steps, dark=dark, log=log, height=height)))
    for name in ("data", "datasets"):  # sent beside the chart, so that a new point changes nothing else
        spec.pop(name, None)
    st.vega_lite_chart(data, spec, theme="streamlit", width="stretch", key=f"chart_{curves.axis}_{height}")


STANDS_OUT = 0.1
"""A head is named as the best only where it scores so much more than the best did before training."""


def notes(entry: Entry, settings: Preset, task: Task, film: Film, frame: pd.DataFrame) -> list[str]:
    """Paragraphs of Markdown without any text of a person. Whatever is computed names the step that it holds for."""
    steps = [int(step) for step in frame["step"].dropna()]
    is_text = task.rule.is_open_ended  # where nothing is right or wrong, there is no exact match
    exact = [] if is_text else frame["held_out_exact_match"].fillna(0.0).tolist()
    learned = None if is_text else first_passing(steps, exact, LEARNED)
    names = head_names(film)
    found = _heads(settings, task, film, names, learned) if names else []
    knows = learned is not None or bool(names and appearance(film.best) is not None)
    look_for = task.rule.look_for
    found.insert(0, look_for if knows else f"In a model that has learned it: {look_for[0].lower()}{look_for[1:]}")
    fallen = dip(steps, exact) if exact else None
    if fallen is not None:
        rates = dict(zip(steps, frame["learning_rate"], strict=False))
        words = f"Exact match dips to {percent(fallen[1], 1)} at step {fallen[0]:,} and comes back."
        if rates.get(fallen[0], 0.0) >= 0.25 * settings.train.peak_lr > 0:
            words += f" The learning rate was still {rates[fallen[0]]:.2g} there."
        found.append(words)
    if not steps and entry.is_active:
        found.append("The curves begin with the first report.")
    return found


def _heads(
    settings: Preset, task: Task, film: Film, names: dict[tuple[str, int], str], learned: int | None
) -> list[str]:
    """When a head came to do what the task needs; of a run in which none did, that and no head's name."""
    best = film.best
    appears, first, last = appearance(best), best.iloc[0], best.iloc[-1]
    step, score = int(last["step"]), float(last["score"])
    name = names[last["layer"], int(last["head"])]
    gained = step > int(first["step"]) and score >= float(first["score"]) + STANDS_OUT
    found = []
    if first["score"] >= APPEARS:
        found.append(
            f"At step {int(first['step']):,} a head scores {first['score']:.2f} already on this input ({task.rule.score_name} "
            "score): with so few tokens to look at, chance can give that much."
            + (f" At step {step:,} {name} is best with {score:.2f}." if gained else "")
        )
    elif appears is None:
        found.append(
            f"Up to step {step:,} no head has half of its attention where the task needs it ({task.rule.score_name} score"
            + (f"); the best is {name} with {score:.2f}." if gained else f", best {score:.2f}).")
        )
    else:
        passing = best.set_index("step").loc[appears]
        found.append(
            f"At step {appears:,} {names[passing['layer'], int(passing['head'])]} passes {APPEARS:g} for the first time "
            f"(snapshots are {settings.train.snapshot_every:,} steps apart)"
            + (f"; at step {step:,} {name} is best with {score:.2f}." if step > appears else ".")
        )
        if learned is not None:
            after = learned - appears
            order = (
                f"{after:,} steps after" if after > 0 else "no later than" if after == 0 else f"{-after:,} steps before"
            )
            found.append(f"{LEARNED:.0%} exact match came at step {learned:,}: {order} the head.")
    if diffuse := _diffuse(film.table, names, step):
        found.append(diffuse)
    return found


def _diffuse(table: pd.DataFrame, names: dict[tuple[str, int], str], step: int) -> str:
    """That a whole layer stays diffuse while another does the work, where it is so."""
    best = table.loc[table["step"] == step].groupby("layer")["score"].max()
    if len(best) < 2 or best.max() < 0.8:
        return ""
    low = [path for path, score in best.items() if score < 0.3]
    if not low:
        return ""
    titles = list(dict.fromkeys(name.split(" · head")[0] for (path, _), name in names.items() if path in low))
    verb = "stays" if len(titles) == 1 else "stay"
    words = titles[0] if len(titles) == 1 else f"{', '.join(titles[:-1])} and {titles[-1]}"
    there = "there" if len(titles) == 1 else "in them"
    return f"{words.capitalize()} {verb} below 0.3 at step {step:,}: do not look for this pattern {there}."
