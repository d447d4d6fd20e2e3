"""Many models on the screen while they are trained: all curves as a fan, where each of them looks, and how they end."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from pages.shared import run_commands, run_store, run_weights, screens
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.frame import picture
from pages.shared.layout import chart_spec, what_to_notice
from pages.shared.picture import csv, menu
from pages.shared.script import script
from pages.shared.session import choose_model
from pages.train.state import share, show_complaint, show_run, start_once, train_state
from pages.train.status import BADGES, button, device_words, run_row
from pages.train.timeline import GOES_ON
from xformer import viz
from xformer.errors import RunStoreError, XformerError
from xformer.formatting import duration
from xformer.tasks import Task
from xformer.training import dispatch
from xformer.training.entry import RESUMABLE, Entry
from xformer.training.stored_sweep import StoredSweep, probe
from xformer.training.sweeps import Member, goal, words
from xformer.viz.training_runs import setting_words

TICK = 0.8
"""Seconds between two looks at a sweep that goes on."""


def sweep_view(entry: Entry, who: str) -> None:
    """Show a sweep. While it goes on, only this part of the page runs again, and only while somebody looks."""
    moves = entry.state in GOES_ON
    st.fragment(run_every=TICK if moves else None, key="train_sweep")(_live)(entry.id, who, moves)


def _live(run: str, who: str, moves: bool) -> None:
    if train_state().run not in (run, None):
        st.rerun()  # another run is to be shown
    try:
        entry = run_store.entry(run)
        sweep = StoredSweep(run_store.store(), run, train_state().rows_of_sweep(run))
    except XformerError as error:
        st.error(escape_markdown(str(error)))
        return
    outcomes = sweep.outcomes()
    with st.container(gap="xsmall", key="run_head"):
        show_complaint()
        sweep_controls(entry, who)
        st.progress(far_along(sweep, entry), text=escape_markdown(sweep_words(sweep, entry, outcomes, who)))
        with st.container(key="run_trouble"):
            if entry.state == "failed":
                st.error(escape_markdown(entry.message or "It failed, and left no word why."), icon=":material/error:")
    with picture(), st.container(gap="xsmall", key="sweep_maps_place"):
        shown_maps = maps(sweep, chosen_member(sweep))
    left, right = st.columns([1, 1], gap="medium")
    with left, picture("fan"), st.container(gap="xsmall"):
        curves = fan(sweep)
    with right, picture("outcome"), st.container(gap="xsmall"):
        shown_outcome = outcome(sweep, outcomes, chosen_member(sweep))
    sweep_files(sweep, outcomes, [*shown_maps, curves, *shown_outcome])
    members_table(sweep, outcomes)
    what_to_notice(sweep_notes(sweep, outcomes))
    if moves != (entry.state in GOES_ON):
        st.rerun()
    share(run, None)


def sweep_controls(entry: Entry, who: str) -> None:
    """The row of buttons of a sweep; whoever may not control it looks on."""
    with run_row(entry):
        if run_store.may_control(entry, who):
            if entry.state in ("queued", "running"):
                button("Stop", "stop", lambda: run_commands.stop(entry.id))
            elif entry.state in RESUMABLE:
                button("Resume", "play_arrow", lambda: run_commands.resume(entry.id), type="primary")
        if not (entry.is_active or entry.state == "queued"):
            ticket = train_state().next_ticket()
            st.button(
                "Train the same again",
                icon=":material/replay:",
                on_click=start_once,
                args=(ticket, lambda: run_commands.again(entry.id, f"{entry.name} again"[:80])),
                disabled=not who,
                key="run_again",
            )


def sweep_files(sweep: StoredSweep, outcomes: pd.DataFrame, drawn: Sequence[Drawn]) -> None:
    """The “⋯” of the pictures."""
    run = sweep.entry.id
    pictures = [
        replace(call, readings=call.readings[:1]).written({id(call.readings[0]): source}) for call, source in drawn
    ]
    lines = [
        "import os, xformer",
        "from xformer.training.run_store import RunStore",
        "from xformer.training.stored_sweep import StoredSweep",
        'runs = os.environ.get("XFORMER_RUNS", "checkpoints/runs")  # where this app keeps what it trains',
        f'sweep = StoredSweep(RunStore(runs), "{run}")',
        "[" + ",\n ".join(pictures) + "]",
    ]
    with menu("sweep"):
        st.code(script(lines), language="python", width=900)
        csv(outcomes, "outcome", run, "Outcome as CSV")
        csv(sweep.rows, "metrics", run, "All curves as CSV")


def members_table(sweep: StoredSweep, outcomes: pd.DataFrame) -> None:
    """Draw it; a ticked row is the model that is opened."""
    judged = ["exact_match", "steps_to_solve"] if sweep.is_judged else []
    shown = outcomes.loc[:, [*sweep.members[0].values, "state", *judged, "loss", "step"]]
    column = st.column_config
    at, beside = st.columns([2.2, 1], gap="medium")
    chosen = chosen_member(sweep)
    key = f"sweep_table_{chosen}"  # a choice that was made elsewhere is another table, else its tick would stay where it was

    def follow() -> None:
        rows = st.session_state[key].selection.rows
        choose_member(sweep.entry.id, rows[0] if rows else None)

    with at:
        st.dataframe(
            shown.rename(columns={name: words(name) for name in sweep.members[0].values}),
            hide_index=True,
            height=min(36 * (len(shown) + 1) + 3, 300),
            row_height=36,
            selection_mode="single-row",
            selection_default={"selection": {"rows": [] if chosen is None else [chosen]}},
            on_select=follow,
            key=key,
            column_config={
                "exact_match": column.ProgressColumn(
                    "exact match",
                    format="percent",
                    min_value=0.0,
                    max_value=1.0,
                    help="As last reported on its held-out inputs; of a finished model, on 2,000 others.",
                ),
                "loss": column.NumberColumn(format="%.3g"),
                "steps_to_solve": column.NumberColumn("solved at step", format="localized"),
                "step": column.NumberColumn(format="localized"),
            },
            placeholder="–",
            alt="The models of this sweep, one per row; choose one to open it.",
        )
    with beside, st.container(key="sweep_open"):
        _open(sweep, outcomes, chosen)


def choose_member(run: str, number: object) -> None:
    """Have this model of a sweep be the one that is opened; None leaves it to the screen."""
    st.session_state["sweep_member"] = (run, number)


def chosen_member(sweep: StoredSweep) -> int | None:
    """Which model of a sweep was clicked, in its map or in the table."""
    run, number = st.session_state.get("sweep_member", ("", None))
    is_one = run == sweep.entry.id and isinstance(number, int) and 0 <= number < len(sweep.members)
    return number if is_one else None


def _open(sweep: StoredSweep, outcomes: pd.DataFrame, row: int | None) -> None:
    """The ways on from a model; without one, from the first that has solved its task."""
    models: list[dict[Any, Any]] = outcomes.to_dict("records")
    if row is None:
        there = [one for one in models if one["run"]]
        if not there:
            st.caption("Each model can be opened on every screen as soon as it has left the stack.")
            return
        model = next((one for one in there if one["solved"] is True), there[0])
        st.caption("Click a map, a cell or a row to open another model.")
    else:
        model = models[row]
    run = model["run"]
    st.text(model["member"])
    steps = run_weights.steps_of(run) if run else []
    if not steps:
        st.caption("It left no weights to look at." if run else "It is still in the stack.")
        return
    with st.container(horizontal=True, gap="xsmall", key="sweep_open_on"):
        for title, page in screens.of_a_model().items():
            if st.button(title, key=f"sweep_open_{title}", type="primary" if title == "Attention" else "secondary"):
                choose_model(f"{run}@{steps[-1]}")
                st.switch_page(page)
        st.button("Its own film", icon=":material/movie:", on_click=show_run, args=(run,), key="sweep_open_film")


def sweep_notes(sweep: StoredSweep, outcomes: pd.DataFrame) -> Iterator[str]:
    """Paragraphs of Markdown; nothing is said of models that nobody knows the end of."""
    known: list[dict[Any, Any]] = [one for one in outcomes.to_dict("records") if one["solved"] in (True, False)]
    solved = sorted((one for one in known if one["solved"]), key=lambda one: one["steps_to_solve"])
    n, share = len(outcomes), f"{100 * goal(sweep.entry):g}% of {sweep.entry.train['held_out']:,} held-out inputs"
    if not sweep.is_judged:
        yield "Nothing is right or wrong in how a text goes on: compare the held-out loss."
    elif not known:
        yield f"A model has solved its task once it gets {share} right; none has come so far, or to its end."
    else:
        rest = f", {n - len(known)} are not decided" if n > len(known) else ""
        yield f"**{len(solved)} of {n} models** got {share} right{rest}."
    if solved and solved[0]["steps_to_solve"] < solved[-1]["steps_to_solve"]:
        first, last = solved[0]["steps_to_solve"], solved[-1]["steps_to_solve"]
        yield (
            f"The first was **{escape_markdown(solved[0]['member'])}** at step {first:,.0f}, the last of them "
            f"**{escape_markdown(solved[-1]['member'])}** at step {last:,.0f}: {last / first:.1f} × as many."
        )
    names = list(sweep.members[0].values)
    if names == ["seed"]:
        yield "They differ in nothing but their seed: the dice for the first weights, and for the examples that they are shown."
    for name in names:
        if name != "seed":
            yield from _by_setting(known, name)


def _by_setting(known: Sequence[dict[Any, Any]], name: str) -> Iterator[str]:
    """Where all of one value solved the task, and none of another."""
    groups: dict[float, list[bool]] = defaultdict(list)
    for one in known:
        groups[one[name]].append(one["solved"])
    all_of = [f"{value:g}" for value, solved in groups.items() if len(solved) > 1 and all(solved)]
    none_of = [f"{value:g}" for value, solved in groups.items() if len(solved) > 1 and not any(solved)]
    if all_of and none_of:
        yield f"With a {words(name)} of {', '.join(all_of)} all that are decided solved it, with {', '.join(none_of)} none."


FAN = {"held_out_exact_match": "exact match", "held_out_loss": "loss"}

STEPS = "steps_to_solve"

MEASURES = {"share_solved": "who solved it", STEPS: "in how many steps"}

HEIGHT = 250

MOST_WRITTEN = 16
"""Up to so many columns, the cells of the outcome say their numbers."""

RECENT = 3
"""So many steps back, a browser may be behind while it goes on."""

Drawn = tuple[Call, str]
"""A call of the library, and the code for what it is drawn from."""


def fan(sweep: StoredSweep) -> Drawn:
    """All curves; what comes back is how they are drawn again."""
    metrics = dict(list(FAN.items())[0 if sweep.is_judged else 1 :])
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="fan_row"):
        st.markdown(
            "**All curves**",
            width="stretch",
            help="The thick line is the median of all models, half of them are in the dark band.",
        )
        metric = st.segmented_control(
            "Curve", list(metrics), default=next(iter(metrics)), required=True, format_func=metrics.__getitem__,
            key="sweep_metric", persist_state="session", label_visibility="collapsed",
        )  # fmt: skip
    steps = max(member.preset.train.steps for member in sweep.members)
    log = metric != "held_out_exact_match"
    rows = sweep.rows()
    call = Call(viz.training_fan, (rows,), {"metric": metric, "steps": steps, "log": log, "height": HEIGHT})
    live_chart(call, (sweep.entry.id, len(rows), *_ends(sweep)), "sweep_fan")
    return call, "sweep.rows()"


def maps(sweep: StoredSweep, chosen: int | None) -> list[Drawn]:
    """The maps of a step; nothing but a sentence before there are any."""
    task = Task(sweep.members[0].preset.task)
    source = task.vocabulary.text(list(probe(sweep.members).source))
    steps = sweep.map_steps()
    with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="maps_row"):
        st.markdown(
            "**Where each of them looks**",
            width="content",
            help=f"Above each map: {' · '.join(map(words, sweep.members[0].values))}. Of each model the head that does most of "
            f"what the task needs, on the input {escape_markdown(source)}. Rows are queries, columns keys. A check mark is a "
            "model that has solved its task.",
        )
        step = _ask_step(sweep, steps)
    try:
        found, names, solved = sweep.maps(step)
    except RunStoreError:
        st.info("The first maps come when it starts.", icon=":material/hourglass_top:")
        return []
    call = Call(viz.map_grid, (found, names, solved), {"chosen": chosen})
    with st.container(key="wide_sweep_maps"):
        live_chart(
            call, (sweep.entry.id, step or steps[-1], *solved), "sweep_maps", legend=False, on_select=_follow_map(sweep)
        )
    return [(call, f"*sweep.maps({step or steps[-1]})")]


def _follow_map(sweep: StoredSweep) -> Callable[[], None]:
    """What a click on a map does: it chooses the model."""

    def follow() -> None:
        clicked = st.session_state["sweep_maps"].selection.get("member")
        if clicked:
            choose_member(sweep.entry.id, clicked[0].get("member"))

    return follow


def _follow_outcome(sweep: StoredSweep, axes: list[str]) -> Callable[[], None]:
    """What a click on a cell of the outcome does: it chooses the model that has these settings."""

    def follow() -> None:
        for cell in st.session_state["sweep_outcome"].selection.get("cell", []):
            said = [cell.get(side) for side in ("column", "row")[: len(axes)]]
            for member in sweep.members:
                if [setting_words(member.values[axis]) for axis in axes] == said:
                    choose_member(sweep.entry.id, member.number)

    return follow


def outcome(sweep: StoredSweep, outcomes: pd.DataFrame, chosen: int | None) -> list[Drawn]:
    """Which settings solved the task, as a map."""
    if not sweep.is_judged:
        return []
    names = list(sweep.members[0].values)
    of_seeds = names == ["seed"]  # a share of one model says little
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="outcome_row"):
        st.markdown("**Solved after how many steps**" if of_seeds else "**Outcome**", width="stretch")
        measure = STEPS if of_seeds else st.segmented_control(
            "Outcome", list(MEASURES), default="share_solved", required=True, format_func=MEASURES.__getitem__,
            key="sweep_measure", persist_state="session", label_visibility="collapsed",
        )  # fmt: skip
    axes = {"x": names[-1], "x_title": words(names[-1])}
    if len(names) == 2:
        axes |= {"y": names[0], "y_title": words(names[0])}
    call = Call(viz.sweep_outcome, (outcomes,), {**axes, "measure": measure, "chosen": chosen})
    state = (sweep.entry.id, repr(outcomes[["solved", "steps_to_solve"]].to_numpy().tolist()))
    with st.container(key="wide_sweep_outcome"):
        many = len({*outcomes[names[-1]].tolist()}) > MOST_WRITTEN
        live_chart(call, state, "sweep_outcome", legend=many, on_select=_follow_outcome(sweep, names[::-1]))
    return [(call, "sweep.outcomes()")]


def _ask_step(sweep: StoredSweep, steps: list[int]) -> int | None:
    """The step whose maps are shown; None follows the latest."""
    if len(steps) < 2:
        return None
    key = f"sweep_step_{sweep.entry.id}"
    before = st.session_state.get(key)
    followed = st.session_state.get(f"{key}_followed", ())
    # It goes along while nobody has moved it. A browser that asks again before it knows the newest step says an earlier one,
    # and has not moved it.
    if before not in steps or before in (*followed, steps[-1]):
        followed = (*followed[-RECENT:], steps[-1]) if sweep.entry.state in GOES_ON else (steps[-1],)
        st.session_state[key], st.session_state[f"{key}_followed"] = steps[-1], followed
    return st.select_slider(
        "Step", steps, key=key, persist_state="session", format_func="step {:,}".format, label_visibility="collapsed"
    )


def _ends(sweep: StoredSweep) -> tuple[int, ...]:
    """How far the curves go: with as many rows, other ones only where a model goes on from an earlier step."""
    return tuple(rows[-1]["step"] if rows else 0 for rows in sweep.rows_of.values())


def far_along(sweep: StoredSweep, entry: Entry) -> float:
    """How far the bar stands: of the steps of all models, those that are done or will not be made."""
    if entry.state == "finished":
        return 1.0
    done = sum(_steps(sweep, member) / member.preset.train.steps for member in sweep.members)
    return min(1.0, done / len(sweep.members))


def sweep_words(sweep: StoredSweep, entry: Entry, outcomes: pd.DataFrame, who: str) -> str:
    """Where it stands, in one plain sentence or two."""
    words = _where(sweep, entry, outcomes)
    if entry.message and entry.state != "failed":
        words += f" {entry.message}"
    elif entry.state == "stopped" and "stopped" in outcomes["state"].tolist():
        words += " Resume goes on with all that were stopped; each of them can also be resumed by itself."
    if entry.private and not run_store.is_open():
        words += " Only you see it, until you share it on the Runs screen."
    if not run_store.may_control(entry, who):
        words += " It was started by someone else: you are looking on."
    return words


def _where(sweep: StoredSweep, entry: Entry, outcomes: pd.DataFrame) -> str:
    n = len(sweep.members)
    steps = max(member.preset.train.steps for member in sweep.members)
    far = f"step {entry.step:,} of {steps:,}"
    if entry.state == "queued":
        place = dispatch.place(entry.id, run_store.store().entries(), dispatch.devices())
        ahead = "it is next" if place == 0 else f"{place} {'run comes' if place == 1 else 'runs come'} before it"
        return f"{n} models are waiting for their turn: {ahead}."
    going = n - len(sweep.runs)
    if entry.state == "running":
        if entry.pid is None:
            return f"Starting the process of {n} models; that takes a few seconds."
        left = "" if going == n else f", {n - going} have left the stack"
        return f"Training {going} of {n} models together on {device_words(entry)}: {far}{left}.{at_most(sweep, entry)}"
    if entry.state == "finished":
        return f"Finished: {n} models, {duration(entry.seconds)} of training in all on {device_words(entry)}."
    return f"{BADGES[entry.state][0].capitalize()} at {far}; {_of(outcomes, n)}."


def at_most(sweep: StoredSweep, entry: Entry) -> str:
    """How long the rest takes at the pace of now; less where models reach their goal before. Nothing before a pace is known."""
    rate = entry.live.get("steps_per_second") or 0.0
    left = sum(member.preset.train.steps - _steps(sweep, member) for member in sweep.members)
    return f" At this pace, about {duration(left / rate)} left at most." if rate > 0 and left > 0 else ""


def _of(outcomes: pd.DataFrame, n: int) -> str:
    over = outcomes["state"].tolist().count("finished")
    return f"{over} of {n} models had come to their end"


def _steps(sweep: StoredSweep, member: Member) -> int:
    """The steps of a model that are behind it, all of them once it has left."""
    run = sweep.runs.get(member.id)
    if run is not None and run.state in ("finished", "failed"):
        return member.preset.train.steps
    rows = sweep.rows_of[member.id]
    return rows[-1]["step"] if rows else 0


def live_chart(
    call: Call, state: tuple, key: str, *, legend: bool = True, on_select: Callable[[], None] | None = None
) -> None:
    """Show a call that draws a chart of Altair; it is drawn anew only where its `state`, plain values, is another one.

    `on_select` is called when something in it was clicked; `st.session_state[key]` then says what.
    """
    spec = dict(chart_spec((call.name, *state, repr(call.arguments), key), call.make))
    found = spec.pop("datasets", {})
    text = json.dumps(spec if legend else _without_legends(spec))
    for number, name in enumerate(found):
        text = text.replace(f'"{name}"', f'"table_{number}"')
    spec = json.loads(text)
    spec["datasets"] = {f"table_{number}": pd.DataFrame(rows) for number, rows in enumerate(found.values())}
    width = "stretch"
    if isinstance(spec.get("width"), int | float):  # of its own size, its legend beside
        width, spec["autosize"] = "content", {"type": "pad"}
    st.vega_lite_chart(spec=spec, theme="streamlit", width=width, key=key, on_select=on_select or "ignore")


def _without_legends(spec: Any) -> Any:
    """The same chart where the numbers stand in it, or beside it."""
    if isinstance(spec, list):
        return [_without_legends(one) for one in spec]
    if not isinstance(spec, dict):
        return spec
    return {name: None if name == "legend" else _without_legends(of) for name, of in spec.items()}
