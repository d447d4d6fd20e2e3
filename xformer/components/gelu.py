"""The feed-forward network with GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415).

FFN(x) = GELU(x W₁ + b₁) W₂ + b₂        GELU(x) = x · Φ(x), Φ the normal distribution function
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xformer.components.component import FeedForward

if TYPE_CHECKING:
    from torch import Tensor


class GELU(FeedForward):
    """x · Φ(x), in its exact form with the error function."""

    name = "gelu"
    title = "GELU"
    explanation = "Multiplies each number by its normal distribution function Φ: a smooth ReLU."
    source = "Hendrycks & Gimpel 2016, §2"
    function_name = "gelu"
    effect = "bends it with GELU"
    n_saved = 2

    def function(self) -> Callable[[Tensor], Tensor]:
        from torch.nn.functional import gelu

        return gelu
