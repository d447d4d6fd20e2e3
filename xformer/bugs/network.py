"""Bugs outside of attention: residuals, positions, output, feed-forward layers, weights, and the training loop."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from xformer.bugs.bug import Bug, replace_modules
from xformer.config import ModelConfig
from xformer.layers.attention import Attention
from xformer.layers.embedding import AddPositions, AnyEmbedding, Unembedding
from xformer.layers.feed_forward import FeedForward
from xformer.layers.masks import Layout
from xformer.layers.stack import Block, CrossBlock, PreNorm, Residual, Sublayer, Vectors
from xformer.model import Transformer
from xformer.tape import SILENT, AnyTape


class NoResidual(Residual):
    """f(x) in place of x + f(x)."""

    def add(self, x: Vectors, result: Vectors) -> Vectors:
        return result


class Lost(Residual):
    """x in place of x + f(x): f is computed, and its result thrown away."""

    def add(self, x: Vectors, result: Vectors) -> Vectors:
        return x


class NormalisedStream(PreNorm):
    """n + f(n) with n = LayerNorm(x): x = norm(x); x = x + f(x)."""

    def forward(self, x: Vectors, f: Sublayer) -> Vectors:
        x = self.norm(x)
        return self.add(x, f(x))


RESIDUAL_BUGS = (
    Bug(
        "no-residual",
        "No residual connection",
        "A sublayer's result replaces the stream instead of being added to it.",
        "first versions of a block, x = layer(x), before the paper's “Add & Norm” is noticed",
        "x ← LayerNorm(f(x))   (pre-norm: f(LayerNorm(x)))",
        "x ← LayerNorm(x + f(x))   (pre-norm: x + f(LayerNorm(x)))",
        "The tokens' vectors become alike layer by layer, and the deeper the model the less it learns.",
        "no more than layers",
        lambda model: replace_modules(model, Residual, NoResidual),
        decides=("what the residual adds up",),
    ),
    Bug(
        "lost-output",
        "A sublayer's result lost",
        "The attention is called and its result not used: self.attn(x) stands where x = self.attn(x) was meant.",
        "statements without an assignment, which Python runs without a word",
        "x ← LayerNorm(x)   (pre-norm: x)",
        "x ← LayerNorm(x + f(x))   (pre-norm: x + f(LayerNorm(x)))",
        "The patterns look healthy and change nothing: each position's answer depends on its own token alone.",
        "no more than attention",
        lambda model: replace_modules(model, Residual, Lost, "attn_residual"),
        decides=("what the residual adds up",),
    ),
    Bug(
        "residual-after-norm",
        "The residual starts after the norm",
        "Pre-norm is written x = norm(x); x = x + f(x), so the stream itself is normalised at every sublayer.",
        "a widely read article's first listing of a pre-norm block",
        "n = LayerNorm(x),  x ← n + f(n)",
        "x ← x + f(LayerNorm(x))",
        "It still learns; but the stream's length starts anew at every sublayer, and no untouched path leads through.",
        'norm="pre"',
        lambda model: replace_modules(model, PreNorm, NormalisedStream),
        lambda config: config.norm == "pre",
        decides=("what the residual adds up",),
    ),
)


class TokensAlone(AddPositions):
    """embed, with nothing added to it, no query or key turned, and no score changed; a learned table is there and not used."""

    def forward(
        self, embed: Float[Tensor, "batch pos d_model"], layout: Layout, tape: AnyTape = SILENT
    ) -> Float[Tensor, "batch pos d_model"]:
        return tape("embed", embed)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> None:
        return None

    def bias(self, queries: Tensor, keys: Tensor, dtype: torch.dtype, *, causal: bool) -> None:
        return None


class Probabilities(Unembedding):
    """softmax(x W + b), before a cross-entropy that takes the softmax itself."""

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], embedding: AnyEmbedding
    ) -> Float[Tensor, "batch pos vocab"]:
        return super().forward(x, embedding).softmax(dim=-1)


END_BUGS = (
    Bug(
        "no-positions",
        "No positions",
        "Nothing tells the model where a token stands: the position encoding is computed and not added, or left out.",
        "blocks rebuilt from a diagram of the layers alone, and forward methods that forget the sum",
        "x = E[token]",
        "x = E[token] + P[position]   (rotary, ALiBi, T5: inside the attention)",
        "Equal tokens have equal rows and columns in every pattern; an encoder gives the same answers in any order.",
        "positions other than none",
        lambda model: replace_modules(model, AddPositions, TokensAlone),
        lambda config: config.position_kind.acts_on != "nothing",
    ),
    Bug(
        "softmax-before-loss",
        "Softmax before the loss",
        "The model ends in a softmax, and the cross-entropy takes another one.",
        "models that keep the softmax of the paper's figure, together with a loss that expects raw scores",
        "loss = −log softmax(softmax(logits))",
        "loss = −log softmax(logits)",
        "Predictions rank as before, but no probability can come near 1: the loss gets stuck high above 0.",
        "no more than an output",
        lambda model: replace_modules(model, Unembedding, Probabilities),
    ),
)

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
        "Weights are drawn from N(0, 1) regardless of the width of the layer.",
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


class OtherHalfGates(FeedForward):
    """(x W_gate) ∘ SiLU(x W₁)."""

    def hidden(self, x: Float[Tensor, "batch pos d_model"], tape: AnyTape) -> Float[Tensor, "batch pos d_ff"]:
        pre = tape("pre", F.linear(x, self.weight_gate, self.bias_gate))
        up = tape("up", F.linear(x, self.weight_in, self.bias_in))
        return pre * tape("gate", self.activation(up))


class TiledGroups(Attention):
    """Head h gets the keys and values of group h mod n_kv_heads."""

    def share(self, x: Float[Tensor, "batch kv_head pos width"]) -> Float[Tensor, "batch head pos width"]:
        return x.repeat(1, self.n_heads // x.shape[1], 1, 1)


COMPONENT_BUGS = (
    Bug(
        "gate-and-up-swapped",
        "Gate and up projection swapped",
        "The nonlinearity is applied to the wrong half of the fused gate and up projection.",
        "up, gate = x.chunk(2): which half comes first differs between code bases",
        "(x W_gate ∘ SiLU(x W₁)) W₂",
        "(SiLU(x W_gate) ∘ x W₁) W₂",
        "With loaded weights the predictions are lost; trained from the start it learns all the same.",
        "a gated feed-forward layer",
        lambda model: replace_modules(model, FeedForward, OtherHalfGates),
        lambda config: config.d_ff > 0 and config.ffn_component.is_gated,
    ),
    Bug(
        "kv-heads-tiled",
        "Key/value heads tiled",
        "The shared keys and values are repeated as a whole (0 1 0 1) where each should be repeated in place (0 0 1 1).",
        "k.repeat(1, n, 1, 1) in the place of k.repeat_interleave(n, dim=1)",
        "head h uses group h mod n_kv_heads",
        "head h uses group ⌊h · n_kv_heads / n_heads⌋",
        "Most heads compare their queries with another group’s keys: patterns that no longer mean anything.",
        "at least two key/value heads, each shared by several heads",
        lambda model: replace_modules(model, Attention, TiledGroups),
        lambda config: 1 < config.kv_component.n_kv_heads(config) < config.n_heads,
    ),
)

TRAINING_BUGS = (
    Bug(
        "no-clipping",
        "No gradient clipping",
        "Gradients are used at any length, and one bad batch throws the weights far away.",
        "loops that go straight from loss.backward() to optimizer.step(); the same author warns of it afterwards",
        "w ← w − η · Adam(g)",
        "w ← w − η · Adam(g · min(1, c / ‖g‖))",
        "The gradient's length in the curve: what clipping would have cut off. At a high learning rate the loss jumps.",
        "nothing but training",
        copy.deepcopy,
        shows="in training",
        train_changes=(("clip_norm", 0.0),),
    ),
    Bug(
        "loss-on-padding",
        "The loss counts padding",
        "Padded cells are scored like real ones, so saying “padding” at padding is most of what is learned first.",
        "a cross-entropy without ignore_index, on targets padded with zeros",
        "loss = mean over all cells of −log p(label)",
        "loss = mean over real tokens of −log p(label)",
        "A loss that looks good early: most of it is padding, answered rightly.",
        "nothing but training",
        copy.deepcopy,
        shows="in training",
        counts_padding=True,
    ),
)
