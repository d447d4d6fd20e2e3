"""The positions of one stack: the tables that its kind of positions needs, and what the kind makes of them.

What is done is the kind's (`xformer.positions`); here it gets its weights, and its name on the tape.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.layers.masks import Layout
from xformer.tape import SILENT, AnyTape


class PositionTables(nn.Module):
    """The tables of a kind: learned ones are parameters, fixed ones are worked out again and not saved."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.kind = config, config.position_kind
        for name, shape in self.kind.learned(config).items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        for name, table in self.kind.fixed(config).items():
            self.register_buffer(
                name, table.to(torch.get_default_device(), torch.get_default_dtype()), persistent=False
            )

    def tables(self) -> dict[str, Tensor]:
        """All of them by name."""
        return {name: table for name, table in (*self._parameters.items(), *self._buffers.items()) if table is not None}

    def forward(self, layout: Layout) -> Float[Tensor, "*batch pos d_model"] | None:
        """What is added to the embeddings; None for a kind that adds nothing."""
        return self.kind.add(self.config, self.tables(), layout.positions, layout.mirrored)


class AddPositions(nn.Module):
    """embed + pos_embed, for the kinds of positions that are added; the others act inside the attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.kind = config, config.position_kind
        needs_tables = bool(self.kind.learned(config) or self.kind.fixed(config))
        self.table = PositionTables(config) if needs_tables else None

    def forward(
        self, embed: Float[Tensor, "batch pos d_model"], layout: Layout, tape: AnyTape = SILENT
    ) -> Float[Tensor, "batch pos d_model"]:
        embed = tape("embed", embed)
        vectors = None if self.table is None else self.table(layout)
        return embed if vectors is None else embed + tape("pos_embed", vectors.to(embed.dtype))

    def angles(
        self, positions: Int[Tensor, "*batch pos"], dtype: torch.dtype
    ) -> Float[Tensor, "*batch pos half"] | None:
        """By how much this stack's queries and keys are turned."""
        angles = self.kind.angles(self.config, positions)
        return None if angles is None else angles.to(dtype)

    def bias(
        self,
        queries: Int[Tensor, "*batch query"],
        keys: Int[Tensor, "*batch key"],
        dtype: torch.dtype,
        *,
        causal: bool,
    ) -> Float[Tensor, "#batch head query key"] | None:
        """What is added to the scores of this stack's self-attention, the same in all its layers."""
        tables = {} if self.table is None else self.table.tables()
        bias = self.kind.bias(self.config, tables, queries, keys, causal=causal)
        return None if bias is None else bias.to(dtype)
