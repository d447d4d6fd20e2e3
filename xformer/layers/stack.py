"""A stack of layers with its positions and last norm: the encoder, or the decoder."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Bool, Float
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.layers.attention import Cache
from xformer.layers.block import Block, BlockInputs, CrossBlock
from xformer.layers.masks import Layout, combine
from xformer.layers.norm import Norm
from xformer.layers.position_tables import AddPositions
from xformer.tape import SILENT, AnyTape


class Stack(nn.Module):
    """Positions, n_layers blocks, and the final norm where there is one."""

    def __init__(self, config: ModelConfig, block: type[Block] | type[CrossBlock], *, causal: bool) -> None:
        super().__init__()
        self.config = config
        self.causal = causal
        self.positions = AddPositions(config)
        self.blocks = nn.ModuleList(block(config) for _ in range(config.n_layers))
        self.norm = Norm(config) if config.final_norm else None

    def forward(
        self,
        embed: Float[Tensor, "batch pos d_model"],
        layout: Layout,
        *,
        context: BlockInputs,
        drawn: Bool[Tensor, "*batch query key"] | None = None,
        tape: AnyTape = SILENT,
        layer_tape: AnyTape = SILENT,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """`tape` names what the stack has once, `layer_tape` what each of its layers has."""
        x = context.dropout("embed", self.positions(embed, layout, tape))
        context = self._inputs(x, layout, context, drawn, cache)
        for index, block in enumerate(self.blocks):
            self_cache = None if cache is None else cache.self_attention[index]
            cross_cache = None if cache is None else cache.cross_attention[index]
            x = block(x, context, layer_tape.at(str(index)), self_cache, cross_cache)
        if cache is not None:
            cache.length += x.shape[1]
        return x if self.norm is None else tape("final_norm", self.norm(x))

    def _inputs(
        self, x: Tensor, layout: Layout, context: BlockInputs, drawn: Tensor | None, cache: Cache | None
    ) -> BlockInputs:
        """The mask and the positions inside attention, worked out once for all layers."""
        config, n_query = self.config, x.shape[1]
        n_key = n_query if cache is None else cache.length + n_query
        keys = layout if cache is None else Layout.plain(n_key, x.device)
        mask = combine(
            layout,
            keys,
            n_query=n_query,
            n_key=n_key,
            causal=self.causal,
            see_self=config.see_self,
            drawn=drawn,
            component=config.mask_component.allowed(config, n_query, n_key, x.device),
            device=x.device,
        )
        angles = self.positions.angles(layout.positions, x.dtype)
        position_bias = self.positions.bias(layout.positions, keys.positions, x.dtype, causal=self.causal)
        return replace(context, mask=mask, angles=angles, position_bias=position_bias)
