"""Bugs of who is asked and who answers: queries, keys and values taken from the wrong place, or cut up wrongly."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from xformer.bugs.bug import Bug
from xformer.bugs.replace_modules import replace_modules
from xformer.config import ModelConfig
from xformer.errors import InputError
from xformer.layers.attention import Attention, Scores
from xformer.layers.cache import LayerCache
from xformer.layers.masks import Mask
from xformer.tape import AnyTape


class KeysAsValues(Attention):
    """Called as attention(q, v, k): values are compared and keys are mixed."""

    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Scores:
        return super().score(q, v, k)

    def mix(self, pattern: Scores, k: Tensor, v: Tensor) -> Tensor:
        return super().mix(pattern, v, k)


class OfEqualLength(Attention):
    """Cross-attention that asks one stream as if it were the other, which only works where both are equally long."""

    def streams(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What q, k and v are made from."""
        raise NotImplementedError

    def project(self, x: Tensor, memory: Tensor | None, cache: LayerCache | None) -> tuple[Tensor, Tensor, Tensor]:
        if memory is None:
            return super().project(x, memory, cache)
        if x.shape[1] != memory.shape[1]:
            raise InputError(
                f"With this bug source and target must be equally long, got {memory.shape[1]} and {x.shape[1]} tokens; "
                "with other lengths the program stops with an error, and the bug is found."
            )
        weights = self.weight_in.split(self.rows)
        biases = (None, None, None) if self.bias_in is None else self.bias_in.split(self.rows)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip(self.streams(x, memory), weights, biases, strict=True))
        return self.split(q), self.split(k, self.n_kv_heads), self.split(v, self.n_kv_heads)


class AskedByMemory(OfEqualLength):
    """Q and K from the memory, V from the target."""

    def streams(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return memory, memory, x


class RolesExchanged(OfEqualLength):
    """Q from the memory, K and V from the target."""

    def streams(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return memory, x, x


class MemoryLost(Attention):
    """The target attends to itself, without any mask: the call with the memory was made and its result not returned."""

    def project(self, x: Tensor, memory: Tensor | None, cache: LayerCache | None) -> tuple[Tensor, Tensor, Tensor]:
        return super().project(x, None, None)

    def allow(self, mask: Mask, scores: Tensor, tape: AnyTape) -> Mask:
        return super().allow(Mask(is_ordered=False), scores, tape)


class SplitByView(Attention):
    """view(batch, head, pos, width) straight from [batch, pos, head·width], without the transpose."""

    def split(self, x: Tensor, n_heads: int | None = None) -> Tensor:
        batch, n_pos, features = x.shape
        n_heads = n_heads or self.n_heads
        return x.reshape(batch, n_heads, n_pos, features // n_heads)


def _square(config: ModelConfig) -> bool:
    return config.d_head == config.d_value


def _pair(config: ModelConfig) -> bool:
    return config.architecture == "encoder-decoder"


_CROSS = "softmax(Q Kᵀ / √d_head) V with Q = X W_Q, K = M W_K, V = M W_V (X: target, M: memory)"

ROLE_BUGS = (
    Bug(
        "keys-values-swapped",
        "Keys and values swapped",
        "The attention function is called with its last two arguments exchanged, attention(q, v, k).",
        "functions with three tensors of one shape as positional arguments: nothing complains",
        "softmax(Q Vᵀ / √d_head) K",
        "softmax(Q Kᵀ / √d_head) V",
        "Trained from the start it learns all the same, since the names alone are exchanged; with loaded weights it is lost.",
        "d_value equal to d_head",
        lambda model: replace_modules(model, Attention, KeysAsValues),
        _square,
    ),
    Bug(
        "cross-queries-from-memory",
        "Cross-attention asked by the memory",
        "In cross-attention queries and keys are made from the encoder's output, and the values from the decoder.",
        "a notebook that read Figure 1's three arrows into the decoder's second attention the wrong way round",
        "Q = M W_Q, K = M W_K, V = X W_V",
        _CROSS,
        "The cross pattern does not change with the target, and nothing of the source but the pattern reaches the output.",
        "an encoder-decoder, and inputs where source and target are equally long",
        lambda model: replace_modules(model, Attention, AskedByMemory, "cross_attn"),
        _pair,
        decides=("who asks and who answers in cross-attention",),
    ),
    Bug(
        "cross-roles-swapped",
        "Cross-attention the other way round",
        "Queries come from the memory, keys and values from the target: cross_attn(memory, x) for cross_attn(x, memory).",
        "layers whose two arguments have the same shape and undescriptive names",
        "Q = M W_Q, K = X W_K, V = X W_V",
        _CROSS,
        "Source positions look at target positions, later ones too.",
        "an encoder-decoder, and inputs where source and target are equally long",
        lambda model: replace_modules(model, Attention, RolesExchanged, "cross_attn"),
        _pair,
        decides=("who asks and who answers in cross-attention",),
    ),
    Bug(
        "forgotten-return",
        "A forgotten return",
        "The branch with the memory computes its result and does not return it, so the code goes on to plain self-attention.",
        "a residual wrapper with an optional memory: the `if` has everything but the word return",
        "x + Attention(x, x, x), no mask",
        "x + Attention(x, memory, memory)",
        "The cross pattern is [target × target]: the source is never looked at, and later target tokens are.",
        "an encoder-decoder",
        lambda model: replace_modules(model, Attention, MemoryLost, "cross_attn"),
        _pair,
        decides=("who asks and who answers in cross-attention",),
    ),
    Bug(
        "split-by-view",
        "Heads split without the transpose",
        "The projection is reshaped straight to [batch, head, pos, d_head], so each “head” is a stretch of positions.",
        "view(-1, heads, length, width) on a tensor laid out [batch, length, heads · width]: the sizes fit",
        "q.view(batch, head, pos, d_head)",
        "q.view(batch, pos, head, d_head).transpose(1, 2)",
        "A pattern's rows and columns are no longer positions; a causal mask hides the wrong things.",
        "at least two heads",
        lambda model: replace_modules(model, Attention, SplitByView),
        lambda config: config.n_heads > 1,
    ),
)
