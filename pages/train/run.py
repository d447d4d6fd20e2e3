"""A run on the Train screen: its timeline (one input through every snapshot), curves, notes, and actions on a step."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
import torch

from pages.components.elements import resting, training_player
from pages.compute import run_commands, visible_runs
from pages.compute.byte_cache import shared
from pages.compute.call import PictureCall, heads_from_1, picture_call
from pages.compute.picture import csv, figure_files, html, live_download, menu, toolbar
from pages.compute.run_thumbnail import check_size, frame_of
from pages.controls import widgets
from pages.controls.embed import picture
from pages.controls.text import escape_markdown, headline, what_to_notice
from pages.controls.widgets import validate_text
from pages.state.link import address
from pages.state.session import open_on
from pages.train.form import TRAIN, TRAINING, ask, is_filled, put
from pages.train.form import settings as form_settings
from pages.train.status import (
    ACTIVE,
    FIRST,
    again_button,
    change_rate,
    controls,
    earlier_step,
    figures,
    heading,
    live_chart,
    new_run,
    player_key,
    player_target,
    progress,
    rows_so_far,
    share,
    show_code,
    show_problem,
    start_button,
    tiles,
    train_state,
)
from xformer import load, viz
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
from xformer.checkpoints import FILE, to_bytes
from xformer.decoding import Sampling, continue_text
from xformer.errors import ConfigError, InputError, RunStoreError, XformerError
from xformer.files import snapshot_file, snapshot_steps
from xformer.formatting import percent
from xformer.live.export import live_page
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.training.run_record import DAMAGED, ELSEWHERE, RunRecord
from xformer.viz.timeline import (
    Frame,
    TimelineLayer,
    head_to_enlarge,
    layers_of,
    of_input,
    pack_timeline,
    timeline_still,
)
from xformer.viz.training_curves import CURVES, curve_chart, head_curves, head_frame, metrics_frame, with_marks
from xformer.widgets.page import timeline_page

HEIGHT = 230
"""The height of a chart in CSS pixels, including axes."""
MAX_FRAMES = 120
MAX_POINTS = 200
"""Approximate maximum number of exact-match points in the player."""
MAX_BYTES = 1_200_000
BUDGET = 0.25
"""Seconds spent on evaluating snapshots in one rerun of the page."""
MAX_HEADS = 16
"""Maximum number of heads with a curve each; above it, only the best head of each layer has one."""


@dataclass(frozen=True)
class Timeline:
    """The snapshots of a run evaluated on one input so far."""

    frames: tuple[Frame, ...]
    layers: tuple[TimelineLayer, ...]
    waiting: int
    """Number of snapshots not evaluated yet."""

    def step_at(self, step: int | None) -> int | None:
        """Return the step of the frame that the player shows at a step (None: the latest); None without frames."""
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
    """A run on screen: its timeline on one input and its metrics."""

    entry: RunRecord
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
        marks = {} if appears is None else {appears: f"a head passes {APPEARS:g}"}
        if learned is not None:
            marks[learned] = ", ".join(filter(None, [marks.get(learned), f"{LEARNED:.0%} right"]))
        return marks

    def packed(self, *, live: bool, target: tuple[int, int | None]) -> bytes:
        """Return the data of the player; `target` is explained at `player_target`."""
        layers, frames, steps = self.timeline.layers, self.timeline.frames, self.entry.train.get("steps", 1)
        best, of = head_to_enlarge(layers, frames[-1]), of_input(self.task, self.example)
        pack = partial(pack_timeline, layers, frames, **of, exact=self.exact, marks=list(self.marks.items()))
        return pack(steps=steps, best=best, live=live, target=target)


def timeline_of(entry: RunRecord, settings: Preset, task: Task, example: Example, wanted: int | None) -> Timeline:
    """Evaluate snapshots within the time budget: first the wanted step, then coarse to fine.

    If the timeline would be too large, draw an error message and return an empty one.
    """
    try:
        check_size(settings.model, example)
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/block:")
        return Timeline((), (), 0)
    folder, cache_key = visible_runs.store().folder_of(entry.id), ("snapshots", entry.id, example.source)
    cache: dict[tuple[int, int], Frame] = shared.get(cache_key, dict)  # by step and time of the file
    cells = sum(codes.size for frame in list(cache.values())[:1] for codes in frame.planes.values())
    most = min(MAX_FRAMES, max(2, MAX_BYTES // cells)) if cells else MAX_FRAMES
    steps = thinned(snapshot_steps(folder), most)
    begun, waiting = time.perf_counter(), 0
    keys: dict[int, tuple[int, int]] = {}
    order = [step for step in steps if wanted is not None and step <= wanted][-1:] + list(steps[-1:])
    for step in dict.fromkeys(order + [step for stride in (16, 8, 4, 2, 1) for step in steps[::stride]]):
        try:
            key = (step, snapshot_file(folder, step).stat().st_mtime_ns)
        except OSError:  # the run was resumed from an earlier step, which removes later snapshots
            continue
        keys[step] = key
        if key not in cache and time.perf_counter() - begun > BUDGET:
            waiting += 1
        elif key not in cache:
            with suppress(XformerError):
                cache[key] = frame_of(load(snapshot_file(folder, step)).model, task, example, step)
                shared.put(cache_key, cache)  # updates its size
    frames = tuple(cache[keys[step]] for step in steps if step in keys and keys[step] in cache)
    return Timeline(frames, layers_of(task, example, frames), waiting)


def player(view: RunView) -> None:
    """Draw the player of a run, or a message why there is no picture yet."""
    entry = view.entry
    if view.timeline.frames:
        packed = view.packed(live=entry.state in ACTIVE or entry.is_active, target=player_target(entry.id))
        training_player(packed, key=view.key)
    elif not view.settings.train.snapshot_every:
        st.info("This run keeps no snapshots, so there is no picture until it has finished.")
    elif entry.state == "queued":
        st.info("The first picture appears when the run starts.", icon=":material/hourglass_top:")
    elif entry.state in ACTIVE:
        st.info("The first picture appears with the first snapshot, in a few seconds.", icon=":material/hourglass_top:")
    else:
        st.info("This run has no snapshots; “New run” starts another one.")


def metric_chart(view: RunView, call: PictureCall) -> None:
    """Show a call of `viz.metric_curves`."""
    what, frame = call.options["what"], view.frame
    st.markdown(f"**{CURVES[what].title}**")
    end = frame["step"].iloc[-1] if len(frame) else None
    live_chart(call, (view.entry.id, len(frame), end), f"chart_{what}")


def head_panel(view: RunView) -> None:
    """Draw the scores of the heads over the snapshots; with more than `MAX_HEADS`, of the best head of each layer."""
    timeline, names, title = view.timeline, view.timeline.head_names, f"Heads: {view.task.rule.score_name} score"
    help = "The share of a head’s attention on the positions that the task needs, from 0 (none) to 1 (all)."
    st.markdown(f"**{title}**", help=help)
    if not names:
        st.caption("The scores appear with the first snapshot.")
        return
    table = timeline.table
    if len(names) > MAX_HEADS:
        table = table.loc[table.groupby(["step", "layer"])["score"].idxmax()].assign(head=0)
        paths = {*table["layer"]}
        names = {(layer.path, 0): f"{layer.title}, best head" for layer in timeline.layers if layer.path in paths}
    heads = [head for _, head in names]
    hues = heads if len(set(heads)) > 1 else range(len(names))
    wide, columns = head_frame(table)
    curves = head_curves(title, {columns[pair]: name for pair, name in names.items()}, hues)
    marked, steps = with_marks(wide, view.step, view.marks.items()), view.settings.train.steps
    call = picture_call(curve_chart, marked, curves=curves, steps=steps, height=HEIGHT)
    live_chart(call, (view.entry.id, len(table), view.step, *view.marks), "chart_heads")


def code_and_files(view: RunView, calls: Sequence[PictureCall]) -> None:
    """Draw the menu with the code of the pictures, their numbers, and the player as figures and as a page."""
    (frame,), run, step = calls[0].readings, view.entry.id, view.step
    pictures = [call.written({id(frame): "frame"}) for call in calls]
    lines = [f'frame = metrics_frame(RunStore(runs).rows("{run}"))']
    if step is not None:
        snapshot = snapshot_file(Path(run), step).as_posix()
        lines.append(f'r = xformer.read(f"{{runs}}/{snapshot}", {list(view.example.source)})')
        head = "" if (chosen := resting(view.key).head) is None else f", head={chosen}"
        pictures.append(f"xformer.viz.timeline_still({{{step}: r}}{head})")
    with menu("training"):
        show_code("from xformer.viz.training_curves import metrics_frame", lines, pictures)
        csv(frame, "metrics", run, "Metrics as CSV")
        csv(lambda: heads_from_1(view.timeline.table), "heads", run, "Head scores as CSV")
        _figures(view, calls)


def _figures(view: RunView, calls: Sequence[PictureCall]) -> None:
    """Draw buttons for the player as a page and a live page, and for the shown frame with the curves as a figure."""
    rest, link, run = resting(view.key), address(), view.entry.id
    about = [f"{view.entry.name}: {view.task.vocabulary.text(list(view.example.source))}", f"run {run}"]

    def caption() -> list[str]:
        return [*about, *link()]

    def packed() -> bytes:
        return view.packed(live=False, target=(1, None))

    def charts() -> list[Any]:
        still = [timeline_still(packed(), step=rest.step, head=rest.head)] if view.timeline.frames else []
        return [*still, *(call.make() for call in calls)]

    if view.timeline.frames:
        html(lambda: timeline_page(packed(), caption()), "training", run)
        folder, text = visible_runs.store().folder_of(run), view.task.vocabulary.text(list(view.example.source))
        live_download(lambda: live_page(folder, text).encode(), "training", run)
    figure_files(charts, caption, "training", run)


def finding(view: RunView) -> str:
    """Describe when the head with the task’s pattern appeared and when the answers became right; "" if neither happened."""
    sentences, timeline = [], view.timeline
    if not timeline.waiting and (found := emerged(timeline.table)) is not None:
        name = timeline.head_names[found.layer, found.head].replace(" · ", " ")
        gain = f"{percent(found.first, 0)} → {percent(found.last, 0)}"
        sentences.append(f"The **{view.task.rule.score_name}** appears at step {found.step:,} ({name}: {gain}).")
    steps, shares = view.frame["step"].tolist(), view.frame["held_out_exact_match"].fillna(0.0).tolist()
    if not view.task.rule.is_open_ended and (step := settled(steps, shares, LEARNED)) is not None:
        share = min(share for at, share in zip(steps, shares, strict=True) if at >= step)
        which = "All" if share == 1 else f"At least {percent(share, 1)} of"
        sentences.append(f"{which} held-out answers are right from step {step:,.0f}.")
    return " ".join(sentences)


def notes(view: RunView) -> list[str]:
    """Return notes on the curves and snapshots, as Markdown; each computed note names its step."""
    task, frame, timeline = view.task, view.frame, view.timeline
    steps = [int(step) for step in frame["step"].dropna()]
    exact = [] if task.rule.is_open_ended else frame["held_out_exact_match"].fillna(0.0).tolist()
    hint = task.rule.attention_hint
    found = [hint if view.marks else f"In a trained model: {hint[0].lower()}{hint[1:]}"]
    if timeline.head_names and (best := timeline.best["score"]).iloc[-1] < APPEARS:
        step = timeline.frames[-1].step
        found.append(
            f"By step {step:,} no head puts half of its attention where the task needs it: the best "
            f"{task.rule.score_name} score is {best.iloc[-1]:.2f}."
        )
    if exact and (fallen := dip(steps, exact)) is not None:
        found.append(f"Exact match dips to {percent(fallen[1], 1)} at step {fallen[0]:,} and then recovers.")
    return found


TICK = 1.2
"""Seconds between two updates of the pictures of an active run."""
SAMPLE_LENGTH, TEMPERATURE = 120, 0.8


def run_view(entry: RunRecord, visitor: str) -> None:
    """Show a run, in a fragment that updates while the run is active."""
    try:
        _readable(entry)
    except (RunStoreError, ConfigError) as error:
        st.title("Train :small[:gray[Can I watch it learn?]]", anchor=False)
        st.error(f"This run cannot be read. {escape_markdown(str(error))}", icon=":material/broken_image:")
        new_run()
        return
    moves = entry.state in ACTIVE or train_state().evaluating == entry.id
    st.fragment(run_every=TICK if moves else None, key="train_live")(_live)(entry.id, visitor, moves)


def _readable(entry: RunRecord) -> Preset:
    """Return the settings of a run. Raises `RunStoreError` or `ConfigError` if its entry is damaged."""
    if entry.state == DAMAGED:
        raise RunStoreError(entry.message)
    settings = entry.settings()
    Task(settings.task).check_fits(settings.model)
    return settings


def _live(run: str, visitor: str, moves: bool) -> None:
    try:
        entry = visible_runs.entry(run)
        settings = _readable(entry)
    except (RunStoreError, ConfigError) as error:
        st.error(escape_markdown(str(error)))
        return
    if train_state().run not in (run, None):
        st.rerun()  # the visitor has chosen another run
    task, rests_at = Task(settings.task), resting(player_key(run)).step
    with st.container(gap="xsmall", key="run_head"):
        heading(entry)
        show_problem()
        progress(entry, settings, visitor, rests_at)
        found_at = st.container(key="run_headline")
    frame = metrics_frame(rows_so_far(entry))
    shares = [] if task.rule.is_open_ended else frame[["step", "held_out_exact_match"]].dropna().to_numpy().tolist()
    drawn = {*thinned([int(step) for step, _ in shares], MAX_POINTS)}
    exact = [(int(step), round(share, 4)) for step, share in shares if step in drawn]
    with toolbar():
        example = _ask_probe(entry, task, settings.model.max_len)
        controls(entry, visitor)
        new_run()
        more_at = st.popover("More", key="run_more")
    view = RunView(entry, settings, task, example, timeline_of(entry, settings, task, example, rests_at), frame, exact)
    with found_at:
        if found := finding(view):
            headline(found)
        else:
            st.space(29)  # reserves space, so that the timeline does not move when a finding appears
    with more_at:
        _more(view, visitor)
    with picture(), st.container(key="film_place"):
        player(view)
    _below_player(view)
    is_evaluating = bool(view.timeline.waiting)
    train_state().evaluating = run if is_evaluating else None
    if moves != (entry.state in ACTIVE or is_evaluating):
        st.rerun()
    share(run, resting(player_key(run)).step)  # last, because a rerun would discard the change of the address bar


def _ask_probe(entry: RunRecord, task: Task, max_len: int) -> Example:
    """Draw the input field of the timeline and return its example; an unreadable input gives the last readable one."""
    begin_key, good_key, version_key = (f"probe_{entry.id}:{what}" for what in ("begin", "good", "version"))
    default = task.vocabulary.text(list(task.probe(entry.train.get("seed", 0)).source))
    begin = st.session_state.setdefault(begin_key, default)
    version = st.session_state.setdefault(version_key, 0)

    def draw() -> None:
        st.session_state[begin_key] = task.vocabulary.text(task.draw(random.getrandbits(32)))
        st.session_state[version_key] = version + 1

    with st.container(horizontal=True, wrap=False, gap="small", key="probe_row"):
        # A default, not a session value, so that a rerun does not overwrite what the visitor is typing.
        ask = partial(st.text_input, "Watch it learn on", begin, persist_state="session", label_visibility="collapsed")
        hint = f"Watch it learn on … {task.rule.format_hint}"
        text = ask(key=f"probe_{entry.id}_{version}", icon=":material/visibility:", placeholder=hint)
        st.button("", icon=":material/casino:", on_click=draw, key="probe_random", help="A random input")
    try:
        example = task.example(task.vocabulary.read(validate_text(text, 400)), max_len=max_len)
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        return task.example(task.vocabulary.read(st.session_state.get(good_key, default)))
    st.session_state[good_key] = text
    return example


def _below_player(view: RunView) -> None:
    """Draw everything below the player."""
    if view.task.rule.is_open_ended:
        with st.container(key="text_sample"):
            _sample(view)
    look = {"steps": view.settings.train.steps, "shown": view.step, "marks": view.marks, "height": HEIGHT}
    measures = ("bits" if view.task.rule.is_open_ended else "accuracy", "loss")
    calls = [picture_call(viz.metric_curves, view.frame, what=what, **look) for what in measures]
    with st.container(key="run_curves"):
        for place, call in zip(st.columns(2, gap="medium"), calls, strict=True):
            with place:
                metric_chart(view, call)
    more = st.expander("More figures", key="train_more", on_change="rerun")
    if more.open:
        with more:
            earlier, is_text = earlier_step(view.entry, resting(view.key).step), view.task.rule.is_open_ended
            tiles(figures(view.entry, rows_so_far(view.entry), earlier, is_text)[FIRST:])
            head_panel(view)
            for place, what in zip(st.columns(2, gap="medium"), ("gradient", "rate"), strict=True):
                calls.append(picture_call(viz.metric_curves, view.frame, **({"what": what} | look | {"marks": None})))
                with place:
                    metric_chart(view, calls[-1])
    code_and_files(view, calls)
    what_to_notice(notes(view))


def _more(view: RunView, visitor: str) -> None:
    """Draw the actions on the run and the shown step: open, fork, change the learning rate, train again, download."""
    entry, step = view.entry, view.step
    if step is not None:
        open_on(entry.id, step, key="open", text=view.task.vocabulary.text(list(view.example.source)))
        with st.expander(f"Fork from step {step:,}", icon=":material/fork_right:", key="fork"):
            _fork(entry, view.settings, step, visitor)
    if entry.state in ("running", "paused") and visible_runs.may_control(entry, visitor):
        with st.expander("Change the learning rate", icon=":material/speed:", key="run_rate"):
            change_rate(entry, view.settings)
    folder = visible_runs.store().folder_of(entry.id)
    with st.container(horizontal=True, gap="small"):
        if not entry.is_active and entry.state != "queued":
            again_button(entry, is_possible=bool(visitor) and entry.wanted != ELSEWHERE)
        if (folder / FILE).exists():
            help = "Weights, settings, scores and loss curve in one safetensors file."
            file = f"{entry.id}.safetensors"
            widgets.download("Model", lambda: to_bytes(load(folder)), file, key="run_model", help=help)


def _fork(entry: RunRecord, settings: Preset, step: int, visitor: str) -> None:
    form = f"fork_{entry.id}"
    if not is_filled(form):
        put(settings, form, TRAINING)
    st.caption(
        f"A new run that starts from the weights of step {step:,}, with a new optimiser and new data. "
        "The model stays the same; the training settings can be changed."
    )
    ask(TRAIN, form)
    changed = None
    try:
        changed = form_settings(settings, form, TRAINING)
    except ConfigError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
    name, is_possible = f"{entry.name}, from step {step:,}"[:80], changed is not None and bool(visitor)
    fork = partial(run_commands.fork, entry.id, step, changed or settings, name)
    start_button("Start the fork", fork, is_possible=is_possible, type="primary", key="fork_start")


def _sample(view: RunView) -> None:
    """Draw the continuation of the input by the shown snapshot, with a fixed seed so that steps can be compared."""
    run, step, alphabet, example = view.entry.id, view.step, view.settings.task.alphabet, view.example
    if step is None:
        return
    prompt = tuple((example.input_ids if example.target is None else example.tokens)[0].tolist())
    try:
        written = snapshot_file(visible_runs.store().folder_of(run), step).stat().st_mtime_ns
        tokens = _continuation(run, step, written, prompt)
    except (XformerError, OSError):  # the run was resumed from an earlier step, which removes later snapshots
        return
    text = "".join(alphabet[token - 1] for token in (*prompt, *tokens) if 1 <= token <= len(alphabet))
    st.caption(f"The continuation at step {step:,} (temperature {TEMPERATURE}, always the same seed):")
    st.code(text, language=None, wrap_lines=True)


@st.cache_data(max_entries=256, show_spinner=False)
def _continuation(run: str, step: int, written: int, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sampled tokens; `written`, the modification time of the file, is part of the cache key."""
    model = load(snapshot_file(visible_runs.store().folder_of(run), step)).model
    draw = torch.Generator().manual_seed(0)
    sampling = Sampling(temperature=TEMPERATURE)
    steps = continue_text(model, prompt, SAMPLE_LENGTH, sampling=sampling, generator=draw)
    return tuple(decoded.token for decoded in steps)
