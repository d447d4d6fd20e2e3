"""One layer of a stack: attention and feed-forward, each inside a residual connection (Vaswani et al. 2017, §3.1)."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.layers.attention import Attention, LayerCache
from xformer.layers.dropout import NO_DROPOUT, Dropout
from xformer.layers.feed_forward import FeedForward
from xformer.layers.masks import NO_MASK, Mask
from xformer.layers.residual import RESIDUALS
from xformer.tape import SILENT, AnyTape


@dataclass(frozen=True)
class BlockInputs:
    """What every layer of a stack needs besides the residual stream: the same for all of them."""

    mask: Mask = NO_MASK
    angles: Float[Tensor, "*batch pos half"] | None = None
    position_bias: Float[Tensor, "#batch head query key"] | None = None
    memory: Float[Tensor, "batch source d_model"] | None = None
    cross_mask: Mask = NO_MASK
    dropout: Dropout = NO_DROPOUT


class Block(nn.Module):
    """Self-attention, then feed-forward: an encoder's layer, and the layer of a decoder-only model."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        residual = RESIDUALS[config.norm]
        self.attn = Attention(config)
        self.attn_residual = residual(config)
        self.ffn = FeedForward(config) if config.d_ff else None
        self.ffn_residual = residual(config) if config.d_ff else None

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        context: BlockInputs,
        tape: AnyTape = SILENT,
        cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        x = tape("resid_pre", x)
        x = self.attn_residual(x, lambda y: self_attention(self.attn, y, context, tape.at("attn"), cache))
        x = tape("resid_mid", x)
        x = feed_forward(self, x, context, tape)
        return tape("resid_post", x)


class CrossBlock(nn.Module):
    """Self-attention, cross-attention to the encoder's output, then feed-forward: a decoder layer of an encoder-decoder."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        residual = RESIDUALS[config.norm]
        self.self_attn = Attention(config)
        self.self_attn_residual = residual(config)
        self.cross_attn = Attention(config)
        self.cross_attn_residual = residual(config)
        self.ffn = FeedForward(config) if config.d_ff else None
        self.ffn_residual = residual(config) if config.d_ff else None

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        context: BlockInputs,
        tape: AnyTape = SILENT,
        cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        x = tape("resid_pre", x)
        x = self.self_attn_residual(
            x, lambda y: self_attention(self.self_attn, y, context, tape.at("self_attn"), cache)
        )
        x = tape("resid_mid", x)
        x = self.cross_attn_residual(
            x, lambda y: cross_attention(self.cross_attn, y, context, tape.at("cross_attn"), cross_cache)
        )
        x = tape("resid_cross", x)
        x = feed_forward(self, x, context, tape)
        return tape("resid_post", x)


def self_attention(
    attention: Attention, x: Tensor, context: BlockInputs, tape: AnyTape, cache: LayerCache | None
) -> Float[Tensor, "batch query d_model"]:
    """Queries, keys and values all from the stream itself."""
    out = attention(
        x,
        mask=context.mask,
        angles=context.angles,
        position_bias=context.position_bias,
        tape=tape,
        dropout=context.dropout,
        cache=cache,
    )
    return context.dropout("residual", out)


def cross_attention(
    attention: Attention, x: Tensor, context: BlockInputs, tape: AnyTape, cache: LayerCache | None
) -> Float[Tensor, "batch query d_model"]:
    """Queries from the decoder, keys and values from the encoder's output (§3.2.3)."""
    out = attention(x, context.memory, mask=context.cross_mask, tape=tape, dropout=context.dropout, cache=cache)
    return context.dropout("residual", out)


def feed_forward(
    block: Block | CrossBlock, x: Tensor, context: BlockInputs, tape: AnyTape
) -> Float[Tensor, "batch pos d_model"]:
    """The feed-forward sublayer in its residual connection, where the block has one."""
    ffn = block.ffn
    if ffn is None or block.ffn_residual is None:
        return x
    tape_ffn = tape.at("ffn")
    return block.ffn_residual(x, lambda y: context.dropout("residual", ffn(y, tape=tape_ffn, dropout=context.dropout)))
