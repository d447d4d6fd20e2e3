"""Is one activation an affine function of another: with the model's weights where they are known, else with any that fit."""

from __future__ import annotations

from torch import Tensor

from xformer.diagnosis.case import Case
from xformer.diagnosis.projections import MOST_OUTSIDE, share_outside
from xformer.diagnosis.rounding import of_product


def affine(
    case: Case, path: str, x: Tensor, y: Tensor, weight: str, bias: str, rows: slice | None = None, slack: float = 1.0
) -> float | None:
    """How far y is from x Wᵀ + b, as an excess over rounding; from the nearest affine map where the weights are not known.

    `rows` are the rows of W and b that are meant; `slack` is how much more than one product has been rounded. None where
    neither the weights are known nor the rows of x enough to tell.
    """
    before = f"{path}." if path else ""
    matrix, plus = case.weight(before + weight), case.weight(before + bias)
    if matrix is None:
        share = share_outside(x, y, case.spans) if x.shape[:-1] == y.shape[:-1] else float("inf")
        return None if share is None else share / MOST_OUTSIDE
    if rows is not None:
        matrix, plus = matrix[rows], None if plus is None else plus[rows]
    if x.shape[-1] != matrix.shape[1]:
        return float("inf")
    return of_product(y, x, matrix.T, plus) / slack
