"""The table of runs: filters, order, sweeps, and which runs are chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import streamlit as st

from pages.shared import run_commands, run_store
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import is_dark
from pages.shared.widgets import typed
from xformer.errors import InputError, XformerError
from xformer.training.entry import DAMAGED, Entry
from xformer.training.tables import differing, overview
from xformer.viz import theme
from xformer.viz.training_curves import dot, run_colour

MAX_DRAWN = 12
"""The number of run colours, and so of runs that are drawn."""
MAX_FIND = 80
FEW = 8
"""Up to so many runs there are no filters."""
BELOW = "↳ "
STATE_HUES: dict[str, theme.Pair] = {
    "queued": ("#5a6376", "#a5afc2"),
    "running": ("#2557d6", "#7e9dfe"),
    "paused": ("#8a6a00", "#f5c33a"),
    "stopped": ("#5a6376", "#a5afc2"),
    "interrupted": ("#a15c00", "#f0b454"),
    "failed": ("#c2410c", "#ff9a5c"),
    "finished": ("#00756f", "#4fd0c0"),
    DAMAGED: ("#c2410c", "#ff9a5c"),
}


@dataclass
class RunsState:
    """The Runs screen's state that is private to a visit; filters and sort order are kept by their widgets."""

    has_begun: bool = False
    """Whether runs were chosen once, by the link or by default."""
    chosen: list[str] = field(default_factory=list)
    generation: int = 0
    """How often runs were chosen outside of the table, which then needs a new key."""
    rows: list[str] = field(default_factory=list)
    """The runs of the table's rows."""
    colours: dict[str, int] = field(default_factory=dict)
    """The colour index of each chosen run."""
    problem: str = ""
    deleted: tuple[str, str] | None = None
    """The id and the name of the run that was deleted last and can be restored."""

    def choose(self, *runs: str) -> None:
        """Choose these runs."""
        self.has_begun, self.chosen = True, list(dict.fromkeys(runs))
        self.generation += 1

    def attempt(self, what: Callable[[], object]) -> bool:
        """Run a command in a callback; False where it is refused, and the screen then shows why."""
        try:
            what()
        except XformerError as error:
            self.problem = str(error)
            return False
        return True

    def colour_slots(self) -> dict[str, int]:
        """The colour index of each chosen run; a run keeps its colour while others come and go."""
        drawn = self.chosen[:MAX_DRAWN]
        kept = {run: slot for run, slot in self.colours.items() if run in drawn}
        free = (slot for slot in range(MAX_DRAWN) if slot not in kept.values())
        self.colours = {run: kept[run] if run in kept else next(free) for run in drawn}
        return self.colours


def runs_state() -> RunsState:
    """The state of this visit."""
    return st.session_state.setdefault("runs_state", RunsState())


def messages() -> None:
    """Show why the last command was refused, and offer to restore a deleted run."""
    state = runs_state()
    with st.container(key="runs_bar"):  # always there: if it appeared, the browser would rebuild everything below
        if state.problem:
            st.warning(escape_markdown(state.problem), icon=":material/warning:")
            state.problem = ""
        if state.deleted:
            run, name = state.deleted
            with st.container(horizontal=True, vertical_alignment="center", gap="small", border=True):
                st.markdown(f":material/delete: Deleted “{escape_markdown(name)}”. It can be restored for an hour.")
                st.button("Undo", icon=":material/undo:", on_click=_undo, args=(run,), key="runs_undo")
                st.button("Dismiss", on_click=_dismiss, type="tertiary", key="runs_dismiss")


def _undo(run: str) -> None:
    state = runs_state()
    if state.attempt(lambda: run_commands.undelete(run)):
        state.choose(*state.chosen, run)
    _dismiss()


def _dismiss() -> None:
    runs_state().deleted = None


