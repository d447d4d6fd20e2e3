"""A sweep on the Train screen: the attention, curves and outcomes of all models, and a table that opens each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.compute import visible_runs
from pages.compute.call import PictureCall, picture_call
from pages.compute.picture import csv, figure_files, menu, toolbar
from pages.controls.embed import picture
from pages.controls.text import escape_markdown, headline, what_to_notice
from pages.controls.widgets import choose_unlinked, table_of_rows
from pages.state.link import address
from pages.state.session import open_on
from pages.train.status import (
    ACTIVE,
    BADGES,
    again_button,
    controls,
    device_name,
    heading,
    live_chart,
    new_run,
    queue_position,
    share,
    show_code,
    show_problem,
    show_run,
    train_state,
    visibility_sentence,
)
from xformer import viz
from xformer.errors import RunStoreError, XformerError
from xformer.formatting import duration
from xformer.tasks import Task
from xformer.training.run_record import RunRecord
from xformer.training.stored_sweep import StoredSweep, probe
from xformer.training.sweeps import SweepMember, goal, words

METRICS = {"held_out_exact_match": "exact match", "held_out_loss": "loss"}
MEASURES = {"share_solved": "share solved", "steps_to_solve": "steps to solve"}
HEIGHT = 250
RECENT = 3
"""Number of recent steps that the browser's slider may not have received yet."""
TICK = 0.8
"""Seconds between two updates of an active sweep."""
Drawn = tuple[PictureCall, str]
"""A call and the source code of its first argument."""


def sweep_view(entry: RunRecord, visitor: str) -> None:
    """Show a sweep, in a fragment that updates while the sweep is active."""
    moves = entry.state in ACTIVE
    st.fragment(run_every=TICK if moves else None, key="train_sweep")(_live)(entry.id, visitor, moves)


def _live(run: str, visitor: str, moves: bool) -> None:
    if train_state().run not in (run, None):
        st.rerun()  # the visitor has chosen another run
    try:
        entry = visible_runs.entry(run)
        sweep = StoredSweep(visible_runs.store(), run)
    except XformerError as error:
        st.error(escape_markdown(str(error)))
        return
    outcomes = sweep.outcomes()
    with st.container(gap="xsmall", key="run_head"):
        heading(entry)
        show_problem()
        words = _status(sweep, entry, outcomes) + visibility_sentence(entry, visitor)
        st.progress(_share_done(sweep, entry), text=escape_markdown(words))
        with st.container(key="run_headline"):
            headline(sweep_finding(sweep, outcomes))
    with toolbar():
        st.markdown("**Attention of each model**", width="content", help=_about_maps(sweep))
        step = _ask_step(sweep, sweep.map_steps())
        controls(entry, visitor)
        if not (entry.is_active or entry.state == "queued"):
            again_button(entry, is_possible=bool(visitor))
        new_run()
    with picture(), st.container(gap="xsmall", key="sweep_maps_place"):
        drawn = _maps(sweep, step, _chosen_member(sweep))
    left, right = st.columns([1, 1], gap="medium")
    with left, picture("fan"), st.container(gap="xsmall"):
        drawn += _fan(sweep)
    with right, picture("outcome"), st.container(gap="xsmall"):
        drawn += _outcome(sweep, outcomes, _chosen_member(sweep))
    _files(sweep, outcomes, drawn)
    _members(sweep, outcomes)
    what_to_notice(sweep_notes(sweep, outcomes))
    if moves != (entry.state in ACTIVE):
        st.rerun()
    share(run, None)


def _status(sweep: StoredSweep, entry: RunRecord, outcomes: pd.DataFrame) -> str:
    """Return the status of a sweep in one or two sentences."""
    words = _state(sweep, entry, outcomes)
    if entry.message and entry.state != "failed":
        return f"{words} {entry.message}"
    if entry.state == "stopped" and "stopped" in outcomes["state"].tolist():
        return f"{words} Resume continues all stopped models; each of them can also be resumed on its own."
    return words


