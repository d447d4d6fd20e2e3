"""The gated feed-forward network SwiGLU (Shazeer 2020, arXiv:2002.05202, equation 6).

FFN(x) = (SiLU(x W_gate) ∘ x W₁) W₂        SiLU(x) = x · sigmoid(x)

Activations are named as in Llama: `pre` = x W_gate, `gate` = SiLU(pre), `up` = x W₁, `post` = gate ∘ up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xformer.components.component import FeedForward

if TYPE_CHECKING:
    from torch import Tensor


class SwiGLU(FeedForward):
    """SiLU of one linear map times another."""

    name = "swiglu"
    title = "SwiGLU"
    explanation = "Maps each vector twice and multiplies one by SiLU of the other, the gate. It has three matrices."
    source = "Shazeer 2020, equation 6"
    function_name = "silu"
    effect = "multiplies them by a gate, SiLU of a second map"
    is_gated = True
    n_saved = 4  # pre, gate, up, post

    def function(self) -> Callable[[Tensor], Tensor]:
        from torch.nn.functional import silu

        return silu