def follow_the_link(entries: Sequence[Entry], latest: Mapping[str, Any]) -> None:
    """Choose the runs of the link at the beginning of a visit, else the latest runs with metrics."""
    state = runs_state()
    if state.has_begun:
        return
    link = st.query_params.get("runs")
    if link is None:
        found = [entry.id for entry in entries if entry.id in latest and not entry.sweep_of][:4]
        found = found or [entry.id for entry in entries if entry.sweep is not None][:1]
    else:
        wanted, known = [run for run in link.split(",") if run], {entry.id for entry in entries}
        found = [run for run in wanted if run in known]
        if len(found) < len(wanted):
            words = "The link asks for runs that are not here; they may have been deleted."
            st.warning(words, icon=":material/link_off:")
    state.choose(*found[:MAX_DRAWN])


def find(entries: Sequence[Entry]) -> list[Entry]:
    """Ask for words that runs contain, where there are more than `FEW` runs or the link has words; returns the runs."""
    if "runs_text" not in st.session_state:  # older links filter by state and tag
        words = " ".join(st.query_params.get(name, "") for name in ("find", "state", "tag")).replace(",", " ")
        st.session_state["runs_text"] = words.strip()[:MAX_FIND]
    text = st.session_state["runs_text"]
    if text or sum(not entry.sweep_of for entry in entries) > FEW:
        look: dict[str, Any] = {"label_visibility": "collapsed", "icon": ":material/search:", "width": 260}
        text = st.text_input(
            "Find", key="runs_text", placeholder="name, tag, task, state …", persist_state="session", **look
        )
    try:
        words = typed(text or "", MAX_FIND).lower().split()
    except InputError as error:
        st.warning(escape_markdown(str(error)), icon=":material/search_off:")
        words = []
    return [entry for entry in entries if all(word in _searched(entry) for word in words)]


def _searched(entry: Entry) -> str:
    task = entry.task.get("name", "")
    return f"{entry.name} {' '.join(entry.tags)} {entry.title} {entry.preset} {entry.id} {task} {entry.state}".lower()


def _show_all() -> None:
    """Reset the filter. A callback."""
    st.session_state["runs_text"] = ""


def fold(found: list[Entry], ticked: Sequence[str]) -> list[Entry]:
    """Leave out the models of sweeps that are not ticked, unless words are searched."""
    if st.session_state["runs_text"]:
        return found
    there, chosen = {entry.id for entry in found}, set(ticked)
    opened = chosen | {entry.sweep_of for entry in found if entry.id in chosen}
    return [one for one in found if one.sweep_of not in there or one.sweep_of in opened]


def nothing_found() -> None:
    """Say that no run has the words, and offer to show all."""
    with st.container(border=True, horizontal=True, vertical_alignment="center", key="runs_none"):
        st.markdown("No run matches.", width="stretch")
        st.button("Show all runs", icon=":material/filter_alt_off:", on_click=_show_all, key="runs_show_all")


def _below_their_sweeps(order: Sequence[str], entries: Sequence[Entry]) -> list[str]:
    """An order of runs with the models of each sweep right below it."""
    parent = {one.id: one.sweep_of for one in entries}
    members: dict[str, list[str]] = {run: [] for run in order if not parent[run]}
    rows = []
    for run in order:
        members.get(parent[run], rows).append(run)
    return [run for top in rows for run in (top, *members.get(top, ()))]


def _names_below(entries: Sequence[Entry]) -> dict[str, str]:
    """The names of models in rows below their sweep."""
    sweeps = {one.id: one.name for one in entries}
    return {
        one.id: BELOW + one.name.removeprefix(f"{sweeps[one.sweep_of]} · ") for one in entries if one.sweep_of in sweeps
    }


def lined_up(entries: Sequence[Entry], latest: Mapping[str, Any], settings: pd.DataFrame) -> pd.DataFrame:
    """The overview and the settings of runs, the latest first, the models of each sweep right below it."""
    table = overview(entries, latest)
    settings = settings.drop(columns=["steps"], errors="ignore")  # already in the overview
    equal = [name for name in ("device", "tags") if table.loc[:, name].astype(str).nunique() <= 1]
    table = pd.concat([table.drop(columns=equal), settings], axis=1)
    table["created"] = table.pop("created")
    return table.loc[_below_their_sweeps([entry.id for entry in entries], entries)]


