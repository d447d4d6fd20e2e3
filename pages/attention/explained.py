"""Why a cell is as it is, worked out once for all that look at it: its score’s parts, and what becomes of it without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from pages.attention.trail import Cell
from pages.shared.byte_cache import shared
from pages.shared.view import View
from xformer.analysis.score_parts import score_parts, table_of
from xformer.analysis.score_summary import Carrier, carriers, check, explains, without_source
from xformer.reading import Reading
from xformer.words import percent


@dataclass(frozen=True, eq=False)
class Explained:
    """The numbers of one cell that the screen shows."""

    where: dict[str, Any]
    """The options of `analysis.why`."""
    table: pd.DataFrame
    total: float
    residue: float
    advantage: float
    best: Carrier | None
    carriers: list[Carrier]
    """The strongest first."""
    taken: Carrier | None
    """Whom the causal check takes out."""
    check: pd.DataFrame
    is_moved: bool
    """Whether some prediction is another one without it."""


def explained(view: View, run: Reading, cell: Cell, against: int | None) -> Explained:
    """Raises `UnavailableError` where the score is no sum of parts that are known."""
    where = {"layer": cell.layer, "head": cell.head, "query": cell.query, "key": cell.key, "against": against}
    return shared.get(("explained", view.model, str(run.recipe), repr(where)), lambda: _explain(run, cell, where))


def _explain(run: Reading, cell: Cell, where: dict[str, Any]) -> Explained:
    parts = score_parts(run, **where)
    found = carriers(parts)
    taken = next((one for one in found if one.writer.name not in ("distance", "biases")), None)
    table, is_moved = pd.DataFrame(), False
    if taken is not None:
        head = {"layer": cell.layer, "head": cell.head}
        without = without_source(run, **head, side=taken.side, source=taken.writer.name, parts=parts)
        table = check(run, without, **head, query=cell.query, key=cell.key)
        is_moved = not bool((run.logits.argmax(dim=-1) == without.logits.argmax(dim=-1)).all())
    sums = parts.total, parts.residue, parts.total_advantage
    return Explained(where, table_of(parts), *sums, explains(parts), found, taken, table, is_moved)


def sentence(total: float, best: Carrier | None, found: list[Carrier]) -> str:
    """Why it prefers this key: by one source where one carries most of it, else that none does."""
    if total <= 0:
        return "It does not prefer this key to what it is compared with."
    if best is not None:
        share, name = percent(best.share, 0), best.writer.name
        return f"**{share}** of why it prefers it comes through **{name}** at the {best.side}."
    largest = max(found, key=lambda one: one.advantage)
    return (
        f"No single source explains it: the largest, {largest.writer.name} at the {largest.side}, carries "
        f"{percent(largest.share, 0)}."
    )