def _state(sweep: StoredSweep, entry: RunRecord, outcomes: pd.DataFrame) -> str:
    n = len(sweep.members)
    far = f"step {entry.step:,} of {max(member.preset.train.steps for member in sweep.members):,}"
    if entry.state == "queued":
        return f"{n} models are waiting in the queue: {queue_position(entry)}."
    if entry.state == "running" and entry.pid is None:
        return f"Starting the process of {n} models, which takes a few seconds."
    if entry.state == "running":
        ended = len(sweep.runs)
        left = f", {ended} {'has' if ended == 1 else 'have'} ended" if ended else ""
        together = f"Training {n - ended} of {n} models together on {device_name(entry)}"
        return f"{together}: {far}{left}.{time_left(sweep, entry)}"
    if entry.state == "finished":
        return f"Finished: {n} models, {duration(entry.seconds)} of training in total on {device_name(entry)}."
    over = outcomes["state"].tolist().count("finished")
    return f"{BADGES[entry.state][0].capitalize()} at {far}; {over} of {n} models had finished."


def time_left(sweep: StoredSweep, entry: RunRecord) -> str:
    """Return an upper bound of the remaining time, since models may reach their goal early; "" before the speed is known."""
    rate = entry.live.get("steps_per_second") or 0.0
    left = sum(member.preset.train.steps - _steps(sweep, member) for member in sweep.members)
    return f" At this speed, about {duration(left / rate)} left at most." if rate > 0 and left > 0 else ""


def _share_done(sweep: StoredSweep, entry: RunRecord) -> float:
    """Return the completed share of the steps of all models; an ended model counts as complete."""
    done = sum(_steps(sweep, member) / member.preset.train.steps for member in sweep.members)
    return 1.0 if entry.state == "finished" else min(1.0, done / len(sweep.members))


def _steps(sweep: StoredSweep, member: SweepMember) -> int:
    """Return the completed steps of a model, or all its steps once it has ended."""
    run = sweep.runs.get(member.id)
    if run is not None and run.state in ("finished", "failed"):
        return member.preset.train.steps
    rows = sweep.rows_of[member.id]
    return rows[-1]["step"] if rows else 0


def _fan(sweep: StoredSweep) -> list[Drawn]:
    """Draw the curves of all models."""
    metrics = dict(list(METRICS.items())[0 if sweep.is_judged else 1 :])
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="fan_row"):
        st.markdown("**All curves**", width="stretch", help="The median of all models, and a band with half of them.")
        metric = choose_unlinked("Curve", metrics, "sweep_metric", default=next(iter(metrics)))
    steps = max(member.preset.train.steps for member in sweep.members)
    log, rows = metric != "held_out_exact_match", sweep.rows()
    call = picture_call(viz.training_fan, rows, metric=metric, steps=steps, log=log, height=HEIGHT)
    # A model resumed from an earlier step has different rows, not more of them.
    ends = tuple(rows[-1]["step"] if rows else 0 for rows in sweep.rows_of.values())
    live_chart(call, (sweep.entry.id, len(rows), *ends), "sweep_fan")
    return [(call, "sweep.rows()")]


def _about_maps(sweep: StoredSweep) -> str:
    """Describe the maps, as Markdown."""
    source = Task(sweep.members[0].preset.task).vocabulary.text(list(probe(sweep.members).source))
    return (
        f"Above each map: {' · '.join(map(words, sweep.members[0].values))}. A map shows the head with the best score on the "
        f"input {escape_markdown(source)}; rows are queries, columns are keys. ✓: the model has solved its task."
    )


def _maps(sweep: StoredSweep, step: int | None, chosen: int | None) -> list[Drawn]:
    """Draw the attention maps of all models at a step, or a message if there are none yet."""
    try:
        found, names, solved = sweep.maps(step)
    except RunStoreError:
        st.info("The first maps appear when the sweep starts.", icon=":material/hourglass_top:")
        return []
    call, shown = picture_call(viz.map_grid, found, names, solved, chosen=chosen), step or sweep.map_steps()[-1]

    def follow() -> None:
        if clicked := st.session_state["sweep_maps"].selection.get("member"):
            _choose_member(sweep.entry.id, clicked[0].get("member"))

    with st.container(key="wide_sweep_maps"):
        live_chart(call, (sweep.entry.id, shown, *solved), "sweep_maps", on_select=follow)
    return [(call, f"*sweep.maps({shown})")]


