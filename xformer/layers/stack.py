"""A stack of layers: residual connections, blocks, positions and the final norm.

post-norm   Norm(x + f(x))        the paper (Vaswani et al. 2017, §5.4: dropout on f before the sum)
pre-norm    x + f(Norm(x))        GPT-2 and after (Xiong et al. 2020, arXiv:2002.04745)
no norm     x + f(x)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from jaxtyping import Bool, Float
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.layers.attention import Attention, Cache, LayerCache
from xformer.layers.dropout import NO_DROPOUT, Dropout
from xformer.layers.embedding import AddPositions, Stream
from xformer.layers.feed_forward import FeedForwardLayer, NormLayer
from xformer.layers.masks import NO_MASK, LayerMask, SequencePacking, combine
from xformer.tape import SILENT, AnyTape

Sublayer = Callable[[Tensor], Tensor]


class Stack(nn.Module):
    """Positions, n_layers blocks, and a final norm if configured."""

    def __init__(self, config: ModelConfig, block: type[Block] | type[CrossBlock], *, causal: bool) -> None:
        super().__init__()
        self.config = config
        self.causal = causal
        self.positions = AddPositions(config)
        self.blocks = nn.ModuleList(block(config) for _ in range(config.n_layers))
        self.norm = NormLayer(config) if config.final_norm else None

    def forward(
        self,
        embed: Stream,
        layout: SequencePacking,
        *,
        context: BlockInputs,
        custom_mask: Bool[Tensor, "*batch query key"] | None = None,
        tape: AnyTape = SILENT,
        layer_tape: AnyTape = SILENT,
        cache: Cache | None = None,
    ) -> Stream:
        """Run the stack. `tape` records activations of the stack, `layer_tape` those of its layers."""
        x = context.dropout("embed", self.positions(embed, layout, tape))
        context = self._inputs(x, layout, context, custom_mask, cache)
        for index, block in enumerate(self.blocks):
            self_cache = None if cache is None else cache.self_attention[index]
            cross_cache = None if cache is None else cache.cross_attention[index]
            x = block(x, context, layer_tape.at(str(index)), self_cache, cross_cache)
        if cache is not None:
            cache.length += x.shape[1]
        return x if self.norm is None else tape("final_norm", self.norm(x))

    def _inputs(
        self, x: Tensor, layout: SequencePacking, context: BlockInputs, custom_mask: Tensor | None, cache: Cache | None
    ) -> BlockInputs:
        """Compute the mask, rotation angles and score bias once for all layers."""
        config, n_query = self.config, x.shape[1]
        n_key = n_query if cache is None else cache.length + n_query
        keys = layout if cache is None else SequencePacking.plain(n_key, x.device)
        mask = combine(
            layout,
            keys,
            n_query=n_query,
            n_key=n_key,
            causal=self.causal,
            see_self=config.see_self,
            custom_mask=custom_mask,
            component=config.mask_component.allowed(config, n_query, n_key, x.device),
            device=x.device,
        )
        angles = self.positions.angles(layout.positions, x.dtype)
        position_bias = self.positions.bias(layout.positions, keys.positions, x.dtype, causal=self.causal)
        return replace(context, mask=mask, angles=angles, position_bias=position_bias)


@dataclass(frozen=True)
class BlockInputs:
    """The inputs of every layer of a stack besides the residual stream, the same for all layers."""

    mask: LayerMask = NO_MASK
    angles: Float[Tensor, "*batch pos half"] | None = None
    position_bias: Float[Tensor, "#batch head query key"] | None = None
    memory: Float[Tensor, "batch source d_model"] | None = None
    cross_mask: LayerMask = NO_MASK
    dropout: Dropout = NO_DROPOUT

    def attend(self, attention: Attention, x: Tensor, tape: AnyTape, cache: LayerCache | None) -> Stream:
        """Compute self-attention: queries, keys and values from the stream itself."""
        out = attention(
            x,
            mask=self.mask,
            angles=self.angles,
            position_bias=self.position_bias,
            tape=tape,
            dropout=self.dropout,
            cache=cache,
        )
        return self.dropout("residual", out)

    def attend_across(self, attention: Attention, x: Tensor, tape: AnyTape, cache: LayerCache | None) -> Stream:
        """Compute cross-attention: queries from the decoder, keys and values from the encoder's output (§3.2.3)."""
        out = attention(x, self.memory, mask=self.cross_mask, tape=tape, dropout=self.dropout, cache=cache)
        return self.dropout("residual", out)


