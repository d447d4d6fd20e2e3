"""Sweeps in the table of runs: the models of one stand below it, and only where somebody has ticked it, or looks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from pages.runs.filters import Filtered
from pages.runs.state import MAX_DRAWN, runs_state
from xformer.training.entry import Entry
from xformer.training.limits import n_models

ASKED = ("find", "state", "tag")
BELOW = "↳ "


def fold(shown: Filtered) -> Filtered:
    """Without the models of sweeps of which nothing is ticked; whoever asks for some runs gets all that match."""
    if not shown.link.keys().isdisjoint(ASKED):
        return shown
    there, chosen = {entry.id for entry in shown.entries}, set(runs_state().chosen)
    opened = chosen | {entry.sweep_of for entry in shown.entries if entry.id in chosen}
    kept = [one for one in shown.entries if one.sweep_of not in there or one.sweep_of in opened]
    return replace(shown, entries=kept)


def below_their_sweeps(order: Sequence[str], entries: Sequence[Entry]) -> list[str]:
    """The order of the rows with the models of each sweep right below it, among themselves as they were."""
    parent = {one.id: one.sweep_of for one in entries}
    members: dict[str, list[str]] = {run: [] for run in order if not parent[run]}
    rows = []
    for run in order:
        members.get(parent[run], rows).append(run)
    return [run for top in rows for run in (top, *members.get(top, ()))]


def names_below(entries: Sequence[Entry]) -> dict[str, str]:
    """What a model is called in a row below its sweep."""
    sweeps = {one.id: one.name for one in entries}
    return {
        one.id: BELOW + one.name.removeprefix(f"{sweeps[one.sweep_of]} · ") for one in entries if one.sweep_of in sweeps
    }


def sweep_panel(entry: Entry, entries: Sequence[Entry]) -> None:
    """What there is to do with a sweep in place of weights: choose the runs that its models have become."""
    models = [one for one in entries if one.sweep_of == entry.id]
    st.caption(
        f"A sweep of {n_models(entry)} models; {len(models)} of them are runs of their own, below it in the table."
    )
    if models:
        best = sorted(models, key=lambda one: -one.figures.get("exact_match", -1.0))[:MAX_DRAWN]
        words = "Choose its models" if len(models) <= MAX_DRAWN else f"Choose the {MAX_DRAWN} best of its models"
        runs = [one.id for one in best]
        st.button(words, width="stretch", on_click=_choose, args=(entry.id, runs), key=f"runs_models_{entry.id}")


def _choose(sweep: str, runs: list[str]) -> None:
    runs_state().choose(*runs, sweep, select=runs[0])
