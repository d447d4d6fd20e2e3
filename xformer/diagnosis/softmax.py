"""Checks of the softmax: do a query's weights sum to 1, and if not, what does?

    right            Σⱼ A[i, j] = 1                 wrong axis        Σᵢ A[i, j] = 1,  or  Σₕ A[h, i, j] = 1
    scaled after     Σⱼ A[i, j] = 1/√d_head         masked after      A = softmax(S) where allowed, S not masked

A sum of n weights in floating point strays from 1 by at most about n units of rounding (Higham 2002, §4.2), whatever the
weights; 16 n of them is the tolerance, 3·10⁻⁵ for 15 keys in float32. No trained weights can look like a wrong axis, and
none can hide it but a pattern that is doubly stochastic in every layer, head and input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from xformer.diagnosis.case import Case, Finding, Layer, error


def check_softmax(case: Case) -> Iterator[Finding]:
    """softmax-over-queries · softmax-over-heads · scaled-after-softmax · masked-after-softmax · rows-not-one."""
    for layer in case.layers:
        pattern = case[f"{layer.path}.pattern"]  # [batch, head, query, key]
        allowed = case[f"{layer.path}.mask"] if case.has(layer.path, "mask") else torch.ones_like(pattern).bool()
        if allowed.shape == pattern.shape:
            yield from _layer(case, layer, pattern, allowed)


def _layer(case: Case, layer: Layer, pattern: Tensor, allowed: Tensor) -> Iterator[Finding]:
    asked = allowed.any(dim=-1)  # [batch, head, query]: may look at something
    if layer.queries.shape[1] == pattern.shape[2]:
        asked = asked & layer.queries[:, None]
    rows = pattern.sum(dim=-1)[asked].double()
    if len(rows) == 0 or _all(rows, 1.0, pattern, pattern.shape[-1]):
        return
    sums = {"row_sum": rows.mean().item(), "row_sum_least": rows.min().item(), "row_sum_most": rows.max().item()}
    scale = 1 / math.sqrt(case.trace.config.d_head)
    columns = pattern.sum(dim=-2)[allowed.any(dim=-2)].double()
    columns_are_one = _all(columns, 1.0, pattern, pattern.shape[-2])
    if not columns_are_one and _all(rows, scale, pattern, pattern.shape[-1]):
        yield _scaled_after(layer, rows.mean().item(), scale)
        return
    if columns_are_one or _all(columns, scale, pattern, pattern.shape[-2]):
        found = columns.mean().item()
        yield error(
            "softmax-over-queries",
            layer.path,
            f"The weights of a key over all queries sum to {found:.3g}, and a query's weights do not sum to 1: the softmax "
            "runs along the queries instead of the keys.",
            {**sums, "column_sum": found},
        )
        if not columns_are_one:
            yield _scaled_after(layer, found, scale)
        return
    over_heads = pattern.sum(dim=1)[allowed.any(dim=1)].double()
    if pattern.shape[1] > 1 and _all(over_heads, 1.0, pattern, pattern.shape[1]):
        yield error(
            "softmax-over-heads",
            layer.path,
            "In each cell the weights of all heads sum to 1, and a query's weights do not: the softmax runs along the heads.",
            sums,
        )
        return
    if case.has(layer.path, "scores"):
        whole = case[f"{layer.path}.scores"].softmax(dim=-1)
        if torch.allclose(whole[allowed], pattern[allowed], rtol=1e-4, atol=1e-7):
            yield error(
                "masked-after-softmax",
                layer.path,
                "The weights are a softmax over keys that may not be looked at, with those struck out afterwards: a query's "
                f"weights sum to as little as {rows.min().item():.3g}.",
                sums,
            )
            return
    yield error(
        "rows-not-one",
        layer.path,
        f"A query's weights sum to {rows.min().item():.3g} to {rows.max().item():.3g} instead of 1.",
        sums,
    )


def _scaled_after(layer: Layer, found: float, scale: float) -> Finding:
    return error(
        "scaled-after-softmax",
        layer.path,
        f"The weights sum to {found:.3g} = 1/√d_head instead of 1: the scale is applied after the softmax.",
        {"sum": found, "one_over_root_d_head": scale},
    )


def _all(sums: Tensor, value: float, pattern: Tensor, n: int) -> bool:
    """Whether all sums of n terms equal the value, but for rounding."""
    return len(sums) > 0 and bool(((sums - value).abs() <= 16 * n * torch.finfo(pattern.dtype).eps).all())
