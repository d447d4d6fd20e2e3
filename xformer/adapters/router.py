"""The router of a mixture of experts: which experts each token takes, and how much of each (Shazeer et al. 2017).

It is told by what it gives: for each token the numbers of k experts, a weight for each, and a score for every expert. All the
weights together are one activation, `decoder.3.ffn.experts` [batch, pos, expert], 0 for an expert that is not taken. What is
changed in it sends a token to the k experts that then weigh most.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from xformer.adapters.probe import Call


def is_router(call: Call) -> bool:
    """Whether a call of a part gave what a router gives."""
    return routing(call.outputs) is not None


def routing(output: Any) -> tuple[int, int, int] | None:
    """Where scores, weights and numbers of the experts stand in what a part gave; None where it is no router."""
    if not isinstance(output, tuple | list) or not all(isinstance(one, Tensor) and one.dim() >= 2 for one in output):
        return None
    numbers = [at for at, one in enumerate(output) if not one.is_floating_point()]
    if len(numbers) != 1:
        return None
    chosen = output[numbers[0]]
    weights = [at for at, one in enumerate(output) if at != numbers[0] and one.shape == chosen.shape]
    scores = [at for at, one in enumerate(output) if one.is_floating_point() and one.shape[-1] > chosen.shape[-1]]
    fits = len(weights) == 1 and len(scores) == 1 and int(chosen.max()) < output[scores[0]].shape[-1]
    return (scores[0], weights[0], numbers[0]) if fits else None


def dense(
    weights: Float[Tensor, "*token k"], chosen: Int[Tensor, "*token k"], n_experts: int
) -> Float[Tensor, "*token expert"]:
    """The weight of every expert."""
    return weights.new_zeros(*weights.shape[:-1], n_experts).scatter(-1, chosen, weights)


def sparse(every: Float[Tensor, "*token expert"], k: int) -> tuple[Float[Tensor, "*token k"], Int[Tensor, "*token k"]]:
    """The k largest weights and whose they are."""
    found = every.topk(k, dim=-1)
    return found.values, found.indices
