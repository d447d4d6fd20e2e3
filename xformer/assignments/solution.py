"""Ten assignments that build one GPT. Write each function and class; `python -m xformer assignment check .` checks them.

Every tensor keeps its data type, no function changes its arguments, and gradients must flow. Write in any style.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

# ── 1. softmax ──


def softmax(scores, dim=-1):
    """Exponentials that add up to 1 along `dim`: exp(scores_i) / Σ_j exp(scores_j).

    exp(500) is infinite in float32. Subtracting the largest score of each row changes no result, and avoids that.

    Args:
        scores: Any shape. A score of −inf gives a weight of 0.
        dim: The axis.

    Returns:
        The weights, with the shape and the data type of the scores.
    """
    raise NotImplementedError


# ── 2. attention ──


def attention(q, k, v, mask=None):
    """Scaled dot-product attention: weights = softmax(q·kᵀ / √d_head), output = weights·v.

    Args:
        q: [batch, head, query, d_head]
        k: [batch, head, key, d_head]
        v: [batch, head, key, d_value]
        mask: bool, broadcast to [batch, head, query, key]; True: may be attended to. Other keys have a weight of 0. A query
            that may attend to no key gets any finite numbers, but not NaN.

    Returns:
        (output [batch, head, query, d_value], weights [batch, head, query, key])
    """
    raise NotImplementedError


# ── 3. causal_mask ──


def causal_mask(n):
    """Which keys a query may attend to: itself and all earlier ones.

    Returns:
        bool [query, key], both `n` long; True: may be attended to.
    """
    raise NotImplementedError


# ── 4. padding_mask ──


def padding_mask(lengths, n):
    """Which keys are tokens: the first `lengths[b]` of text b. The others are padding.

    Args:
        lengths: int [batch]
        n: The number of positions.

    Returns:
        bool [batch, 1, 1, key]; True: may be attended to.
    """
    raise NotImplementedError


# ── 5. split_and_merge_heads ──


def split_heads(x, n_heads):
    """Give each head its part of the features: head h gets features h·d_head … (h+1)·d_head − 1 of every position.

    Args:
        x: [batch, pos, d_model]
        n_heads: The number of heads; d_head = d_model / n_heads.

    Returns:
        [batch, head, pos, d_head]
    """
    raise NotImplementedError


def merge_heads(x):
    """The inverse of `split_heads`: join the features of all heads at each position.

    Args:
        x: [batch, head, pos, d_head]

    Returns:
        [batch, pos, d_model]
    """
    raise NotImplementedError


# ── 6. multi_head_attention ──


class MultiHeadAttention(nn.Module):
    """Project x to queries, keys and values, attend in each head, merge the heads, and project the result."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        """x [batch, pos, d_model], mask as in `attention` → [batch, pos, d_model]"""
        raise NotImplementedError


# ── 7. positions ──


def sinusoidal_positions(n, d_model):
    """Sines and cosines of the position p, in pairs of features i = 0 … d_model/2 − 1 (Vaswani et al. 2017, §3.5).

    table[p, 2i] = sin(p / 10000^(2i / d_model)), table[p, 2i + 1] = cos(p / 10000^(2i / d_model))

    Returns:
        float32 [pos, d_model]; the first position is 0.
    """
    raise NotImplementedError


def rotate(x, positions, base=10000.0):
    """Rotary embedding: rotate pairs of features by an angle that grows with the position (Su et al. 2021).

    The pair i = 0 … d_head/2 − 1 has the features a = x[i] and b = x[i + d_head/2], as in Llama. With the angle
    θ = p / base^(2i / d_head), it becomes a·cos θ − b·sin θ and a·sin θ + b·cos θ.

    Args:
        x: [batch, head, pos, d_head]; it may have fewer or more axes in front.
        positions: int [pos], the position p of each row.
        base: The base of the wavelengths.

    Returns:
        A tensor of the shape of x.
    """
    raise NotImplementedError


# ── 8. layer_norm_and_block ──


class LayerNorm(nn.Module):
    """(x − mean) / √(variance + eps) · weight + bias, where mean and variance are over the features of one position."""

    def __init__(self, d_model, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        """x [..., d_model] → the same shape. The variance is the mean square, divided by d_model and not by d_model − 1."""
        raise NotImplementedError


class Block(nn.Module):
    """x = x + attention(norm1(x)), then x = x + down(gelu(up(norm2(x))))."""

    def __init__(self, d_model, n_heads, d_ff):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, n_heads)
        self.norm1 = LayerNorm(d_model)
        self.norm2 = LayerNorm(d_model)
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)

    def forward(self, x, mask=None):
        """x [batch, pos, d_model], mask as in `attention` → [batch, pos, d_model]"""
        raise NotImplementedError


# ── 9. loss ──


def next_token_loss(logits, tokens, ignore_index=None):
    """Mean cross-entropy, where the output at position t predicts token t + 1. The last output predicts nothing.

    Args:
        logits: [batch, pos, vocab]
        tokens: int [batch, pos]
        ignore_index: The token of padding, which is not predicted and does not count; None if there is none.

    Returns:
        A scalar: the mean over all predicted tokens of the batch.
    """
    raise NotImplementedError


# ── 10. cache_and_decoding ──


class CachedAttention(MultiHeadAttention):
    """Causal attention that reads a text in pieces, and keeps the keys and values of the earlier ones."""

    def forward(self, x, cache=None):
        """Attend from the new tokens to all cached tokens, and to the new ones up to each itself.

        Args:
            x: The new tokens, [batch, pos, d_model].
            cache: None for the first piece, then (keys, values) of all earlier tokens, each [batch, head, key, d_head].

        Returns:
            (output [batch, pos, d_model], the new cache)
        """
        raise NotImplementedError


def generate(model, tokens, n_new):
    """Append the likeliest next token, `n_new` times.

    Args:
        model: A function from tokens [batch, pos] to logits [batch, pos, vocab].
        tokens: int [batch, pos]
        n_new: The number of tokens to append.

    Returns:
        [batch, pos + n_new]
    """
    raise NotImplementedError


# ── the model: given ──


class GPT(nn.Module):
    """Your parts, put together. `python -m xformer assignment check . --train` trains it."""

    def __init__(self, vocab_size, d_model=48, n_heads=3, n_layers=2, d_ff=96):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.blocks = nn.ModuleList(Block(d_model, n_heads, d_ff) for _ in range(n_layers))
        self.norm = LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        """tokens [batch, pos] → logits [batch, pos, vocab]"""
        n = tokens.shape[1]
        x = self.embed(tokens) + sinusoidal_positions(n, self.embed.embedding_dim)
        for block in self.blocks:
            x = block(x, causal_mask(n))
        return self.head(self.norm(x))
