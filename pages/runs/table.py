"""The table of runs: sorted, with the settings that differ; the rows that are ticked are the chosen runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from pages.runs.filters import ALWAYS, Filtered, show_all
from pages.runs.state import runs_state
from pages.runs.sweeps import below_their_sweeps, names_below
from pages.shared import run_store
from pages.shared.layout import is_dark
from xformer.training.entry import DAMAGED, Entry
from xformer.training.overview import differing, overview
from xformer.viz import theme
from xformer.viz.training_curves import dot, run_colour

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


def table(shown: Filtered, latest: Mapping[str, Any], settings: pd.DataFrame, who: str) -> None:
    """Draw the table; a tick chooses a run."""
    state, entries = runs_state(), shown.entries
    if not entries:
        state.rows = []
        with st.container(border=True, horizontal=True, vertical_alignment="center", key="runs_none"):
            st.markdown("No run is like that.", width="stretch")
            st.button("Show all runs", icon=":material/filter_alt_off:", on_click=show_all, key="runs_show_all")
        return
    lines = lined_up(entries, latest, settings, shown.by, shown.descending)
    lines = lines.loc[below_their_sweeps(list(lines.index), entries)]
    below = names_below(entries)
    lines["name"] = [below.get(run, name) for run, name in lines["name"].items()]
    state.rows = list(lines.index)
    slots = state.colour_slots()
    dark = is_dark()
    lines.insert(0, "●", [dot(run_colour(slots[run], dark) if run in slots else None) for run in lines.index])
    lines["state"] = [[state] for state in lines["state"]]
    if not run_store.is_open():
        mine = {entry.id: "only you" if entry.private else "you" for entry in entries if who and entry.owner == who}
        owners = {entry.id: mine.get(entry.id, "others") for entry in entries}
        lines.insert(2, "owner", [owners[run] for run in lines.index])
    # Rows are ticked by their place: another order of rows is another table, else the ticks would stay where they were.
    # So is a choice that was made elsewhere.
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
        alt="The runs, one per row; tick rows to lay their curves over each other.",
    )


def _columns(lines: pd.DataFrame, dark: bool) -> dict[str, Any]:
    column = st.column_config
    tags = sorted({tag for found in lines["tags"] for tag in found}) if "tags" in lines.columns else []
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
    state, rows = runs_state(), st.session_state[key]["selection"]["rows"]
    ticked = [state.rows[row] for row in rows if row < len(state.rows)]
    # The order of choice, and so the colours, stay.
    kept = [run for run in state.chosen if run in ticked or run not in state.rows]
    state.chosen = [*kept, *[run for run in ticked if run not in kept]]


def settings_that_differ(entries: Sequence[Entry]) -> pd.DataFrame:
    """The settings in which these runs differ; kept as long as nothing changes in them, for they are compared one by one."""
    known = tuple((entry.id, len(entry.train.get("lr_changes", ()))) for entry in entries)
    return _differing(known, list(entries))


@st.cache_data(max_entries=32, show_spinner=False)
def _differing(known: tuple, _entries: list[Entry]) -> pd.DataFrame:
    return differing(_entries)
