"""What a patching map shows, in sentences that are left out where they could be wrong."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

from pages.compare.pair_measure import signed
from pages.shared.escape_markdown import escape_markdown
from xformer.analysis.activation_patching import PartKind
from xformer.analysis.minimal_pairs import MinimalPair, differing

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


def cell_name(row: Mapping[Hashable, Any], part: PartKind) -> str:
    """A cell in words, as Markdown; `row` is that of the table."""
    if part == "head":
        return f"{row['where']} · head {row['head'] + 1}"
    if part == "neurons":
        return f"{row['where']} · neurons {row['first_neuron']} to {row['last_neuron']}"
    return f"{row['where']} · position {row['position']} “{escape_markdown(str(row['token']))}”"


def map_notes(pair: MinimalPair, table: pd.DataFrame, part: PartKind) -> Iterator[str]:
    """The notes under a map, of what is measured in `table`."""
    if part == "stream":
        yield from _handed_over(pair, table)
    else:
        yield from _largest(table, part)


def _largest(table: pd.DataFrame, part: PartKind) -> Iterator[str]:
    """The part that carries most, if it is well above the next; else that none is. Only of parts that are measured."""
    there = table.dropna(subset="measured")
    if len(there) < 2:
        return
    rows = sorted(there.to_dict("records"), key=lambda row: -abs(row["measured"]))[:2]
    names, (share, rest) = [cell_name(row, part) for row in rows], [row["measured"] for row in rows]
    what = "head" if part == "head" else "group of neurons"
    among = "" if len(there) == len(table) else f" of the {len(there)} that are measured"
    if abs(share) < WORTH_A_WORD:
        yield f"No {what}{among} alone carries a tenth of the difference."
    elif abs(share) < APART * abs(rest):
        yield (
            f"No {what}{among} stands apart: {names[0]} carries {signed(share)} of the difference, {names[1]} {signed(rest)}."
        )
    else:
        more = f", {share / rest:.1f} times as much as the next" if share * rest >= NEARLY_NOTHING * abs(share) else ""
        yield f"**{names[0]}** alone carries {signed(share)} of the difference{more}{among}."


def _handed_over(pair: MinimalPair, table: pd.DataFrame) -> Iterator[str]:
    """Up to which layer the difference is at the position of the changed token, and from which on where the answer is given."""
    stack = pair.reading.output_stack
    changed = differing(pair.reading, pair.source, stack)
    if pair.reading.is_pair or len(changed) != 1 or changed[0] == pair.position:
        return
    if bool(table.loc[table["position"].isin([changed[0], pair.position]), "measured"].isna().any()):
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
    carries = [row["measured"] >= HALF for row in column]
    is_one_stretch = carries == sorted(carries, reverse=first)
    return [row["where"] for row in column if row["measured"] >= HALF] if is_one_stretch else []