def _ask_step(sweep: StoredSweep, steps: list[int]) -> int | None:
    """Draw the slider for the step whose maps are shown; return None for the latest."""
    if len(steps) < 2:
        return None
    key = f"sweep_step_{sweep.entry.id}"
    before = st.session_state.get(key)
    followed = st.session_state.get(f"{key}_followed", ())
    # The slider follows the latest step until the visitor moves it. A browser that has not received the newest step yet sends
    # an earlier one although the slider was not moved.
    if before not in steps or before in (*followed, steps[-1]):
        followed = (*followed[-RECENT:], steps[-1]) if sweep.entry.state in ACTIVE else (steps[-1],)
        st.session_state[key], st.session_state[f"{key}_followed"] = steps[-1], followed
    ask = partial(st.select_slider, "Step", steps, key=key, persist_state="session")
    return ask(format_func="step {:,}".format, label_visibility="collapsed")


def _outcome(sweep: StoredSweep, outcomes: pd.DataFrame, chosen: int | None) -> list[Drawn]:
    """Draw the outcome for each setting."""
    if not sweep.is_judged:
        return []
    names = list(sweep.members[0].values)
    is_of_seeds = names == ["seed"]  # one model per value, so a share solved would be meaningless
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="outcome_row"):
        st.markdown("**Steps to solve**" if is_of_seeds else "**Outcome**", width="stretch")
        measure = "steps_to_solve"
        if not is_of_seeds:
            measure = choose_unlinked("Outcome", MEASURES, "sweep_measure", default="share_solved")
    axes = {"x": names[-1], "x_title": words(names[-1])}
    if len(names) == 2:
        axes |= {"y": names[0], "y_title": words(names[0])}
    call = picture_call(viz.sweep_outcome, outcomes, **axes, measure=measure, chosen=chosen)
    state = (sweep.entry.id, repr(outcomes[["solved", "steps_to_solve"]].to_numpy().tolist()))
    with st.container(key="wide_sweep_outcome"):
        live_chart(call, state, "sweep_outcome", on_select=partial(_follow_outcome, sweep))
    return [(call, "sweep.outcomes()")]


def _follow_outcome(sweep: StoredSweep) -> None:
    """Select the model with the settings of the clicked cell."""
    for cell in st.session_state["sweep_outcome"].selection.get("cell", []):
        for member in sweep.members:
            if all(cell.get(name) == value for name, value in member.values.items()):
                _choose_member(sweep.entry.id, member.number)


def _files(sweep: StoredSweep, outcomes: pd.DataFrame, drawn: Sequence[Drawn]) -> None:
    """Draw the menu with the code of the pictures and their numbers."""
    run = sweep.entry.id
    first = [(replace(call, readings=call.readings[:1]), source) for call, source in drawn]
    pictures = [call.written({id(call.readings[0]): source}) for call, source in first]
    lines = [f'sweep = StoredSweep(RunStore(runs), "{run}")']
    with menu("sweep"):
        show_code("from xformer.training.stored_sweep import StoredSweep", lines, pictures)
        csv(outcomes, "outcome", run, "Outcome as CSV")
        csv(sweep.rows, "metrics", run, "All curves as CSV")
        charts = [call for call, _ in drawn]
        figure_files(lambda: [call.make() for call in charts], address(), "sweep", run)


def _members(sweep: StoredSweep, outcomes: pd.DataFrame) -> None:
    """Draw the table of the models, and links from the chosen one to other screens."""
    judged = ["exact_match", "steps_to_solve"] if sweep.is_judged else []
    settings = list(sweep.members[0].values)
    shown = outcomes.loc[:, [*settings, "state", *judged, "loss", "step"]]
    column = st.column_config
    at, beside = st.columns([2.2, 1], gap="medium")
    chosen = _chosen_member(sweep)
    key = f"sweep_table_{chosen}"  # a new table for each choice, or the previous row would stay ticked

    def follow() -> None:
        rows = st.session_state[key].selection.rows
        _choose_member(sweep.entry.id, rows[0] if rows else None)

    about = "The last report on held-out inputs; for a finished model, the score on 2,000 other inputs."
    columns = {
        "exact_match": column.ProgressColumn("exact match", format="percent", min_value=0.0, max_value=1.0, help=about),
        "loss": column.NumberColumn(format="%.3g"),
        "steps_to_solve": column.NumberColumn("solved at step", format="localized"),
        "step": column.NumberColumn(format="localized"),
    }
    lines = shown.rename(columns={name: words(name) for name in settings})
    alt = "The models of this sweep, one per row; choose one to open it."
    with at:
        table_of_rows(lines, columns, key, 300, alt, "single-row", [] if chosen is None else [chosen], follow)
    with beside, st.container(key="sweep_open"):
        _open(outcomes, chosen)


