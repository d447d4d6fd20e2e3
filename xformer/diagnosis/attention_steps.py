"""The steps of an attention layer computed again: projections, scores, mask, softmax, mixing, output."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from xformer.diagnosis.affine import affine
from xformer.diagnosis.case import Case, Layer, Measurement, relative
from xformer.diagnosis.projections import heads_joined
from xformer.diagnosis.rounding import OTHER_ROUNDINGS, excess, of_product, unit

SAME_NUMBERS = 1e-5


def projections(case: Case) -> Iterator[Measurement]:
    """q, k and v, turned back where positions have turned them; heads of one group share k and v."""
    config = case.trace.config
    kv, widths = config.kv_component, config.kv_component.widths(config)
    for layer, _ in case.attention("in", "q", "k", "v"):
        for index, (name, stream) in enumerate(case.rows_into(layer)):
            made, slack = case.projected(layer.path, name), 1.0
            if stream is None:
                continue
            if name != "q" and not torch.equal(kv.expand(made, config.n_heads), case[f"{layer.path}.{name}"]):
                yield Measurement(layer.path, float("inf"), f"Heads of one group have different {name}.")
                continue
            if name != "v" and case.has(layer.path, "pos_angles"):
                made, slack = unturned(case, layer, made), 4.0  # a pair shares its rounding, and turns twice
            start = sum(widths[:index])
            yield Measurement(
                layer.path,
                affine(
                    case,
                    layer.path,
                    stream,
                    heads_joined(made),
                    "weight_in",
                    "bias_in",
                    slice(start, start + widths[index]),
                    slack,
                ),
            )


def unturned(case: Case, layer: Layer, made: Tensor) -> Tensor:
    """q or k as it was before its pairs were turned by the angles of the trace."""
    angles = case[f"{layer.path}.pos_angles"]
    return case.trace.config.position_kind.turn(made.double(), -angles.double()).to(made.dtype)


def roles(case: Case) -> Iterator[Measurement]:
    """No two of q, k and v are one and the same: then one matrix does the work of two."""
    for layer, activations in case.attention("q", "k", "v"):
        q, k, v = (activation.double() for activation in activations)
        twice = [
            f"{a} and {b} are the same numbers: one projection plays both roles."
            for a, one, b, two in (("q", q, "k", k), ("q", q, "v", v), ("k", k, "v", v))
            if one.shape == two.shape and bool(one.any()) and relative(one - two, one) < SAME_NUMBERS
        ]
        yield Measurement(layer.path, float("inf") if twice else 0.0, twice[0] if twice else "")


def scores(case: Case) -> Iterator[Measurement]:
    """q·k/√d_head plus the bias wherever the mask allows, −∞ wherever it does not."""
    for layer, (q, k, made) in case.attention("q", "k", "scores"):
        bias = case[f"{layer.path}.pos_bias"] if case.has(layer.path, "pos_bias") else None
        allowed = case[f"{layer.path}.mask"] if case.has(layer.path, "mask") else ~made.isneginf()
        if allowed.shape != made.shape or q.shape[:3] != made.shape[:3] or k.shape[-2] != made.shape[-1]:
            yield Measurement(layer.path, float("inf"))
        elif bool((made.isneginf() != ~allowed).any()):
            yield Measurement(layer.path, float("inf"), "−∞ does not stand exactly where the mask forbids.")
        else:
            yield Measurement(layer.path, _allowed_scores(made, q, k, bias, allowed, case.trace.config.d_head))


def _allowed_scores(made: Tensor, q: Tensor, k: Tensor, bias: Tensor | None, allowed: Tensor, d_head: int) -> float:
    expected = q.double() @ k.double().mT / math.sqrt(d_head)
    size = q.float().abs() @ k.float().abs().mT / math.sqrt(d_head)
    if bias is not None:
        expected, size = expected + bias.double(), size + bias.abs()
    made, expected = made.masked_fill(~allowed, 0.0), expected.masked_fill(~allowed, 0.0)
    return excess(made, expected, (d_head + OTHER_ROUNDINGS) * unit(made) * size)


def masks(case: Case) -> Iterator[Measurement]:
    """True exactly where causality, the registered mask, padding and a drawn mask let a token look."""
    config = case.trace.config
    for layer, (mask,) in case.attention("mask"):
        n_query, n_key = layer.queries.shape[1], layer.keys.shape[1]
        if mask.shape[-2:] != (n_query, n_key):
            yield Measurement(layer.path, float("inf"), "The mask is not between this layer’s queries and keys.")
            continue
        expected = layer.keys[:, None, None, :].expand(-1, 1, n_query, -1)  # [batch, 1, query, key]
        if layer.causal:
            offset = 0 if config.see_self else -1
            triangle = torch.ones(n_query, n_key, dtype=torch.bool, device=mask.device).tril(offset)
            expected = expected & triangle
        window = config.mask_component.allowed(config, n_query, n_key, mask.device)
        if window is not None and not layer.is_cross:
            expected = expected & window
        drawn = case.trace.mask
        if drawn is not None and layer.path.startswith(case.stacks[-1].stack) and not layer.is_cross:
            expected = expected & (drawn[None, None] if drawn.dim() == 2 else drawn[:, None])
        asked = layer.queries[:, None, :, None]
        if bool((mask & ~expected & asked).any()):
            yield Measurement(layer.path, float("inf"), "It allows what the configuration or the padding forbids.")
        elif bool((~mask & expected & asked).any()):
            yield Measurement(layer.path, float("inf"), "It forbids what the configuration and the padding allow.")
        else:
            yield Measurement(layer.path, 0.0)


def patterns(case: Case) -> Iterator[Measurement]:
    """softmax over the keys; a query that may look at nothing gets zeros."""
    for layer, (made, scores) in case.attention("pattern", "scores"):
        empty = scores.isneginf().all(dim=-1, keepdim=True)
        scores = scores.double().masked_fill(empty, 0.0)
        expected = scores.softmax(dim=-1).masked_fill(empty, 0.0)
        below = (scores.amax(dim=-1, keepdim=True) - scores).nan_to_num(posinf=0.0)  # the exponential is of −below
        roundings = below + made.shape[-1] + 2 * OTHER_ROUNDINGS
        yield Measurement(layer.path, excess(made, expected, unit(made) * roundings * expected))


def mixes(case: Case) -> Iterator[Measurement]:
    """z = A V."""
    for layer, (pattern, v, z) in case.attention("pattern", "v", "z"):
        yield Measurement(layer.path, of_product(z, pattern, v))


def outputs(case: Case) -> Iterator[Measurement]:
    """out = concat(z₁ … zₕ) W_O + b."""
    for layer, (z, out) in case.attention("z", "out"):
        yield Measurement(layer.path, affine(case, layer.path, heads_joined(z), out, "weight_out", "bias_out"))