class Layer(nn.Module):
    """Base of both kinds of layer: named attentions and a feed-forward network, each with a residual connection."""

    def __init__(self, config: ModelConfig, *attentions: str) -> None:
        super().__init__()
        residual = RESIDUALS[config.norm]
        for name in attentions:
            self.add_module(name, Attention(config))
            self.add_module(f"{name}_residual", residual(config))
        self.ffn = FeedForwardLayer(config) if config.d_ff else None
        self.ffn_residual = residual(config) if config.d_ff else None

    def feed_forward(self, x: Tensor, context: BlockInputs, tape: AnyTape) -> Stream:
        """Return the stream after the feed-forward network, if there is one."""
        ffn = self.ffn
        if ffn is None or self.ffn_residual is None:
            return x
        at, dropout = tape.at("ffn"), context.dropout
        return self.ffn_residual(x, lambda y: dropout("residual", ffn(y, tape=at, dropout=dropout)))


class Block(Layer):
    """Self-attention, then feed-forward: an encoder's layer, and the layer of a decoder-only model."""

    attn: Attention
    attn_residual: Residual

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, "attn")

    def forward(
        self,
        x: Stream,
        context: BlockInputs,
        tape: AnyTape = SILENT,
        cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
    ) -> Stream:
        x = tape("resid_pre", x)
        x = self.attn_residual(x, lambda y: context.attend(self.attn, y, tape.at("attn"), cache))
        x = self.feed_forward(tape("resid_mid", x), context, tape)
        return tape("resid_post", x)


class CrossBlock(Layer):
    """Self-attention, cross-attention to the encoder's output, then feed-forward: a decoder layer of an encoder-decoder."""

    self_attn: Attention
    self_attn_residual: Residual
    cross_attn: Attention
    cross_attn_residual: Residual

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, "self_attn", "cross_attn")

    def forward(
        self,
        x: Stream,
        context: BlockInputs,
        tape: AnyTape = SILENT,
        cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
    ) -> Stream:
        x, at = tape("resid_pre", x), tape.at("self_attn")
        x = self.self_attn_residual(x, lambda y: context.attend(self.self_attn, y, at, cache))
        x, across = tape("resid_mid", x), tape.at("cross_attn")
        x = self.cross_attn_residual(x, lambda y: context.attend_across(self.cross_attn, y, across, cross_cache))
        x = self.feed_forward(tape("resid_cross", x), context, tape)
        return tape("resid_post", x)


class Residual(nn.Module):
    """Base of the residual connections: a sum, and a norm unless `norm` is "none"."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.norm != "none":
            self.norm = NormLayer(config)

    def add(self, x: Stream, result: Stream) -> Stream:
        """Add a sublayer's output to the stream."""
        return x + result


class PostNorm(Residual):
    """Norm(x + f(x))."""

    def forward(self, x: Stream, f: Sublayer) -> Stream:
        return self.norm(self.add(x, f(x)))


class PreNorm(Residual):
    """x + f(Norm(x))."""

    def forward(self, x: Stream, f: Sublayer) -> Stream:
        return self.add(x, f(self.norm(x)))


class NoNorm(Residual):
    """x + f(x)."""

    def forward(self, x: Stream, f: Sublayer) -> Stream:
        return self.add(x, f(x))


RESIDUALS = {"post": PostNorm, "pre": PreNorm, "none": NoNorm}
