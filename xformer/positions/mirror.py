"""Mirror positions: two learned vectors are added, one for the distance from the start and one for that from the end.

With both, one layer can reverse a sequence: position i attends to the token at distance i from the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.errors import ConfigError
from xformer.positions.kind import PositionKind, PositionSizes
from xformer.positions.learned import FREE

if TYPE_CHECKING:
    from xformer.positions.kind import Added, Positions, Tables


class Mirror(PositionKind):
    """P[distance from the start] + Q[distance from the end]."""

    name = "mirror"
    title = "Mirror"
    summary = "Adds two learned vectors, for the distance from the start and from the end."
    note = "One look-up is then enough to reverse a sequence. It needs the length of the sequence, so a decoder cannot use it."
    acts_on = "stream"
    can_cache_keys = False  # each new token increases the distance from the end of all others
    detail = "mirror, learned"
    equation = "P[start] + Q[end]"

    def learned(self, sizes: PositionSizes) -> dict[str, tuple[int, int]]:
        return {"from_start": (sizes.max_len, sizes.d_model), "from_end": (sizes.max_len, sizes.d_model)}

    def add(self, sizes: PositionSizes, tables: Tables, index: Positions, mirrored: Positions) -> Added:
        from torch.nn.functional import embedding

        return embedding(index, tables["from_start"]) + embedding(mirrored, tables["from_end"])

    def check(self, sizes: PositionSizes) -> None:
        if sizes.architecture != "encoder":
            raise ConfigError(
                "Mirror positions also count from the end, which would reveal the length of an answer that is yet to be "
                f"generated, so positions='mirror' needs architecture='encoder', got {sizes.architecture!r}; "
                "use positions='sinusoidal'."
            )

    def offset_note(self, sizes: PositionSizes) -> str:
        return FREE
