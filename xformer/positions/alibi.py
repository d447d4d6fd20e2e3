"""ALiBi: scores are lowered in proportion to the distance, with one slope per head (Press et al. 2022, arXiv:2108.12409)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.positions.kind import PositionKind, PositionSizes, each_head

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from xformer.positions.kind import Bias, Positions, Tables


def alibi_slopes(n_heads: int) -> list[float]:
    """Return one slope per head: 2^(−8/n), 2^(−16/n), …

    If n is not a power of two, the rest are every other slope for twice the next smaller power, as in the authors' code.
    """
    power = 2 ** (n_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return slopes + between[: n_heads - power]


def alibi_bias(
    queries: Int[Tensor, "*batch query"], keys: Int[Tensor, "*batch key"], n_heads: int
) -> Float[Tensor, "#batch head query key"]:
    """Return the score bias −slope · |distance|. (The paper's models are causal; in an encoder it applies both ways.)"""
    import torch

    distance = (queries[..., :, None] - keys[..., None, :]).abs()  # [*batch, query, key]
    slopes = torch.tensor(alibi_slopes(n_heads), dtype=torch.float64, device=distance.device)  # [head]
    bias = -slopes[:, None, None] * distance[..., None, :, :]  # [*batch, head, query, key]
    return bias if bias.dim() == 4 else bias[None]


class Alibi(PositionKind):
    """Attention with linear biases, which are not learned."""

    name = "alibi"
    title = "ALiBi"
    summary = "Subtracts the distance, times each head’s slope, from its scores."
    note = "Nothing is added to the vectors; distant keys get lower scores."
    source = "Press et al. 2022, §3"
    acts_on = "scores"
    detail = "ALiBi, fixed"
    equation = "score − mₕ·distance"
    alternative = "ALiBi biases the scores instead"

    def bias(self, sizes: PositionSizes, tables: Tables, queries: Positions, keys: Positions, *, causal: bool) -> Bias:
        return alibi_bias(queries, keys, sizes.n_heads)

    def offset_caption(self, sizes: PositionSizes) -> str:
        return (
            f"What {each_head(sizes)} adds to a score, by the distance of the key: minus its own slope times the "
            "distance. Nothing is added to the vectors."
        )
