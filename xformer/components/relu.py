"""The feed-forward network with ReLU (Vaswani et al. 2017, arXiv:1706.03762, equation 2).

FFN(x) = max(0, x W₁ + b₁) W₂ + b₂
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xformer.components.component import FeedForward

if TYPE_CHECKING:
    from torch import Tensor


class ReLU(FeedForward):
    """max(0, x)."""

    name = "relu"
    title = "ReLU"
    explanation = "Keeps what is positive and sets the rest to 0."
    source = "Vaswani et al. 2017, §3.3"
    function_name = "relu"
    effect = "keeps what is positive"
    closes = True
    n_saved = 1  # its output is enough for the backward pass

    def function(self) -> Callable[[Tensor], Tensor]:
        from torch.nn.functional import relu

        return relu
