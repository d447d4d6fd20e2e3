"""The patching map of a minimal pair: quick for all cells at once, exact for the cell one points at, or for all."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any, cast

import pandas as pd
import streamlit as st

from pages.compare.pair_measure import measure_name, signed
from pages.compare.pair_notes import HALF, WHAT, cell_name, map_notes, shares_of
from pages.compare.state import state
from pages.shared.background_job import Job, follow, progress
from pages.shared.byte_cache import shared
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import caption, what_to_notice
from pages.shared.link import asked
from pages.shared.link_widgets import choose, not_here
from pages.shared.picture import footer, shown, table
from xformer import analysis, viz
from xformer.analysis.minimal_pair import MinimalPair
from xformer.analysis.patched_cells import Cell, Part, Restored, cells, restored, restoring

PARTS = {"stream": "stream × position", "head": "heads", "neurons": "neurons"}
METHODS = {"quick": "quick", "exact": "exact"}
AT_ONCE = 1.5
"""Seconds that the exact map may take before it says how far it is."""
BUDGET = 0.6
"""Seconds of it in one run of the page; a few cells of a large model take as long."""
JOB, CELL, MAP = "pair_map", "pair_cell", "pair_picture"


class PairView:
    """What the files and the kept tables of these pictures are named after."""

    def __init__(self, model: str) -> None:
        self.model = model


def map_panel(view: PairView, pair: MinimalPair, usual: str) -> dict[str, str]:
    """Choose what is patched and how, and draw it; what the link remembers. Raises `InputError` where there is nothing."""
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        part = cast(Part, choose("part", PARTS, "stream", "Part", key="pair_part", label_visibility="collapsed"))
        method = choose("method", METHODS, usual, "Method", key="pair_method", label_visibility="collapsed")
        cell_at = st.container()
    of = cells(pair, part)
    options = {"part": part, "answers": pair.answers, "position": pair.position}
    quick = table(view, analysis.patching_map, pair.reading, pair.source, **options)
    about = "|".join([view.model, str(pair.reading.recipe), str(pair.source.recipe), str(options)])
    shares = _exact(pair, of, about) if method == "exact" else None
    exact = quick if shares is None else quick.assign(restored=shares)
    with cell_at:
        chosen = _ask_cell(exact, part, pair)
    st.markdown(_of_cell(pair, of[chosen], exact.to_dict("records")[chosen], part, about))
    call = Call(
        viz.patching_map,
        (pair.reading, pair.source),
        {**options, "exact": shares is not None, "chosen": chosen, "table": exact},
    )
    shown(view, call, MAP, on_select=_follow_click, selection_mode="cell")
    how = (
        "Measured, a run for each cell."
        if shares is not None
        else "Estimated for all at once from one backward pass (attribution patching), which can be far off where an effect is "
        "large: choose a cell to measure it."
    )
    caption(
        f"{WHAT[part]} Each alone is given what it was in the second run: 0 leaves the first run as it was, 1 makes it the "
        f"second’s, beyond both ends is possible. {how}"
    )
    footer(view, "patching", [call], exact)
    if notes := list(map_notes(pair, exact, part)):
        what_to_notice(notes)
    return {"cell": str(chosen)}


def _exact(pair: MinimalPair, of: list[Cell], about: str) -> list[float] | None:
    """The measured shares of all cells; None while they are being measured, and where that was broken off."""
    known = shared.peek(("exact map", about))
    if known is not None:
        return known
    job: Job[Restored] | None = state().job(JOB, about)
    if job is None:
        job = state().begin(JOB, about, restoring(pair, of))
        job.advance(AT_ONCE)
    if not job.is_running and not job.cancelled and job.latest is not None:
        shared.put(("exact map", about), job.latest.shares)
        return job.latest.shares
    if job.problem:
        st.info(escape_markdown(job.problem), icon=":material/grid_on:")
        return None
    follow(job, partial(_bar, job, len(of)), BUDGET)
    return None


def _bar(job: Job[Restored], total: int) -> None:
    """How far the exact map is, with a way to stop it; the quick one stands below meanwhile."""
    done = 0 if job.latest is None else len(job.latest.shares)
    progress(
        job, "pair_exact", done / total, f"{done} of {total} cells measured", f"Stopped after {done} of {total} cells."
    )


def _ask_cell(frame: pd.DataFrame, part: Part, pair: MinimalPair) -> int:
    """The cell to measure: clicked in the map or chosen from the list, which begins with what carries most."""
    rows, values = frame.to_dict("records"), shares_of(frame)
    order = sorted(range(len(rows)), key=lambda at: -abs(values[at]))
    about = (part, pair.reading.recipe, pair.source.recipe)
    wanted = asked("cell")
    if wanted is not None and not (
        wanted.isascii() and wanted.isdecimal() and len(wanted) < 7 and int(wanted) < len(frame)
    ):
        not_here("cell")
        wanted = None
    if wanted is not None:
        st.session_state[CELL] = int(wanted)
    elif st.session_state.get(f"{CELL}_of", about) != about or st.session_state.get(CELL) not in order:
        here = [at for at, row in enumerate(rows) if row.get("position") == pair.position and abs(values[at]) >= HALF]
        st.session_state[CELL] = (here or order)[0]
    st.session_state[f"{CELL}_of"] = about
    names = {at: f"{cell_name(rows[at], part)}: {signed(values[at], 3)}" for at in order}
    look: dict[str, Any] = {
        "key": CELL,
        "label_visibility": "collapsed",
        "help": "Click a cell of the map, or choose one here.",
    }
    return st.selectbox("Cell to measure, the largest first", order, format_func=names.__getitem__, **look)


def _follow_click() -> None:
    for cell in st.session_state[MAP]["selection"].get("cell", []):
        st.session_state[CELL] = int(cell["cell"])


def _of_cell(pair: MinimalPair, cell: Cell, row: Mapping[Hashable, Any], part: Part, about: str) -> str:
    """What becomes of the measure with this cell alone replaced, measured now."""
    share = shared.get(("exact cell", about, cell.name, str(cell.where)), lambda: restored(pair, [cell])[0])
    return (
        f"**{cell_name(row, part)}**: estimated {signed(row['attributed'], 3)}, measured **{signed(share, 3)}**. With it alone "
        f"put in, {measure_name(pair)} goes from {signed(pair.start)} to {signed(pair.start + share * pair.gap)}."
    )
