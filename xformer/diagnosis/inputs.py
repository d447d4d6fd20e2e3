"""The inputs of an examination, and the same inputs otherwise: one row alone, padded before, another token, other padding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.config import ModelConfig
from xformer.model import Transformer
from xformer.trace import Trace, record


@dataclass(frozen=True, eq=False)
class Examination:
    """Inputs as `record` takes them. Of images `valid` is [batch, 1 + patch], true throughout."""

    tokens: Int[Tensor, "batch pos"]
    valid: Bool[Tensor, "batch pos"]
    target: Int[Tensor, "batch target"] | None = None
    target_valid: Bool[Tensor, "batch target"] | None = None

    def record(self, model: Transformer) -> Trace:
        """The recorded run of a model on them."""
        valid = None if model.config.image else self.valid  # images have no padding
        return record(model, self.tokens, self.target, valid=valid, target_valid=self.target_valid)

    def run(self, model: Transformer) -> Float[Tensor, "batch out vocab"]:
        """The scores of a run that is not recorded. Where nothing is padded, no mask of padding is given."""
        is_whole = bool(self.valid.all()) and (self.target_valid is None or bool(self.target_valid.all()))
        if model.config.image or is_whole:
            return model(self.tokens, self.target)
        return model(self.tokens, self.target, valid=self.valid, target_valid=self.target_valid)

    def rows(self, which: Int[Tensor, " row"]) -> Examination:
        """Some of the inputs, in that order."""
        target, valid = self.target, self.target_valid
        return Examination(
            self.tokens[which],
            self.valid[which],
            None if target is None else target[which],
            None if valid is None else valid[which],
        )

    def row(self, index: int) -> Examination:
        """One input alone, without its padding."""
        one = self.rows(torch.tensor([index]))
        tokens, valid = _cut(one.tokens, one.valid)
        if one.target is None or one.target_valid is None:
            return Examination(tokens, valid)
        return Examination(tokens, valid, *_cut(one.target, one.target_valid))

    def padded_before(self) -> Examination:
        """The same inputs with all their padding in front."""
        tokens, valid = _to_the_right(self.tokens, self.valid)
        if self.target is None or self.target_valid is None:
            return Examination(tokens, valid)
        return Examination(tokens, valid, *_to_the_right(self.target, self.target_valid))

    def with_longer_source(self, config: ModelConfig) -> Examination | None:
        """More padding behind the source; where the model has no room for it, behind the target; None without room."""
        if self.target is None or self.target_valid is None:
            return None
        pad = config.pad_token
        if (room := config.max_len - self.tokens.shape[1]) > 0:
            more = min(3, room)
            return replace(self, tokens=F.pad(self.tokens, (0, more), value=pad), valid=F.pad(self.valid, (0, more)))
        if (room := config.max_len - self.target.shape[1]) > 0:
            more = min(3, room)
            target = F.pad(self.target, (0, more), value=pad)
            return replace(self, target=target, target_valid=F.pad(self.target_valid, (0, more)))
        return None

    def with_other_token(self, at: int, config: ModelConfig) -> Examination:
        """Another token at one position of what is answered."""
        if self.target is not None:
            return replace(self, target=_other(self.target, at, config))
        return replace(self, tokens=_other(self.tokens, at, config))

    def with_other_padding(self, config: ModelConfig) -> Examination:
        """Another token in every padded cell."""
        other = (config.pad_token + 1) % config.vocab_size
        tokens = self.tokens.masked_fill(~self.valid, other)
        if self.target is None or self.target_valid is None:
            return replace(self, tokens=tokens)
        return replace(self, tokens=tokens, target=self.target.masked_fill(~self.target_valid, other))


def _cut(tokens: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    if valid.shape != tokens.shape:  # of an image
        return tokens, valid
    return tokens[:, valid[0]], valid[:, valid[0]]


def _to_the_right(tokens: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    turned = torch.argsort(valid.long(), dim=1, stable=True)  # padding first, tokens in their order behind it
    return tokens.gather(1, turned), valid.gather(1, turned)


def _other(tokens: Tensor, at: int, config: ModelConfig) -> Tensor:
    changed = tokens.clone()
    changed[:, at] = (changed[:, at] + 1) % config.vocab_size
    return changed
