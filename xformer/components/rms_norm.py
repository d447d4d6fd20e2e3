"""Root mean square normalisation (Zhang & Sennrich 2019, arXiv:1910.07467).

RMSNorm(x) = γ · x / √(mean(x²) + ε)        mean over d_model; no mean is subtracted and no shift is learned
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.components.component import Norm

if TYPE_CHECKING:
    from torch import Tensor

    from xformer.components.component import Vectors


class RMSNorm(Norm):
    """Root mean square 1, then a learned scale γ (`weight`)."""

    name = "rms"
    title = "RMSNorm"
    explanation = "Divides each vector by its root mean square, then scales it. It subtracts no mean and adds no shift."
    source = "Zhang & Sennrich 2019, equation 4"
    equation = "γ·x/√(mean(x²) + ε)"
    effect = "brings each vector to root mean square 1, then scales it"
    has_shift = False
    is_centred = False

    def apply(self, x: Vectors, weight: Tensor, bias: Tensor | None, eps: float) -> Vectors:
        from torch.nn.functional import rms_norm

        return rms_norm(x, weight.shape, weight, eps)
