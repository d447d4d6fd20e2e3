"""Why a head prefers a key, computed once for all parts of the screen: contributions, and the measured effect of a removal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from pages.attention.trail import Cell
from pages.shared.byte_cache import shared
from pages.shared.view import View
from xformer.analysis.score_decomposition import (
    Contribution,
    check,
    contributions,
    deciding,
    is_worth_a_word,
    opposing,
    score_parts,
    table_of,
    without_source,
)
from xformer.formatting import percent
from xformer.reading import Reading


@dataclass(frozen=True, eq=False)
class Explained:
    """The numbers of one cell that the screen shows."""

    where: dict[str, Any]
    """The options of `analysis.why`."""
    table: pd.DataFrame
    total: float
    residue: float
    advantage: float
    """In nats, like all contributions."""
    weight: float
    n_allowed: int
    contributions: list[Contribution]
    """The largest first."""
    deciding: tuple[Contribution, ...]
    opposing: Contribution | None
    removed: Contribution | None
    """The source whose removal is measured; None where there is no choice to explain."""
    check: pd.DataFrame
    is_moved: bool | None
    """Whether removing it changes a prediction; None of a model that makes none."""


def explained(view: View, run: Reading, cell: Cell, against: int | None) -> Explained:
    """Raises `UnavailableError` where the score is no sum of parts that are known."""
    where = {"layer": cell.layer, "head": cell.head, "query": cell.query, "key": cell.key, "against": against}
    return shared.get(("explained", view.model, str(run.recipe), repr(where)), lambda: explain(run, where))


def explain(run: Reading, where: dict[str, Any]) -> Explained:
    """The same for the options of `analysis.why`."""
    parts = score_parts(run, **where)
    found, removed = contributions(parts), None
    table: pd.DataFrame = pd.DataFrame()
    is_moved: bool | None = False
    if is_worth_a_word(parts):
        removed = found[0]
        head = {"layer": where["layer"], "head": where["head"]}
        without = without_source(run, **head, side=removed.side, source=removed.writer.name, parts=parts)
        table = check(run, without, **where)
        if run.has_logits:
            is_moved = not bool((run.logits.argmax(dim=-1) == without.logits.argmax(dim=-1)).all())
        else:
            table, is_moved = table.dropna(), None
    return Explained(
        where, table_of(parts), parts.total, parts.residue, parts.total_advantage, parts.weight, parts.n_allowed, found,
        deciding(parts), opposing(parts), removed, table, is_moved,
    )  # fmt: skip


def sentence(found: Explained, over: str) -> str:
    """Why the key is preferred, as Markdown; `over` is what its score is compared with, in words."""
    if found.weight * found.n_allowed < 1.0:
        return f"That is less than an even share among {found.n_allowed} keys, so no source is named."
    if found.advantage <= 0:
        return f"Its score is not above {over}, so there is no preference to explain."
    said = f"Its score is **{found.advantage:.2f} nats** above {over}"
    if found.removed is None:
        return f"{said}, too little to explain."
    if not found.deciding:
        first, second = (f"{one.title} ({nats(one.adds)})" for one in found.contributions[:2])
        return f"{said}. No single source decides this; the largest contributions are {first} and {second}."
    named = [
        f"**{one.writer.name}**{one.title.removeprefix(one.writer.name)} ({nats(one.adds)})" for one in found.deciding
    ]
    said += ". The largest contribution is " if len(named) == 1 else ". The two largest contributions are "
    said += " and ".join(named)
    if found.opposing is not None:
        said += f"; the largest opposing one is {found.opposing.title} ({nats(found.opposing.adds)})"
    after = found.check.set_index("what")["after"].to_dict()
    return (
        f"{said}. Measured by removing {removal(found.removed)}: the advantage becomes {nats(after['advantage'])} nats, the "
        f"weight {percent(after['weight'])}."
    )


def removal(one: Contribution) -> str:
    """What is removed from what, in words: "layer 1 · head 2 from this head’s keys"."""
    of = "scores" if one.side is None else "queries" if one.side == "query" else "keys"
    return f"{one.writer.name} from this head’s {of}"


def nats(value: float) -> str:
    """A contribution with its sign, a true minus."""
    return f"{value:+.2f}".replace("-", "−")
