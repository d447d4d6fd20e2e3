"""Bugs of the mask: left out, off by one, upside down, filled with the wrong number, applied at the wrong time."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from xformer.bugs.bug import Bug
from xformer.bugs.replace_modules import replace_modules
from xformer.config import ModelConfig
from xformer.layers.attention import Attention, Scores
from xformer.layers.masks import Mask
from xformer.tape import AnyTape


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
        "Sequences of different length are padded into one batch, and nobody tells the attention which cells are padding.",
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
