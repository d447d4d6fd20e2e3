"""Layer normalisation (Ba et al. 2016, arXiv:1607.06450).

LayerNorm(x) = γ · (x − mean(x)) / √(var(x) + ε) + β        mean and biased variance over d_model
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.components.component import Norm

if TYPE_CHECKING:
    from torch import Tensor

    from xformer.components.component import Vectors


class LayerNorm(Norm):
    """Mean 0 and variance 1, then a learned scale γ (`weight`) and shift β (`bias`)."""

    name = "layer"
    title = "LayerNorm"
    explanation = "Brings each vector to mean 0 and variance 1, then scales and shifts it."
    source = "Ba et al. 2016, §3"
    equation = "γ·(x − mean)/√(var + ε) + β"
    effect = "brings each vector to mean 0 and variance 1, then scales and shifts it"
    has_shift = True
    is_centred = True

    def apply(self, x: Vectors, weight: Tensor, bias: Tensor | None, eps: float) -> Vectors:
        from torch.nn.functional import layer_norm

        return layer_norm(x, weight.shape, weight, bias, eps)
