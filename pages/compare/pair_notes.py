"""What a patching map says, in sentences that keep silent where they could be wrong."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

from pages.compare.pair_measure import signed
from pages.shared.escape_markdown import escape_markdown
from xformer.analysis.minimal_pair import MinimalPair, differing
from xformer.analysis.patched_cells import Part, agreement

WHAT = {
    "stream": "A cell is the stream at one position, after one layer.",
    "head": "A cell is one head, at all positions.",
    "neurons": "A cell is a group of neighbouring neurons of a layer, at all positions: each layer is cut into equal ones.",
}
WORTH_A_WORD = 0.1
"""A part that carries less of the difference is not named."""
APART = 1.5
"""So many times the next largest one carries what stands apart."""
HALF = 0.5
NEARLY_NOTHING = 0.005
"""Nothing is said to be so many times as much as that."""


def cell_name(row: Mapping[Hashable, Any], part: Part) -> str:
    """A cell in words, as Markdown; `row` is that of the table."""
    if part == "head":
        return f"{row['where']} · head {row['head'] + 1}"
    if part == "neurons":
        return f"{row['where']} · neurons {row['first_neuron']} to {row['last_neuron']}"
    return f"{row['where']} · position {row['position']} “{escape_markdown(str(row['token']))}”"


def map_notes(pair: MinimalPair, table: pd.DataFrame, part: Part) -> Iterator[str]:
    """The notes under a map; `table` has exact values or not."""
    if part == "stream":
        yield from _handed_over(pair, table)
    else:
        yield _largest(table, part)
    if (found := agreement(table)) is not None:
        yield (
            f"The quick map ranks the {found.n} parts that do anything like the exact one with a Spearman correlation of "
            f"**{signed(int(found.rho * 100) / 100)}** (1: the same order, 0: no relation)."
        )


def _largest(table: pd.DataFrame, part: Part) -> str:
    """Which part carries most, where it stands apart from the next; else that none does."""
    rows, values = table.to_dict("records"), shares_of(table)
    order = sorted(range(len(rows)), key=lambda at: -abs(values[at]))
    names, (share, rest) = [cell_name(rows[at], part) for at in order[:2]], [*(values[at] for at in order[:2]), 0.0][:2]
    what = "head" if part == "head" else "group of neurons"
    if abs(share) < WORTH_A_WORD:
        said = f"no {what} alone carries a tenth of the difference."
    elif abs(share) < APART * abs(rest):
        said = (
            f"no {what} stands apart: {names[0]} carries {signed(share)} of the difference, {names[1]} {signed(rest)}."
        )
    else:
        more = f", {share / rest:.1f} times as much as the next" if share * rest >= NEARLY_NOTHING * abs(share) else ""
        said = f"**{names[0]}** alone carries {signed(share)} of the difference{more}."
    return said[0].upper() + said[1:] if "restored" in table else f"By the quick estimate, {said}"


def shares_of(table: pd.DataFrame) -> list[float]:
    """What each cell carries: measured where that is known, else estimated."""
    return table["restored" if "restored" in table else "attributed"].tolist()


def _handed_over(pair: MinimalPair, table: pd.DataFrame) -> Iterator[str]:
    """Up to which layer what differs stands where it was read, and from which on where it is said; measured values only."""
    stack = pair.reading.output_stack
    changed = differing(pair.reading, pair.source, stack)
    if "restored" not in table or pair.reading.is_pair:
        return
    if len(changed) != 1 or changed[0] == pair.position:
        return
    begin, end = _carrying(table, changed[0], first=True), _carrying(table, pair.position, first=False)
    if begin:
        until = f"**{begin[-1]}**" + (
            f"; at position {pair.position}, which says it, from **{end[0]}** on." if end else "."
        )
        yield f"At position {changed[0]}, where they differ, the stream carries half of the difference or more up to {until}"


def _carrying(table: pd.DataFrame, position: int, *, first: bool) -> list[str]:
    """The layers after which a position carries half or more: one stretch from the first on, or one to the last; else none."""
    column = [row for row in table.to_dict("records") if row["position"] == position]
    carries = [row["restored"] >= HALF for row in column]
    is_one_stretch = carries == sorted(carries, reverse=first)
    return [row["where"] for row in column if row["restored"] >= HALF] if is_one_stretch else []
