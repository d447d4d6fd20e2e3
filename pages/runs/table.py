"""The table of runs: filters, order, sweeps, and which runs are chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import streamlit as st

from pages.shared import run_commands, run_store
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import is_dark
from pages.shared.widgets import not_here, seed, typed
from xformer.errors import InputError, XformerError
from xformer.training.entry import DAMAGED, MOVES, Entry
from xformer.training.tables import differing, overview
from xformer.viz import theme
from xformer.viz.training_curves import dot, run_colour

MAX_DRAWN = 12
"""The number of run colours, and so of runs that are drawn."""
ALWAYS = ("created", "name", "state", "step", "steps", "exact_match", "loss", "seconds")
"""The columns of every table of runs."""
MAX_FIND = 80
FEW = 8
"""Up to so many runs there are no filters."""
ORDERS = {"up": ":material/arrow_upward:", "down": ":material/arrow_downward:"}
FILTERS = ("find", "state", "tag")
"""The parameters of the link that filter runs."""
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
    to_select: str | None = None
    """The chosen run that is selected in the next drawing."""
    generation: int = 0
    """How often runs were chosen outside of the table, which then needs a new key."""
    rows: list[str] = field(default_factory=list)
    """The runs of the table's rows."""
    colours: dict[str, int] = field(default_factory=dict)
    """The colour index of each chosen run."""
    problem: str = ""
    deleted: tuple[str, str] | None = None
    """The id and the name of the run that was deleted last and can be restored."""

    def choose(self, *runs: str, select: str | None = None) -> None:
        """Choose these runs and select one, the last by default."""
        self.has_begun, self.chosen = True, list(dict.fromkeys(runs))
        self.to_select = select or (runs[-1] if runs else None)
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
    state.choose(*found[:MAX_DRAWN], select=found[0] if found else None)


@dataclass(frozen=True)
class Filtered:
    """The runs that match the filters, and their order."""

    entries: list[Entry]
    by: str
    descending: bool
    link: dict[str, str]
    """The same as parameters of the link."""


def filters(entries: Sequence[Entry], columns: Sequence[str], *, has_order: bool) -> Filtered:
    """Ask for filters, and for the order of a table, where there are more than `FEW` runs or the link has a filter."""
    states = [state for state in (*MOVES, DAMAGED) if any(entry.state == state for entry in entries)]
    tags = sorted({tag for entry in entries for tag in entry.tags})
    _begin_with_the_link(states, tags, columns)
    session = st.session_state
    n_shown = sum(not entry.sweep_of for entry in entries)
    if n_shown > FEW or session["runs_text"] or session["runs_states"] or session["runs_tags"]:
        look: dict[str, Any] = {"persist_state": "session"}
        find: dict[str, Any] = {"placeholder": "name, tag, task …", "icon": ":material/search:", "width": 200}
        st.text_input("Find", key="runs_text", label_visibility="collapsed", **find, **look)
        with st.popover("Filter", icon=":material/filter_list:"):
            st.multiselect("State", states, key="runs_states", placeholder="any state", **look)
            st.multiselect("Tag", tags, key="runs_tags", placeholder="any tag", disabled=not tags, **look)
            if has_order:
                names = str.maketrans("_", " ")
                st.selectbox("Sort by", columns, format_func=lambda one: one.translate(names), key="runs_sort", **look)
                st.segmented_control(
                    "Order", list(ORDERS), format_func=ORDERS.get, key="runs_order", required=True, **look
                )
    text, of_state, of_tags, by, order = (
        session[f"runs_{name}"] for name in ("text", "states", "tags", "sort", "order")
    )
    try:
        words = typed(text, MAX_FIND).lower().split()
    except InputError as error:
        st.warning(escape_markdown(str(error)), icon=":material/search_off:")
        words = []
    found = [
        entry
        for entry in entries
        if (not of_state or entry.state in of_state)
        and set(of_tags) <= set(entry.tags)
        and all(word in _searched(entry) for word in words)
    ]
    filtered = {"state": ",".join(of_state), "tag": ",".join(of_tags), "find": text[:MAX_FIND]}
    link = {"sort": by, "order": order} | {name: value for name, value in filtered.items() if value}
    return Filtered(found, by, order == "down", link)


