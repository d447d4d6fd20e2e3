"""Learned positions: one learned vector per position, added to the embeddings (Vaswani et al. 2017, §3.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.positions.kind import PositionKind, PositionSizes

if TYPE_CHECKING:
    from xformer.positions.kind import Added, Positions, Tables

FREE = (
    "Look at the **band**: a learned table can treat the same offset differently at different positions. "
    "Sinusoidal positions cannot (**all kinds**)."
)


class Learned(PositionKind):
    """P[position], a row of a learned table."""

    name = "learned"
    title = "Learned"
    summary = "Adds one learned vector per position."
    note = "Only training can make offsets comparable, and positions that never occur in training learn nothing."
    source = "Vaswani et al. 2017, §3.5"
    acts_on = "stream"
    detail = "learned"
    equation = "P[pos]"

    def learned(self, sizes: PositionSizes) -> dict[str, tuple[int, int]]:
        return {"table": (sizes.max_len, sizes.d_model)}

    def add(self, sizes: PositionSizes, tables: Tables, index: Positions, mirrored: Positions) -> Added:
        from torch.nn.functional import embedding

        return embedding(index, tables["table"])

    def explanation(self, sizes: PositionSizes) -> str:
        return f"Adds a learned vector for each of {sizes.max_len} positions."

    def offset_note(self, sizes: PositionSizes) -> str:
        return FREE
