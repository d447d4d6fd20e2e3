"""The patching map of a minimal pair: measured for all cells where that is quick, beside an estimate of all."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any, cast

import pandas as pd
import streamlit as st

from pages.compare.comparison import state
from pages.compare.pair_measure import measure_name, signed
from pages.compare.pair_notes import HALF, WHAT, cell_name, map_notes
from pages.shared import estimates
from pages.shared.background_job import Job, follow
from pages.shared.byte_cache import shared
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import caption, what_to_notice
from pages.shared.link import asked
from pages.shared.link_widgets import choose, not_here
from pages.shared.picture import footer, shown, table
from xformer import analysis, viz
from xformer.analysis.activation_patching import Cell, Measured, PartKind, cells, measured, measuring
from xformer.analysis.minimal_pairs import MinimalPair

PARTS = {"stream": "stream × position", "head": "heads", "neurons": "neurons"}
METHODS = {"exact": "measured", "quick": "estimated"}
AT_ONCE = 1.5
"""Seconds of measuring before the page shows how far it is."""
BUDGET = 0.6
"""Seconds of it in one run of the page; a few cells of a large model take as long."""
DRAWN = {
    "exact": "Measured by a run for each cell.",
    "quick": "Estimated for all cells from a few backward passes (integrated gradients); see above how far to trust that.",
}
JOB, CELL, MAP = "pair_map", "pair_cell", "pair_picture"


class PairView:
    """What the files and the kept tables of these pictures are named after."""

    def __init__(self, model: str) -> None:
        self.model = model


def map_panel(view: PairView, pair: MinimalPair) -> dict[str, str]:
    """Choose what is patched, measure it and draw it; what the link remembers. Raises `InputError` where there is nothing."""
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        part = cast(PartKind, choose("part", PARTS, "stream", "Part", key="pair_part", label_visibility="collapsed"))
        method = choose("method", METHODS, "exact", "Values", key="pair_method", label_visibility="collapsed")
        cell_at = st.container()
    of = cells(pair, part)
    options = {"part": part, "answers": pair.answers, "position": pair.position}
    estimated = table(view, analysis.patching_map, pair.reading, pair.source, **options)
    about = "|".join([view.model, str(pair.reading.recipe), str(pair.source.recipe), str(options)])
    job = _measure(pair, of, estimated["estimated"].tolist(), about)
    shares = {} if job.latest is None else job.latest.shares
    both = estimated.assign(measured=pd.Series(shares, dtype=float))
    with cell_at:
        chosen = _ask_cell(both, part, pair)
    st.markdown(_of_cell(pair, of[chosen], both.to_dict("records")[chosen], part, about))
    st.markdown(estimates.how_far_to_trust(both, "cells"))
    if job.problem:
        st.info(escape_markdown(job.problem), icon=":material/grid_on:")
    follow(job, partial(estimates.bar, job, "pair_exact", "cells"), BUDGET)
    exact = True if len(shares) == len(of) else sorted(shares)
    show = METHODS[method]
    grey = " Dark grey cells are not measured." if method == "exact" and exact is not True else ""
    call = Call(
        viz.patching_map,
        (pair.reading, pair.source),
        {**options, "exact": exact, "show": show, "chosen": chosen, "table": both},
    )
    shown(view, call, MAP, on_select=_follow_click, selection_mode="cell")
    caption(
        f"{WHAT[part]} Each alone is given what it was in the second run: 0 leaves the first run as it was, 1 makes it the "
        f"second’s, beyond both ends is possible. {DRAWN[method]}{grey}"
    )
    footer(view, "patching", [call], both)
    if notes := list(map_notes(pair, both, part)):
        what_to_notice(notes)
    return {"cell": str(chosen)}


def _measure(pair: MinimalPair, of: list[Cell], first: list[float], about: str) -> Job[Measured]:
    """The measuring of all cells, as far as it is; what was measured in another visit is not measured again."""
    job: Job[Measured] | None = state().job(JOB, about)
    if job is None:
        known: Measured | None = shared.peek(("exact map", about))
        job = state().begin(JOB, about, measuring(pair, of, first) if known is None else iter([known]))
        estimates.begin(job, AT_ONCE)
    if job.latest is not None and job.latest.is_final and shared.peek(("exact map", about)) is None:
        shared.put(("exact map", about), job.latest)
    return job


def _ask_cell(frame: pd.DataFrame, part: PartKind, pair: MinimalPair) -> int:
    """The cell to measure: clicked in the map or chosen from the list; the measured ones come first, the largest first."""
    rows = frame.to_dict("records")
    sizes = pd.DataFrame(frame.filter(["measured", "estimated"]).abs())
    order = sizes.sort_values(by=["measured", "estimated"], ascending=False).index.tolist()
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
        here = [
            at for at, row in enumerate(rows) if row.get("position") == pair.position and abs(row["measured"]) >= HALF
        ]
        st.session_state[CELL] = (here or order)[0]
    st.session_state[f"{CELL}_of"] = about
    names = {at: f"{cell_name(row, part)}: {_value(row)}" for at, row in enumerate(rows)}
    look: dict[str, Any] = {
        "key": CELL,
        "label_visibility": "collapsed",
        "help": "Click a cell of the map, or choose one here.",
    }
    return st.selectbox("Cell to measure, the largest first", order, format_func=names.__getitem__, **look)


def _value(row: Mapping[Hashable, Any]) -> str:
    """What a cell carries, measured where that is known."""
    missing = pd.isna(row["measured"])
    return f"estimated {signed(row['estimated'], 3)}" if missing else signed(row["measured"], 3)


def _follow_click() -> None:
    for cell in st.session_state[MAP]["selection"].get("cell", []):
        st.session_state[CELL] = int(cell["cell"])


def _of_cell(pair: MinimalPair, cell: Cell, row: Mapping[Hashable, Any], part: PartKind, about: str) -> str:
    """What becomes of the measure with this cell alone replaced, measured now."""
    share = shared.get(("exact cell", about, cell.name, str(cell.where)), lambda: measured(pair, [cell])[0])
    return (
        f"**{cell_name(row, part)}**: estimated {signed(row['estimated'], 3)}, measured **{signed(share, 3)}**. With it alone "
        f"put in, {measure_name(pair)} goes from {signed(pair.start)} to {signed(pair.start + share * pair.gap)}."
    )
