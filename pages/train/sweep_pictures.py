"""The three pictures of a sweep: the fan of all curves, a little map a model, and the outcome as a map of settings."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import streamlit as st

from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.train.live_chart import live_chart
from pages.train.sweep_members import choose_member
from pages.train.timeline import GOES_ON
from xformer import viz
from xformer.errors import RunStoreError
from xformer.tasks import Task
from xformer.training.stored_sweep import StoredSweep
from xformer.training.sweep_maps import probe
from xformer.training.sweep_members import words
from xformer.viz.training_runs import setting_words

FAN = {"held_out_exact_match": "exact match", "held_out_loss": "loss"}
STEPS = "steps to solve"
MEASURES = {"share solved": "who solved it", STEPS: "in how many steps"}
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
            "Outcome", list(MEASURES), default="share solved", required=True, format_func=MEASURES.__getitem__,
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
