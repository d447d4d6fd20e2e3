"""The table of runs: filtered, sorted, with the settings that differ; the rows that are ticked are the chosen runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from pages.shared import run_store
from pages.shared.ask import not_here, seed
from pages.shared.layout import is_dark
from pages.shared.literal import literal
from pages.shared.typed import typed
from xformer.errors import InputError
from xformer.training.overview import differing, overview
from xformer.training.repair import DAMAGED
from xformer.training.run_store import MOVES, Entry
from xformer.viz import theme
from xformer.viz.runs import dot, run_colour

CHOSEN, ROWS, GENERATION = "runs_chosen", "runs_rows", "runs_generation"
"""The chosen ids; the ids of the table's rows as they stand on the screen; how often the choice was made elsewhere."""
MOST = 12
"""As many runs as there are colours."""
ALWAYS = ("created", "name", "state", "step", "steps", "exact match", "loss", "seconds")
MOST_FIND = 80
UP, DOWN = ":material/arrow_upward:", ":material/arrow_downward:"
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


def choose(*runs: str) -> None:
    """Have the table choose these runs, from outside of it; the last of them is the one in the hand."""
    st.session_state[CHOSEN] = list(dict.fromkeys(runs))
    st.session_state["runs_one"] = runs[-1] if runs else None
    st.session_state[GENERATION] = st.session_state.get(GENERATION, 0) + 1


def follow_the_link(entries: Sequence[Entry], latest: Mapping[str, Any]) -> None:
    """The first choice of a session: what the link asks for, or the latest runs that there is something to see of."""
    if CHOSEN in st.session_state:
        return
    st.session_state.setdefault("runs_text", st.query_params.get("find", "")[:MOST_FIND])
    asked = st.query_params.get("runs")
    if asked is None:
        found = [entry.id for entry in entries if entry.id in latest][:4]
        choose(*found)
        st.session_state["runs_one"] = found[0] if found else None
        return
    known = {entry.id for entry in entries}
    found = [run for run in asked.split(",") if run in known]
    if len(found) < len([run for run in asked.split(",") if run]):
        st.warning("The link asks for runs that are not here; they may have been deleted.", icon=":material/link_off:")
    choose(*found[:MOST])
    st.session_state["runs_one"] = found[0] if found else None


def filters(entries: Sequence[Entry], columns: Sequence[str]) -> tuple[list[Entry], str, bool]:
    """The entries that match what is asked for, by which column they are sorted, and whether the largest comes first."""
    states = [state for state in (*MOVES, DAMAGED) if any(entry.state == state for entry in entries)]
    tags = sorted({tag for entry in entries for tag in entry.tags})
    for key, name, there in (("runs_states", "state", states), ("runs_tags", "tag", tags)):
        if key not in st.session_state:
            asked = [word for word in st.query_params.get(name, "").split(",") if word]
            st.session_state[key] = [word for word in asked if word in there]
            if set(asked) - set(there):
                not_here(name, there)
        st.session_state[key] = [word for word in st.session_state[key] if word in there]
    if "runs_sort" not in st.session_state:
        st.session_state["runs_order"] = UP if st.query_params.get("order") == "up" else DOWN
    seed("sort", columns, ALWAYS[0], key="runs_sort", called="column to sort by")
    find_at, state_at, tag_at, sort_at, order_at = st.columns([2.6, 2.4, 2, 2.3, 1.7], vertical_alignment="bottom")
    text = find_at.text_input(
        "Find",
        key="runs_text",
        persist_state="session",
        placeholder="name, tag, task …",
        icon=":material/search:",
    )
    chosen_states = state_at.multiselect(
        "State", states, key="runs_states", persist_state="session", placeholder="any state"
    )
    chosen_tags = tag_at.multiselect(
        "Tag", tags, key="runs_tags", persist_state="session", placeholder="any tag", disabled=not tags
    )
    by = sort_at.selectbox("Sort by", columns, key="runs_sort", persist_state="session")
    order = order_at.segmented_control(
        "Order",
        [UP, DOWN],
        key="runs_order",
        persist_state="session",
        required=True,
        label_visibility="collapsed",
        help="The smallest first, or the largest.",
    )
    try:
        words = typed(text or "", MOST_FIND).lower().split()
    except InputError as error:
        st.warning(literal(str(error)), icon=":material/search_off:")
        words = []
    found = [
        entry
        for entry in entries
        if (not chosen_states or entry.state in chosen_states)
        and (not chosen_tags or set(chosen_tags) <= set(entry.tags))
        and all(word in _searched(entry) for word in words)
    ]
    return found, by, order == DOWN


def _show_all() -> None:
    st.session_state["runs_text"] = ""
    st.session_state["runs_states"] = st.session_state["runs_tags"] = []


def _searched(entry: Entry) -> str:
    task = entry.task.get("name", "")
    return f"{entry.name} {' '.join(entry.tags)} {entry.title} {entry.preset} {entry.id} {task} {entry.state}".lower()


