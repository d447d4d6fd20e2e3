"""Bugs of the weights themselves: drawn too large or too small, copied, or driven where no gradient comes back."""

from __future__ import annotations

import copy

import torch
from torch import nn

from xformer.bugs.bug import Bug
from xformer.config import ModelConfig
from xformer.layers.attention import Attention
from xformer.layers.block import Block, CrossBlock
from xformer.layers.feed_forward import FeedForward
from xformer.model import Transformer

DEAD_BIAS = -100.0
"""Far below anything that a normalised stream makes of a neuron's input."""


def _block_matrices(model: Transformer) -> list[nn.Parameter]:
    layers = [layer for layer in model.modules() if isinstance(layer, Attention | FeedForward)]
    return [parameter for layer in layers for parameter in layer.parameters() if parameter.dim() == 2]


@torch.no_grad()
def redrawn(model: Transformer, std: float, seed: int = 0) -> Transformer:
    """A copy whose attention and feed-forward matrices are drawn anew from N(0, std²)."""
    changed = copy.deepcopy(model)
    draw = torch.Generator().manual_seed(seed)
    for matrix in _block_matrices(changed):
        matrix.copy_(torch.empty(matrix.shape).normal_(0.0, std, generator=draw))
    return changed


@torch.no_grad()
def with_equal_heads(model: Transformer) -> Transformer:
    """A copy in which every head has the weights of the first one of its layer."""
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
    """A copy in which every layer of a stack has the weights of the first one."""
    changed = copy.deepcopy(model)
    for stack in (changed.encoder, changed.decoder):
        if stack is not None:
            for block in list(stack.blocks)[1:]:
                block.load_state_dict(stack.blocks[0].state_dict())
    return changed


@torch.no_grad()
def with_dead_neurons(model: Transformer) -> Transformer:
    """A copy whose feed-forward biases have been driven so low that no ReLU ever opens."""
    changed = copy.deepcopy(model)
    for block in changed.modules():
        if isinstance(block, Block | CrossBlock) and block.ffn is not None and block.ffn.bias_in is not None:
            block.ffn.bias_in.fill_(DEAD_BIAS)
    return changed


def _relus(config: ModelConfig) -> bool:
    return config.d_ff > 0 and config.ffn_bias and config.ffn_component.closes


WEIGHT_BUGS = (
    Bug(
        "init-too-large",
        "Weights drawn too large",
        "Weights are drawn from N(0, 1), whatever the width of the layer.",
        "torch.randn as a weight matrix, as first sketches of attention do",
        "W ~ N(0, 1), so each layer multiplies the spread by √d",
        "W ~ U(−b, b) with b = √(6 / (fan_in + fan_out))",
        "Rows whose largest weight is far above that of the right model: queries that look at few keys before they learned to.",
        "no more than weights; it is about fresh ones, so a trained model's are drawn anew",
        lambda model: redrawn(model, 1.0),
        shows="when fresh",
        decides=("how the weights are drawn",),
        undoes=("identical-heads", "cloned-layers"),
    ),
    Bug(
        "init-too-small",
        "Weights drawn too small",
        "Weights are drawn from N(0, 0.001²), so that nothing gets through.",
        "“small random numbers” taken literally; one author found that without Xavier's scale nothing converged",
        "W ~ N(0, 0.001²)",
        "W ~ U(−b, b) with b = √(6 / (fan_in + fan_out))",
        "All patterns are uniform to the last digit, and no sublayer adds anything to the stream.",
        "no more than weights; it is about fresh ones, so a trained model's are drawn anew",
        lambda model: redrawn(model, 0.001),
        shows="when fresh",
        decides=("how the weights are drawn",),
        undoes=("identical-heads", "cloned-layers"),
    ),
    Bug(
        "identical-heads",
        "All heads start alike",
        "All heads get the same first weights, so they receive the same gradient and stay one head for ever.",
        "one head's weights built once and repeated for the others",
        "W_Q¹ = W_Q² = … (and W_K, W_V, W_O)",
        "each head's weights drawn on their own",
        "All thumbnails of a layer are the same picture, before and after training.",
        "at least two heads",
        with_equal_heads,
        lambda config: config.n_heads > 1,
    ),
    Bug(
        "cloned-layers",
        "All layers start alike",
        "One layer is built, initialised and deep-copied n times, so all start with the same weights.",
        "the helper clones(module, N) of a well-known annotated implementation, when initialised before the copying",
        "W of layer 1 = W of layer 2 = …",
        "each layer's weights drawn on their own",
        "The layers do the same to what they are given; training parts them, since their gradients differ.",
        "at least two layers",
        with_cloned_layers,
        lambda config: config.n_layers > 1,
        shows="when fresh",
    ),
    Bug(
        "dead-neurons",
        "Dead ReLUs",
        "A far too large step has driven the feed-forward biases so low that no neuron ever opens again.",
        "a learning rate without warm-up or clipping: one bad batch is enough, since a closed ReLU passes no gradient back",
        "ReLU(x W₁ − 100) = 0 for every x",
        "ReLU(x W₁ + b₁), open for about half of all inputs at first",
        "The feed-forward layer adds the same vector to every token, and its weights never change again.",
        'a feed-forward layer with biases and activation="relu"',
        with_dead_neurons,
        _relus,
    ),
)
