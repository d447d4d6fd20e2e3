"""The training of another program recorded by `AttentionHealth`: attention over the steps, loss, measures and alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from pages.components.elements import resting, training_player
from pages.compute import models, visible_runs
from pages.compute.byte_cache import shared
from pages.compute.call import picture_call
from pages.controls.embed import picture
from pages.controls.text import escape_markdown
from pages.state.session import open_on
from pages.train.status import (
    ACTIVE,
    controls,
    go_to,
    heading,
    live_chart,
    new_run,
    player_key,
    player_target,
    rows_so_far,
    share,
    show_problem,
    status_sentence,
    train_state,
)
from xformer import viz
from xformer.analysis.attention_health import HEAD_MEASURES
from xformer.analysis.training_runs import thinned
from xformer.errors import CheckpointError
from xformer.integrations.health_alarms import Alarm
from xformer.integrations.health_record import HealthRecord
from xformer.layer_path import layer_title
from xformer.training.run_record import RunRecord
from xformer.viz.attention_health import health_map, health_timeline
from xformer.viz.training_curves import metrics_frame

TICK = 2.0
"""Seconds between two updates of an ongoing training."""
MAX_BYTES = 1_200_000
"""Maximum bytes of patterns sent to the browser."""


def health_view(entry: RunRecord, visitor: str) -> None:
    """Show a recorded training, in a fragment that updates while the training is active."""
    moves = entry.state in ACTIVE
    st.fragment(run_every=TICK if moves else None, key="train_health")(_live)(entry.id, visitor, moves)


def _live(run: str, visitor: str, moves: bool) -> None:
    entry = visible_runs.entry(run)
    if train_state().run not in (run, None) or moves != (entry.state in ACTIVE):
        st.rerun()
    heading(entry)
    show_problem()
    without_alarms = entry.but(message="")  # they are listed below
    st.caption(escape_markdown(status_sentence(without_alarms, entry.settings(), visitor)))
    with st.container(horizontal=True, key="health_row"):
        controls(entry, visitor)
        new_run()
        _open(run)
    rows = rows_so_far(entry)
    try:
        record = _record(entry, len(rows))
    except CheckpointError as error:
        st.error(escape_markdown(str(error)), icon=":material/broken_image:")
        return
    for _, problem in record.problems[:6]:
        st.warning(escape_markdown(problem), icon=":material/warning:")
    if not record.steps:
        st.info("The first picture appears with the first probe.", icon=":material/hourglass_top:")
        return
    st.markdown(_headline(record.alarms))
    with picture(), st.container(key="film_place"):
        training_player(_timeline(entry, record, rows, live=moves), key=player_key(run))
    _alarms(run, record.alarms)
    frame = metrics_frame(rows)
    st.markdown("**Loss** :small[of training, and of the probe’s next tokens]")
    steps, at = entry.train.get("steps", 1), resting(player_key(run)).step
    call = picture_call(viz.metric_curves, frame, what="loss", steps=steps, shown=at, height=230)
    live_chart(call, (run, len(frame)), "chart_loss")
    _measure(run, record)
    share(run, resting(player_key(run)).step)


def _measure(run: str, record: HealthRecord) -> None:
    """Draw a measure of each head at each probe."""
    measures, help = list(HEAD_MEASURES), "Its value for each head at each probe."
    measure, table = st.selectbox("Measure", measures, index=3, key="health_measure", help=help), record.table()
    if table[measure].notna().to_numpy().any():
        call = picture_call(health_map, table, measure=measure)
        live_chart(call, (run, len(table), measure), f"health_{measure}")
    else:
        st.caption("This measure was not recorded for this model.")


def _open(run: str) -> None:
    """Draw links to the screens that run the model, if its weights were kept."""
    shown, steps = resting(player_key(run)).step, visible_runs.steps_of(run)
    if steps:
        with st.popover("More", key="health_more"):
            step = max((saved for saved in steps if shown is None or saved <= shown), default=steps[0])
            if reason := models.usable(f"{run}@{step}"):
                st.caption(escape_markdown(reason))
            else:
                open_on(run, step, key="open")


def _record(entry: RunRecord, n_rows: int) -> HealthRecord:
    """Return the record of a run, reading it again when rows were added."""
    known = shared.get(("health", entry.id), tuple)
    if known and known[0] == n_rows:
        return known[1]
    record = HealthRecord.load(visible_runs.store().folder_of(entry.id))
    shared.put(("health", entry.id), (n_rows, record))
    return record


def _timeline(entry: RunRecord, record: HealthRecord, rows: Sequence[Mapping[str, Any]], *, live: bool) -> bytes:
    steps = record.steps
    size = sum(codes.size for codes in record.planes(steps[-1]).values())
    chosen = thinned(steps, max(2, MAX_BYTES // max(1, size)))
    marks = {alarm.step: alarm.rule.replace("_", " ") for alarm in reversed(record.alarms)}
    planes = {step: record.planes(step) for step in chosen}
    scores = {row["step"]: row.get("scores", {}) for row in rows}
    draw = partial(health_timeline, record.tokens, planes, scores=scores, target_tokens=record.target, live=live)
    return draw(steps=entry.train.get("steps", 1), marks=sorted(marks.items()), target=player_target(entry.id))


def _headline(alarms: Sequence[Alarm]) -> str:
    """Return the number of alarms and the first one in one line. All of them are marked in the picture and listed below it."""
    if not alarms:
        return "No alarm so far."
    n = "One alarm:" if len(alarms) == 1 else f"{len(alarms)} alarms, the first:"
    return f"{n} **{alarms[0].rule.replace('_', ' ')}** at step {alarms[0].frame:,}."


def _alarms(run: str, alarms: Sequence[Alarm]) -> None:
    """Draw the alarms, each with a button that moves the player to its step."""
    for number, alarm in enumerate(alarms[:12]):
        with st.container(key=f"health_alarm_{number}"):
            button, beside = st.columns([1, 7], vertical_alignment="center")
            button.button(f"Step {alarm.frame:,}", on_click=go_to, args=(run, alarm.frame), key=f"health_go_{number}")
            place = escape_markdown(_place(alarm))
            beside.markdown(f"**{alarm.rule.replace('_', ' ')}** {place}{escape_markdown(alarm.reason)}")


def _place(alarm: Alarm) -> str:
    """Return the layer and head of an alarm, counted from 1 as on all screens."""
    head = "" if alarm.head is None else f", head {alarm.head + 1}"
    return f"{layer_title(alarm.layer)}{head}: " if alarm.layer else ""
