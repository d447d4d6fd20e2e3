"""The functions of feed-forward networks: ReLU, GELU and the gate of SwiGLU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xformer.components.component import FeedForward

if TYPE_CHECKING:
    from torch import Tensor


class ReLU(FeedForward):
    """max(0, x); Vaswani et al. 2017, arXiv:1706.03762, equation 2.

    FFN(x) = max(0, x W₁ + b₁) W₂ + b₂
    """

    name = "relu"
    title = "ReLU"
    explanation = "Keeps what is positive and sets the rest to 0."
    source = "Vaswani et al. 2017, §3.3"
    function_name = "relu"
    effect = "keeps what is positive"
    closes = True
    n_saved = 1  # its own output tells where it was positive

    def function(self) -> Callable[[Tensor], Tensor]:
        from torch.nn.functional import relu

        return relu


class GELU(FeedForward):
    """x · Φ(x), the exact form with the error function; Hendrycks & Gimpel 2016, arXiv:1606.08415.

    FFN(x) = GELU(x W₁ + b₁) W₂ + b₂        GELU(x) = x · Φ(x), Φ the normal distribution function
    """

    name = "gelu"
    title = "GELU"
    explanation = "Multiplies each number by the normal distribution function of it: a smooth ReLU."
    source = "Hendrycks & Gimpel 2016, §2"
    function_name = "gelu"
    effect = "bends it with GELU"
    n_saved = 2

    def function(self) -> Callable[[Tensor], Tensor]:
        from torch.nn.functional import gelu

        return gelu


class SwiGLU(FeedForward):
    """SiLU of one linear map times another; Shazeer 2020, arXiv:2002.05202, equation 6.

    FFN(x) = (SiLU(x W_gate) ∘ x W₁) W₂        SiLU(x) = x · sigmoid(x)

    A trace names the steps as those of Llama are named: `pre` = x W_gate, `gate` = SiLU(pre), `up` = x W₁, `post` = gate ∘ up.
    """

    name = "swiglu"
    title = "SwiGLU"
    explanation = (
        "Maps each vector twice and multiplies one result by SiLU of the other, the gate. It has three matrices."
    )
    source = "Shazeer 2020, equation 6"
    function_name = "silu"
    effect = "multiplies them by a gate, SiLU of a second map"
    is_gated = True
    n_saved = 4  # pre, gate, up, post

    def function(self) -> Callable[[Tensor], Tensor]:
        from torch.nn.functional import silu

        return silu