def _choose_member(run: str, number: object) -> None:
    """Select a model of a sweep; None restores the default."""
    st.session_state["sweep_member"] = (run, number)


def _chosen_member(sweep: StoredSweep) -> int | None:
    """Return the number of the model that was clicked in a picture or in the table, if any."""
    run, number = st.session_state.get("sweep_member", ("", None))
    is_known = run == sweep.entry.id and isinstance(number, int) and 0 <= number < len(sweep.members)
    return number if is_known else None


def _open(outcomes: pd.DataFrame, row: int | None) -> None:
    """Draw buttons that open a model on other screens: the chosen one, else the first that has solved its task."""
    models: list[dict[Any, Any]] = outcomes.to_dict("records")
    ended = sorted((one for one in models if one["run"]), key=lambda one: one["solved"] is not True)
    if row is None and not ended:
        st.caption("Each model can be opened on every screen once its training has ended.")
        return
    if row is None:
        st.caption("Click a map, a cell or a row to select another model.")
    model = ended[0] if row is None else models[row]
    run = model["run"]
    st.text(model["member"])
    if not (steps := visible_runs.steps_of(run) if run else []):
        st.caption("It has no weights." if run else "It is still being trained.")
        return
    st.button("Its own timeline", icon=":material/movie:", on_click=show_run, args=(run,), key="sweep_open_film")
    with st.popover("Open on", icon=":material/open_in_new:", key="sweep_open_on"), st.container(gap=None):
        open_on(run, steps[-1], key="sweep_open_at")


def sweep_finding(sweep: StoredSweep, outcomes: pd.DataFrame) -> str:
    """Describe how many models solved their task; "" before any is decided, or if answers are not right or wrong."""
    solved = [value for value in outcomes["solved"].tolist() if value in (True, False)]
    if not (sweep.is_judged and solved):
        return ""
    n, n_known = len(outcomes), len(solved)
    rest = f", {n - n_known} are not decided" if n > n_known else ""
    return f"**{sum(solved)} of {n} models** got {_goal(sweep)} right{rest}."


def _goal(sweep: StoredSweep) -> str:
    return f"{100 * goal(sweep.entry):g}% of {sweep.entry.train['held_out']:,} held-out inputs"


def sweep_notes(sweep: StoredSweep, outcomes: pd.DataFrame) -> Iterator[str]:
    """Yield notes on a sweep, as Markdown; they leave out models that are not decided yet."""
    known: list[dict[Any, Any]] = [one for one in outcomes.to_dict("records") if one["solved"] in (True, False)]
    solved = sorted((one for one in known if one["solved"]), key=lambda one: one["steps_to_solve"])
    if not sweep.is_judged:
        yield "A continuation is neither right nor wrong: compare the held-out loss."
    elif not known:
        yield f"A model has solved its task once it gets {_goal(sweep)} right; none has done so or ended yet."
    if solved and solved[0]["steps_to_solve"] < solved[-1]["steps_to_solve"]:
        first, last = solved[0]["steps_to_solve"], solved[-1]["steps_to_solve"]
        yield (
            f"The first to solve it was **{escape_markdown(solved[0]['member'])}** at step {first:,.0f}, the last "
            f"**{escape_markdown(solved[-1]['member'])}** at step {last:,.0f}: {last / first:.1f} × as many steps."
        )
    names = list(sweep.members[0].values)
    if names == ["seed"]:
        yield "The models differ only in their seed, which determines the initial weights and the training examples."
    for name in names:
        if name != "seed":
            yield from _by_setting(known, name)


def _by_setting(known: Sequence[dict[Any, Any]], name: str) -> Iterator[str]:
    """Yield a note if all models with one value solved the task, and none with another."""
    groups: dict[float, list[bool]] = defaultdict(list)
    for outcome in known:
        groups[outcome[name]].append(outcome["solved"])
    several = {f"{value:g}": sum(solved) / len(solved) for value, solved in groups.items() if len(solved) > 1}
    all_of, none_of = (", ".join(value for value, share in several.items() if share == wanted) for wanted in (1, 0))
    if all_of and none_of:
        yield f"With a {words(name)} of {all_of}, all decided models solved the task; with {none_of}, none did."
