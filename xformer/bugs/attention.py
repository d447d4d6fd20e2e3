"""Bugs of attention: the softmax, the mask, and where queries, keys and values come from."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from xformer.bugs.bug import Bug, replace_modules
from xformer.config import ModelConfig
from xformer.errors import InputError
from xformer.layers.attention import Attention, LayerCache, Scores
from xformer.layers.masks import Mask
from xformer.tape import AnyTape


class OverQueries(Attention):
    """softmax(S, dim=-2). Masked cells are put to 0; a column of nothing but −∞ would be NaN otherwise."""

    def softmax(self, scores: Scores, mask: Mask) -> Scores:
        hidden = scores.isneginf()
        return scores.masked_fill(hidden.all(dim=-2, keepdim=True), 0.0).softmax(dim=-2).masked_fill(hidden, 0.0)


class OverHeads(Attention):
    """softmax(S, dim=1). Masked cells are put to 0, because the softmax of nothing but −∞ is NaN."""

    def softmax(self, scores: Scores, mask: Mask) -> Scores:
        hidden = scores.isneginf()
        return scores.masked_fill(hidden, 0.0).softmax(dim=1).masked_fill(hidden, 0.0)


class Unscaled(Attention):
    """S = Q Kᵀ."""

    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Scores:
        return super().score(q, k, v) * math.sqrt(self.d_head)


class ScaledAfter(Unscaled):
    """A = softmax(Q Kᵀ) / √d_head."""

    def softmax(self, scores: Scores, mask: Mask) -> Scores:
        return super().softmax(scores, mask) / math.sqrt(self.d_head)


class OverNothing(Attention):
    """softmax(S) as it stands, which is 0/0 for a query whose every key is masked."""

    def softmax(self, scores: Scores, mask: Mask) -> Scores:
        return scores.softmax(dim=-1)


def _wide(config: ModelConfig) -> bool:
    return config.d_head > 1


_RIGHT = "A = softmax over keys (Q Kᵀ / √d_head)"

SOFTMAX_BUGS = (
    Bug(
        "softmax-over-queries",
        "Softmax over the wrong axis",
        "The softmax is taken along the queries (dim=-2), so each key shares itself out and no query's weights sum to 1.",
        "a notebook rebuilding the paper from its text: both axes of the scores are equally long, so dim=-2 raises no error",
        "A[i, j] = exp S[i, j] / Σᵢ exp S[i, j]",
        "A[i, j] = exp S[i, j] / Σⱼ exp S[i, j]",
        "Columns sum to 1 and rows do not: with a causal mask the last token of a row is alone in its column.",
        "no more than attention",
        lambda model: replace_modules(model, Attention, OverQueries),
        decides=("what the softmax runs over",),
    ),
    Bug(
        "softmax-over-heads",
        "Softmax over the heads",
        "The softmax is taken along the axis of the heads (dim=1), so the heads compete and the keys do not.",
        "code whose scores gained an axis for the heads while the softmax kept its old dim=1",
        "A[h, i, j] = exp S[h, i, j] / Σₕ exp S[h, i, j]",
        "A[h, i, j] = exp S[h, i, j] / Σⱼ exp S[h, i, j]",
        "In every cell the heads' weights sum to 1; a row sums to about the number of keys over the number of heads.",
        "at least two heads",
        lambda model: replace_modules(model, Attention, OverHeads),
        lambda config: config.n_heads > 1,
        decides=("what the softmax runs over",),
    ),
    Bug(
        "scaled-after-softmax",
        "Scaling after the softmax",
        "The division by √d_head comes after the softmax instead of before it.",
        "the same notebook: a bracket closed too early, softmax(q @ k.T, …) / √d",
        "A = softmax(Q Kᵀ) / √d_head",
        _RIGHT,
        "Every row sums to 1/√d_head, and the pattern is as sharp as without any scale.",
        "d_head above 1",
        lambda model: replace_modules(model, Attention, ScaledAfter),
        _wide,
        decides=("where the scale is",),
    ),
    Bug(
        "no-scale",
        "No scale",
        "The scores are not divided by √d_head, so their spread grows with the width of a head.",
        "introductions that explain self-attention as softmax(x xᵀ) x and never come back to the scale",
        "A = softmax(Q Kᵀ)",
        _RIGHT,
        "Sharper patterns than meant from the first step on; the softmax saturates and passes little gradient.",
        "d_head above 1",
        lambda model: replace_modules(model, Attention, Unscaled),
        _wide,
        decides=("where the scale is",),
    ),
    Bug(
        "softmax-of-nothing",
        "Softmax over nothing",
        "A query that may look at no key (padding, or the first token when it may not see itself) gets softmax(−∞, …, −∞).",
        "masks that remove a token's own position, or padding that masks queries as well as keys",
        "A = exp(−∞) / Σ exp(−∞) = 0 / 0 = NaN",
        "A = 0 for a query that may look at nothing",
        "One row of NaN in the first layer; as values they reach every token in the next, because 0 · NaN is NaN.",
        "no more than attention; it shows where a row is empty, as with padding",
        lambda model: replace_modules(model, Attention, OverNothing),
        shows="with padding",
        decides=("what the softmax runs over", "whether a row can be empty"),
    ),
)


class SeesPadding(Attention):
    """Only causality is left of the mask."""

    def allow(self, mask: Mask, scores: Tensor, tape: AnyTape) -> Mask:
        return super().allow(replace(mask, layout=None), scores, tape)


class OtherTriangle(Attention):
    """A causal mask of another shape, in those layers that have one; `triangle` says which."""

    def triangle(self, causal: Tensor) -> Tensor:
        """What stands in place of the mask [query, key]; key − query counts from the last query at the last key."""
        raise NotImplementedError

    def allow(self, mask: Mask, scores: Tensor, tape: AnyTape) -> Mask:
        if mask.causal is not None:
            mask = replace(mask, causal=self.triangle(mask.causal))
        return super().allow(mask, scores, tape)


class OffByOne(OtherTriangle):
    """key ≤ query + 1."""

    def triangle(self, causal: Tensor) -> Tensor:
        return torch.ones_like(causal).tril(causal.shape[1] - causal.shape[0] + 1)


class NoTriangle(OtherTriangle):
    """Every key."""

    def triangle(self, causal: Tensor) -> Tensor:
        return torch.ones_like(causal)


class UpsideDown(OtherTriangle):
    """key ≥ query."""

    def triangle(self, causal: Tensor) -> Tensor:
        return torch.ones_like(causal).triu(causal.shape[1] - causal.shape[0])


class HiddenByZero(Attention):
    """0 where −∞ should stand: e⁰ = 1 is as much weight as an average key has."""

    def mask(self, scores: Scores, mask: Mask) -> Scores:
        return mask.hide(scores, 0.0)

    def softmax(self, scores: Scores, mask: Mask) -> Scores:
        return scores.softmax(dim=-1)


class HiddenTooLate(Attention):
    """The forbidden weights are struck out after the softmax, when the others have already been divided by them."""

    def mask(self, scores: Scores, mask: Mask) -> Scores:
        return scores

    def softmax(self, scores: Scores, mask: Mask) -> Scores:
        return mask.hide(scores.softmax(dim=-1), 0.0)


def _causal(config: ModelConfig) -> bool:
    return bool(config.causal)


_NEEDS = "a causal mask: a decoder, an encoder-decoder, or an encoder with causal=True"

MASK_BUGS = (
    Bug(
        "no-padding-mask",
        "No padding mask",
        "Sequences of different length are padded into one batch, and the attention gets no mask of the padding.",
        "a training script whose collate function pads with zeros and whose model is called without a mask",
        "A = softmax(S), padding included",
        "A = softmax(S with −∞ at padded keys)",
        "The padded columns are lit; the same sequence gets another prediction in a batch with a longer one.",
        "an encoder, because after a causal mask padding at the end is out of sight anyway",
        lambda model: replace_modules(model, Attention, SeesPadding),
        lambda config: config.architecture != "decoder" and not (config.architecture == "encoder" and config.causal),
        shows="with padding",
        decides=("whether a row can be empty",),
    ),
    Bug(
        "causal-off-by-one",
        "A mask that leaks the next token",
        "The triangle starts one diagonal too high, so each position sees the very token it is asked to predict.",
        "triu and tril with diagonal=1 where 0 is meant",
        "allowed: key ≤ query + 1",
        "allowed: key ≤ query",
        "One lit diagonal above the main one; the training loss falls to nothing, and what it writes alone is nonsense.",
        _NEEDS,
        lambda model: replace_modules(model, Attention, OffByOne),
        _causal,
        decides=("the shape of the causal mask",),
    ),
    Bug(
        "causal-ignored",
        "No causal mask",
        "The causal mask is never applied, so a position sees all that follows it.",
        "a decoder whose mask was left for later, or handed over and not used",
        "allowed: every key",
        "allowed: key ≤ query",
        "The upper triangle is lit; the training loss falls to nothing, and what it writes alone is nonsense.",
        _NEEDS,
        lambda model: replace_modules(model, Attention, NoTriangle),
        _causal,
        decides=("the shape of the causal mask",),
    ),
    Bug(
        "causal-upside-down",
        "The mask upside down",
        "The wrong half is masked (triu for tril, true taken for forbidden), so a position sees the future and not the past.",
        "code that masks “the lower half” by its own comment, and libraries that disagree on whether true means masked",
        "allowed: key ≥ query",
        "allowed: key ≤ query",
        "Only the upper triangle is lit.",
        _NEEDS,
        lambda model: replace_modules(model, Attention, UpsideDown),
        _causal,
        decides=("the shape of the causal mask",),
    ),
    Bug(
        "masked-with-zero",
        "Masked with 0 instead of −∞",
        "The forbidden scores are set to 0 before the softmax, where they count as ordinary keys.",
        "explanations that say the upper half of the matrix is nulled, taken literally",
        "S[i, j] = 0 for a forbidden key, so it weighs e⁰ = 1",
        "S[i, j] = −∞ for a forbidden key, so it weighs e^−∞ = 0",
        "The forbidden cells of a row are all lit alike.",
        _NEEDS,
        lambda model: replace_modules(model, Attention, HiddenByZero),
        _causal,
        decides=("how the mask is applied", "what the softmax runs over"),
    ),
    Bug(
        "masked-after-softmax",
        "Masked after the softmax",
        "The pattern is multiplied by the mask after the softmax and not normalised again.",
        "code that treats the mask as a factor on the weights",
        "A = softmax(S) · allowed",
        "A = softmax(S with −∞ where not allowed)",
        "Nothing forbidden is seen, but rows sum to less than 1, the first row to least.",
        _NEEDS,
        lambda model: replace_modules(model, Attention, HiddenTooLate),
        _causal,
        decides=("how the mask is applied", "what the softmax runs over"),
    ),
)


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