def _begin_with_the_link(states: Sequence[str], tags: Sequence[str], columns: Sequence[str]) -> None:
    for key, name, there in (("runs_states", "state", states), ("runs_tags", "tag", tags)):
        if key not in st.session_state:
            wanted = [word for word in st.query_params.get(name, "").split(",") if word]
            st.session_state[key] = wanted
            if set(wanted) - set(there):
                not_here(name, there)
        st.session_state[key] = [word for word in st.session_state[key] if word in there]
    st.session_state.setdefault("runs_text", st.query_params.get("find", "")[:MAX_FIND])
    if "runs_sort" not in st.session_state:
        st.session_state["runs_order"] = "up" if st.query_params.get("order") == "up" else "down"
    old = {"exact match": "exact_match"}
    seed("sort", columns, ALWAYS[0], key="runs_sort", called="column to sort by", old=old)


def _searched(entry: Entry) -> str:
    task = entry.task.get("name", "")
    return f"{entry.name} {' '.join(entry.tags)} {entry.title} {entry.preset} {entry.id} {task} {entry.state}".lower()


def _show_all() -> None:
    """Reset the filters. A callback."""
    st.session_state["runs_text"] = ""
    st.session_state["runs_states"] = st.session_state["runs_tags"] = []


def fold(shown: Filtered, ticked: Sequence[str]) -> Filtered:
    """Leave out the models of sweeps that are not ticked, unless a filter is set."""
    if not shown.link.keys().isdisjoint(FILTERS):
        return shown
    there, chosen = {entry.id for entry in shown.entries}, set(ticked)
    opened = chosen | {entry.sweep_of for entry in shown.entries if entry.id in chosen}
    kept = [one for one in shown.entries if one.sweep_of not in there or one.sweep_of in opened]
    return replace(shown, entries=kept)


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


def lined_up(
    entries: Sequence[Entry], latest: Mapping[str, Any], settings: pd.DataFrame, by: str, descending: bool
) -> pd.DataFrame:
    """The overview and the settings of runs, sorted by a column; missing values come last."""
    table = overview(entries, latest)
    settings = settings.drop(columns=["steps"], errors="ignore")  # already in the overview
    equal = [name for name in ("device", "tags") if table.loc[:, name].astype(str).nunique() <= 1 and by != name]
    table = pd.concat([table.drop(columns=equal), settings], axis=1)
    table["created"] = table.pop("created")
    column = table.loc[:, by if by in table.columns else ALWAYS[0]]
    if not pd.api.types.is_numeric_dtype(column) and column.name != "created":
        column = column.astype("string").str.lower()
    return table.loc[column.sort_values(ascending=not descending, kind="stable", na_position="last").index]


def table(shown: Filtered, latest: Mapping[str, Any], settings: pd.DataFrame, who: str) -> None:
    """Draw the table; ticked rows are the chosen runs."""
    state, entries = runs_state(), shown.entries
    if not entries:
        state.rows = []
        with st.container(border=True, horizontal=True, vertical_alignment="center", key="runs_none"):
            st.markdown("No run matches.", width="stretch")
            st.button("Show all runs", icon=":material/filter_alt_off:", on_click=_show_all, key="runs_show_all")
        return
    lines = lined_up(entries, latest, settings, shown.by, shown.descending)
    lines = lines.loc[_below_their_sweeps(list(lines.index), entries)]
    below, slots, dark = _names_below(entries), state.colour_slots(), is_dark()
    lines["name"] = [below.get(run, name) for run, name in lines["name"].items()]
    state.rows = list(lines.index)
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
