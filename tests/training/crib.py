"""A leak on purpose: what measures a decoder must not be taken in by a model that copies the answer out of its own input."""

from __future__ import annotations

from typing import Any

import torch

from xformer.layers.masks import Layout
from xformer.model import Transformer


class Crib(Transformer):
    """A deliberate leak: it predicts the token after each position, and the first symbol at the end."""

    def forward(self, tokens: torch.Tensor, target: torch.Tensor | None = None, **given: Any) -> torch.Tensor:
        written = tokens if target is None else target
        valid = torch.ones_like(written)
        layout: Layout | None = given.get("layout" if target is None else "target_layout")
        if layout is not None and layout.segments is not None:
            valid = layout.segments
        after = torch.nn.functional.pad(written[:, 1:], (0, 1), value=1)
        ends = torch.nn.functional.pad(valid[:, 1:], (0, 1)) != valid
        assert self.config.end_token is not None
        after = after.masked_fill(ends, self.config.end_token)
        return 9.0 * torch.nn.functional.one_hot(after, self.config.vocab_size).float()

    def extend(self, tokens: torch.Tensor, *given: Any) -> torch.Tensor:
        return self.forward(tokens)
