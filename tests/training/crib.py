"""A deliberately leaking model: the scores of a decoder must not be fooled by a model that copies the answer from its input."""

from __future__ import annotations

from typing import Any

import torch

from xformer.layers.masks import SequencePacking
from xformer.model import Transformer


class Crib(Transformer):
    """A leaking model: it predicts the actual next token at each position, and the end token at the end of each sequence."""

    def forward(self, tokens: torch.Tensor, target: torch.Tensor | None = None, **given: Any) -> torch.Tensor:
        written = tokens if target is None else target
        valid = torch.ones_like(written)
        layout: SequencePacking | None = given.get("layout" if target is None else "target_layout")
        if layout is not None and layout.segments is not None:
            valid = layout.segments
        after = torch.nn.functional.pad(written[:, 1:], (0, 1), value=1)
        ends = torch.nn.functional.pad(valid[:, 1:], (0, 1)) != valid
        assert self.config.end_token is not None
        after = after.masked_fill(ends, self.config.end_token)
        return 9.0 * torch.nn.functional.one_hot(after, self.config.vocab_size).float()

    def extend(self, tokens: torch.Tensor, *given: Any) -> torch.Tensor:
        return self.forward(tokens)