def table(entries: Sequence[Entry], latest: Mapping[str, Any], settings: pd.DataFrame, who: str) -> None:
    """Draw the table; ticked rows are the chosen runs."""
    state = runs_state()
    lines = lined_up(entries, latest, settings)
    below, slots, dark = _names_below(entries), state.colour_slots(), is_dark()
    state.rows = list(lines.index)
    lines["name"] = [below.get(run, name) for run, name in zip(state.rows, lines["name"].tolist(), strict=True)]
    lines.insert(0, "●", [dot(run_colour(slots[run], dark) if run in slots else None) for run in lines.index])
    lines["state"] = [[state] for state in lines["state"]]
    if not run_store.is_open():
        mine = {entry.id: "only you" if entry.private else "you" for entry in entries if who and entry.owner == who}
        lines.insert(2, "owner", [mine.get(run, "others") for run in lines.index])
    # Rows are ticked by their index: another order, or a choice made elsewhere, needs another key.
    stamp = hashlib.sha1(",".join(state.rows).encode()).hexdigest()[:12]
    key = f"runs_table_{state.generation}_{stamp}"
    ticked = [place for place, run in enumerate(lines.index) if run in state.chosen]
    st.dataframe(
        lines,
        hide_index=True,
        height=min(36 * (len(lines) + 1) + 3, 432),
        row_height=36,
        column_config=_columns(lines, dark),
        selection_mode="multi-row",
        selection_default={"selection": {"rows": ticked}},
        on_select=lambda: _tick(key),
        key=key,
        placeholder="–",
        alt="The runs, one per row; tick rows to compare their curves.",
    )


def _columns(lines: pd.DataFrame, dark: bool) -> dict[str, Any]:
    column = st.column_config
    tags = sorted({tag for found in lines["tags"] for tag in found}) if "tags" in lines.columns else []
    hues = [f"{theme.pick(hue, dark)}38" for hue in STATE_HUES.values()]
    scored = "Whole sequences right, of unseen ones: the final score, else the last report."
    return {
        "●": column.ImageColumn("", width=36, pinned=True, help="The colour of its curves below."),
        "name": column.TextColumn(width=170, pinned=True),
        "state": column.MultiselectColumn(width=105, options=list(STATE_HUES), color=hues),
        "step": column.NumberColumn(format="localized", width=70),
        "steps": column.NumberColumn("of", format="localized", width=70),
        "exact_match": column.ProgressColumn(
            "exact match", format="percent", min_value=0.0, max_value=1.0, width=130, help=scored
        ),
        "loss": column.NumberColumn(format="%.3g", width=85, help="The last training loss in nats."),
        "seconds": column.NumberColumn(format="%.1f", width=75, help="Training time."),
        "device": column.TextColumn(width=65),
        "tags": column.MultiselectColumn(width=120, options=tags, color="auto"),
        "created": column.DatetimeColumn(format="distance", width=130),
        "peak_lr": column.NumberColumn(format="%g"),
    }


def _tick(key: str) -> None:
    """Choose the ticked runs; earlier chosen ones keep their order, and so their colours."""
    state, rows = runs_state(), st.session_state[key]["selection"]["rows"]
    ticked = [state.rows[row] for row in rows if row < len(state.rows)]
    kept = [run for run in state.chosen if run in ticked or run not in state.rows]
    state.chosen = [*kept, *[run for run in ticked if run not in kept]]


def settings_that_differ(entries: Sequence[Entry]) -> pd.DataFrame:
    """The settings in which runs differ; cached until a setting changes."""
    known = tuple((entry.id, len(entry.train.get("lr_changes", ()))) for entry in entries)
    return _differing(known, list(entries))


@st.cache_data(max_entries=32, show_spinner=False)
def _differing(known: tuple, _entries: list[Entry]) -> pd.DataFrame:
    return differing(_entries)