def lined_up(
    entries: Sequence[Entry], latest: Mapping[str, Any], settings: pd.DataFrame, by: str, descending: bool
) -> pd.DataFrame:
    """The overview beside the settings, sorted; runs without a value come last."""
    table = overview(entries, latest)
    settings = settings.drop(columns=["steps"], errors="ignore")  # it stands beside the step already
    equal = [name for name in ("device", "tags") if table.loc[:, name].astype(str).nunique() <= 1 and by != name]
    table = pd.concat([table.drop(columns=equal), settings], axis=1)
    table["created"] = table.pop("created")
    if by not in table.columns:
        by = ALWAYS[0]
    column = table.loc[:, by]
    if not pd.api.types.is_numeric_dtype(column) and by != "created":
        column = column.astype("string").str.lower()
    return table.loc[column.sort_values(ascending=not descending, kind="stable", na_position="last").index]


def table(
    entries: Sequence[Entry], latest: Mapping[str, Any], settings: pd.DataFrame, by: str, down: bool, who: str
) -> None:
    """Draw the table; a tick chooses a run."""
    if not entries:
        st.session_state[ROWS] = []
        with st.container(border=True, horizontal=True, vertical_alignment="center", key="runs_none"):
            st.markdown("No run is like that.", width="stretch")
            st.button("Show all runs", icon=":material/filter_alt_off:", on_click=_show_all, key="runs_show_all")
        return
    lines = lined_up(entries, latest, settings, by, down)
    st.session_state[ROWS] = list(lines.index)
    slots = colour_slots()
    dark = is_dark()
    lines.insert(0, "●", [dot(run_colour(slots[run], dark) if run in slots else None) for run in lines.index])
    lines["state"] = [[state] for state in lines["state"]]
    if not run_store.is_open():
        mine = {entry.id: "only you" if entry.private else "you" for entry in entries if who and entry.owner == who}
        owners = {entry.id: mine.get(entry.id, "others") for entry in entries}
        lines.insert(2, "owner", [owners[run] for run in lines.index])
    # Rows are ticked by their place: another order of rows is another table, else the ticks would stay where they were.
    # So is a choice that was made elsewhere.
    stamp = hashlib.sha1(",".join(st.session_state[ROWS]).encode()).hexdigest()[:12]
    key = f"runs_table_{st.session_state.get(GENERATION, 0)}_{stamp}"
    ticked = [place for place, run in enumerate(lines.index) if run in st.session_state[CHOSEN]]
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
        alt="The runs, one per row; tick rows to lay their curves over each other.",
    )


def _columns(lines: pd.DataFrame, dark: bool) -> dict[str, Any]:
    column = st.column_config
    told = lines["tags"] if "tags" in lines.columns else ()
    tags = sorted({tag for found in told for tag in found})
    return {
        "●": column.ImageColumn("", width=36, pinned=True, help="The colour of its curves below."),
        "name": column.TextColumn(width=170, pinned=True),
        "state": column.MultiselectColumn(
            width=105, options=list(STATE_HUES), color=[f"{theme.pick(hue, dark)}38" for hue in STATE_HUES.values()]
        ),
        "step": column.NumberColumn(format="localized", width=70),
        "steps": column.NumberColumn("of", format="localized", width=70),
        "exact match": column.ProgressColumn(
            format="percent",
            min_value=0.0,
            max_value=1.0,
            width=130,
            help="Whole sequences right, of unseen ones: as scored at the end, else as last reported.",
        ),
        "loss": column.NumberColumn(
            format="%.3g", width=85, help="On what it is trained on, as last reported, in nats."
        ),
        "seconds": column.NumberColumn(format="%.1f", width=75, help="Spent training."),
        "device": column.TextColumn(width=65),
        "tags": column.MultiselectColumn(width=120, options=tags, color="auto"),
        "created": column.DatetimeColumn(format="distance", width=130),
        "peak_lr": column.NumberColumn(format="%g"),
    }


def _tick(key: str) -> None:
    rows, shown = st.session_state[key]["selection"]["rows"], st.session_state[ROWS]
    ticked = [shown[row] for row in rows if row < len(shown)]
    before = st.session_state[CHOSEN]
    kept = [run for run in before if run in ticked or run not in shown]  # the order of choice, and so the colours, stay
    st.session_state[CHOSEN] = [*kept, *[run for run in ticked if run not in kept]]


def colour_slots() -> dict[str, int]:
    """The place of each chosen run among the colours: it keeps its own while others come and go."""
    slots: dict[str, int] = st.session_state.setdefault("runs_slots", {})
    chosen = st.session_state[CHOSEN][:MOST]
    for run in [run for run in slots if run not in chosen]:
        del slots[run]
    for run in chosen:
        if run not in slots:
            slots[run] = next(slot for slot in range(MOST) if slot not in slots.values())
    return slots


def settings_that_differ(entries: Sequence[Entry]) -> pd.DataFrame:
    """The settings in which these runs differ; kept as long as nothing changes in them, for they are compared one by one."""
    known = tuple((entry.id, len(entry.train.get("lr_changes", ()))) for entry in entries)
    return _differing(known, list(entries))


@st.cache_data(max_entries=32, show_spinner=False)
def _differing(known: tuple, _entries: list[Entry]) -> pd.DataFrame:
    return differing(_entries)
