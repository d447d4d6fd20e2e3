"""Bugs outside attention: residuals, positions, output, feed-forward layers, weights, and the training loop."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.doctor.faults.bug import bug, exchange
from xformer.layers.attention import Attention
from xformer.layers.embedding import AddPositions, AnyEmbedding, Stream, Unembedding
from xformer.layers.feed_forward import FeedForwardLayer
from xformer.layers.masks import SequencePacking
from xformer.layers.stack import Layer, PreNorm, Residual, Sublayer
from xformer.model import Transformer
from xformer.tape import SILENT, AnyTape


class NoResidual(Residual):
    """f(x) in place of x + f(x)."""

    def add(self, x: Stream, result: Stream) -> Stream:
        return result


class Lost(Residual):
    """x in place of x + f(x): f is computed, and its result discarded."""

    def add(self, x: Stream, result: Stream) -> Stream:
        return x


class NormalisedStream(PreNorm):
    """n + f(n) with n = LayerNorm(x): x = norm(x); x = x + f(x)."""

    def forward(self, x: Stream, f: Sublayer) -> Stream:
        x = self.norm(x)
        return self.add(x, f(x))


RESIDUAL_BUGS = (
    bug("no_residual", exchange(Residual, NoResidual)),
    bug("lost_output", exchange(Residual, Lost, "attn_residual")),
    bug("residual_after_norm", exchange(PreNorm, NormalisedStream), lambda config: config.norm == "pre"),
)


class TokensAlone(AddPositions):
    """Embeddings without positions: nothing is added, rotated or biased, and a learned table goes unused."""

    def forward(self, embed: Stream, layout: SequencePacking, tape: AnyTape = SILENT) -> Stream:
        return tape("embed", embed)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> None:
        return None

    def bias(self, queries: Tensor, keys: Tensor, dtype: torch.dtype, *, causal: bool) -> None:
        return None


class Probabilities(Unembedding):
    """softmax(x W + b), before a cross-entropy that applies the softmax itself."""

    def forward(self, x: Stream, embedding: AnyEmbedding) -> Float[Tensor, "batch pos vocab"]:
        return super().forward(x, embedding).softmax(dim=-1)


END_BUGS = (
    bug("no_positions", exchange(AddPositions, TokensAlone), lambda config: config.position_kind.acts_on != "nothing"),
    bug("softmax_before_loss", exchange(Unembedding, Probabilities)),
)

DEAD_BIAS = -100.0
"""Far below any pre-activation that a normalised stream produces."""


def _block_matrices(model: Transformer) -> list[nn.Parameter]:
    layers = [layer for layer in model.modules() if isinstance(layer, Attention | FeedForwardLayer)]
    return [parameter for layer in layers for parameter in layer.parameters() if parameter.dim() == 2]


@torch.no_grad()
def redrawn(model: Transformer, std: float, seed: int = 0) -> Transformer:
    """Return a copy whose attention and feed-forward matrices are reinitialised from N(0, std²)."""
    changed = copy.deepcopy(model)
    draw = torch.Generator().manual_seed(seed)
    for matrix in _block_matrices(changed):
        matrix.copy_(torch.empty(matrix.shape).normal_(0.0, std, generator=draw))
    return changed


@torch.no_grad()
def with_equal_heads(model: Transformer) -> Transformer:
    """Return a copy in which every head has the weights of the first head of its layer."""
    changed = copy.deepcopy(model)
    for layer in changed.modules():
        if isinstance(layer, Attention):
            views = (layer.W_Q, layer.W_K, layer.W_V, layer.W_O, layer.b_Q, layer.b_K, layer.b_V)
            for heads in views:
                if heads is not None:
                    heads[1:] = heads[:1].clone()
    return changed


@torch.no_grad()
def with_cloned_layers(model: Transformer) -> Transformer:
    """Return a copy in which every layer of a stack has the weights of the first layer."""
    changed = copy.deepcopy(model)
    for stack in (changed.encoder, changed.decoder):
        if stack is not None:
            for block in list(stack.blocks)[1:]:
                block.load_state_dict(stack.blocks[0].state_dict())
    return changed


@torch.no_grad()
def with_dead_neurons(model: Transformer) -> Transformer:
    """Return a copy whose feed-forward biases are so low that no ReLU is ever active."""
    changed = copy.deepcopy(model)
    for block in changed.modules():
        if isinstance(block, Layer) and block.ffn is not None and block.ffn.bias_in is not None:
            block.ffn.bias_in.fill_(DEAD_BIAS)
    return changed


def _relus(config: ModelConfig) -> bool:
    return config.d_ff > 0 and config.ffn_bias and config.ffn_component.closes


WEIGHT_BUGS = (
    bug("init_too_large", lambda model: redrawn(model, 1.0), shows="when fresh"),
    bug("init_too_small", lambda model: redrawn(model, 0.001), shows="when fresh"),
    bug("identical_heads", with_equal_heads, lambda config: config.n_heads > 1),
    bug("cloned_layers", with_cloned_layers, lambda config: config.n_layers > 1, shows="when fresh"),
    bug("dead_neurons", with_dead_neurons, _relus),
)


class OtherHalfGates(FeedForwardLayer):
    """(x W_gate) ∘ SiLU(x W₁)."""

    def hidden(self, x: Stream, tape: AnyTape) -> Float[Tensor, "batch pos d_ff"]:
        pre = tape("pre", F.linear(x, self.weight_gate, self.bias_gate))
        up = tape("up", F.linear(x, self.weight_in, self.bias_in))
        return pre * tape("gate", self.activation(up))


class TiledGroups(Attention):
    """Head h gets the keys and values of group h mod n_kv_heads."""

    def share(self, x: Float[Tensor, "batch kv_head pos width"]) -> Float[Tensor, "batch head pos width"]:
        return x.repeat(1, self.n_heads // x.shape[1], 1, 1)


COMPONENT_BUGS = (
    bug(
        "gate_and_up_swapped",
        exchange(FeedForwardLayer, OtherHalfGates),
        lambda config: config.d_ff > 0 and config.ffn_component.is_gated,
    ),
    bug(
        "kv_heads_tiled",
        exchange(Attention, TiledGroups),
        lambda config: 1 < config.kv_component.n_kv_heads(config) < config.n_heads,
    ),
)

TRAINING_BUGS = (
    bug("no_clipping", copy.deepcopy, shows="in training", train_changes=(("clip_norm", 0.0),)),
    bug("loss_on_padding", copy.deepcopy, shows="in training", counts_padding=True),
)
