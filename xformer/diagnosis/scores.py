"""Checks of the scores: are they q·k/√d_head, and does the pattern mix the values?

    S = Q Kᵀ / √d_head  (+ ALiBi's bias)        Z = A V                          (Vaswani et al. 2017, equation 1)

All five stand in the trace, so nothing has to be guessed from a distribution: the factor a of S = a · Q Kᵀ is fitted by least
squares over the cells that may be looked at. In float32 a right layer misses the fit by about 10⁻⁶ of ‖S‖, another pair of
tensors by about all of it; 10⁻³ lies between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from xformer.diagnosis.case import Case, Finding, Layer, error, relative

FIT_LIMIT = 1e-3
LEAST_CELLS = 3
"""Cells from which a factor can be told from chance."""


def check_scores(case: Case) -> Iterator[Finding]:
    """no-scale · wrong-scale · keys-values-swapped."""
    for layer, activations in case.attention("q", "k", "v", "scores", "pattern", "z"):
        yield from _layer(case, layer, *activations)


def _layer(
    case: Case, layer: Layer, q: Tensor, k: Tensor, v: Tensor, scores: Tensor, pattern: Tensor, z: Tensor
) -> Iterator[Finding]:
    config, q, k, scores = case.trace.config, q.double(), k.double(), scores.double()
    finite = scores.isfinite() & (scores != 0)  # a score of exactly 0 is one that was masked wrongly
    if case.has(layer.path, "pos_bias"):
        scores = scores - case[f"{layer.path}.pos_bias"].double()
    right = 1 / math.sqrt(config.d_head)
    dots, measured = (q @ k.mT).masked_fill(~finite, 0.0), scores.masked_fill(~finite, 0.0)
    if finite.sum() < LEAST_CELLS or dots.norm() == 0 or relative(measured - right * dots, measured) <= FIT_LIMIT:
        return
    dots, measured = dots[finite], measured[finite]
    v, pattern, z = v.double(), pattern.double(), z.double()
    if config.d_head == config.d_value and _mixes_keys(q, k, v, scores, pattern, z, finite, right):
        yield error(
            "keys-values-swapped",
            layer.path,
            "The scores are q·v/√d_head and the pattern mixes the keys: keys and values are swapped.",
            {"misfit_of_q_k": relative(measured - right * dots, measured)},
        )
        return
    factor = ((measured * dots).sum() / dots.square().sum()).item()
    if relative(measured - factor * dots, measured) > FIT_LIMIT:
        return
    numbers = {"factor": factor, "one_over_root_d_head": right, "score_std": measured.std().item()}
    if abs(factor - 1) <= FIT_LIMIT:
        if not _scaled_after(layer, pattern, right):
            yield error(
                "no-scale",
                layer.path,
                f"The scores are q·k as it is, {math.sqrt(config.d_head):.3g} times what they should be: they are not "
                "divided by √d_head.",
                numbers,
            )
        return
    yield error(
        "wrong-scale",
        layer.path,
        f"The scores are {factor:.4g} · q·k, and the factor should be 1/√d_head = {right:.4g}.",
        numbers,
    )


def _mixes_keys(
    q: Tensor, k: Tensor, v: Tensor, scores: Tensor, pattern: Tensor, z: Tensor, finite: Tensor, right: float
) -> bool:
    fits = relative(scores[finite] - right * (q @ v.mT)[finite], scores[finite]) <= FIT_LIMIT
    return fits and relative(z - pattern @ k, z) <= FIT_LIMIT


def _scaled_after(layer: Layer, pattern: Tensor, scale: float) -> bool:
    """Whether the missing factor turns up after the softmax; then `check_softmax` says so."""
    for axis in (-1, -2):
        sums = pattern.sum(dim=axis)
        sums = sums[sums > 0]
        if len(sums) and torch.allclose(sums, torch.full_like(sums, scale), rtol=1e-4):
            return True
    return False
