"""Checks of an attention layer: each step is recomputed, and known mistakes are identified by name.

Scores     S = Q Kᵀ / √d_head + bias; the factor is fitted by least squares over the allowed cells. In float32 the residual
           of a correct layer is about 10⁻⁶ of ‖S‖, and that of other tensors about all of it; the limit is 10⁻³.
Softmax    a query's weights sum to 1. The rounding error of a sum of n weights is at most about n units (Higham 2002, §4.2);
           the limit is 16 n units, 3·10⁻⁵ for 15 keys in float32.
Masks      a masked score is −∞ and its weight exactly 0; a fill of −10⁹ underflows to 0 as well. A weight above 10⁻⁸ on a
           forbidden key is a leak. With two tokens, "the next token" and "the future" are the same cell, named as the former.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from xformer.doctor.equations.case import Case, Deviation, Mistake, TraceLayer, broken, cells, error, relative
from xformer.doctor.equations.projections import affine, heads_joined
from xformer.doctor.equations.rounding import OTHER_ROUNDINGS, epsilon, excess, of_product
from xformer.formatting import percent, percent_at_most


def projections(case: Case) -> Iterator[Deviation]:
    """q, k and v, with rotations by position undone; heads of one group share k and v."""
    config = case.trace.config
    kv, widths = config.kv_component, config.kv_component.widths(config)
    for layer, _ in case.attention("in", "q", "k", "v"):
        for index, (name, stream) in enumerate(case.rows_into(layer)):
            made, slack = case.projected(layer.path, name), 1.0
            if stream is None:
                continue
            if name != "q" and not torch.equal(kv.expand(made, config.n_heads), case[f"{layer.path}.{name}"]):
                yield broken(layer.path, f"Heads of one group differ in {name}.")
                continue
            if name != "v" and case.has(layer.path, "pos_angles"):
                made, slack = unturned(case, layer, made), 4.0  # pairs mix their rounding, in two rotations
            start, made = sum(widths[:index]), heads_joined(made)
            rows = slice(start, start + widths[index])
            misfit = affine(case, layer.path, stream, made, "weight_in", "bias_in", rows, slack)
            yield Deviation(layer.path, misfit)


def unturned(case: Case, layer: TraceLayer, made: Tensor) -> Tensor:
    """Undo the rotation of q or k by the angles of the trace."""
    angles = case[f"{layer.path}.pos_angles"]
    return case.trace.config.position_kind.rotate(made.double(), -angles.double()).to(made.dtype)


def scores(case: Case) -> Iterator[Deviation]:
    """q·k/√d_head plus the bias wherever the mask allows, −∞ wherever it does not."""
    for layer, (q, k, made) in case.attention("q", "k", "scores"):
        bias = case[f"{layer.path}.pos_bias"] if case.has(layer.path, "pos_bias") else None
        allowed = case[f"{layer.path}.mask"] if case.has(layer.path, "mask") else ~made.isneginf()
        if allowed.shape != made.shape or q.shape[:3] != made.shape[:3] or k.shape[-2] != made.shape[-1]:
            yield broken(layer.path)
        elif bool((made.isneginf() != ~allowed).any()):
            yield broken(layer.path, "The scores are not −∞ exactly where the mask is false.")
        else:
            yield Deviation(layer.path, _allowed_scores(made, q, k, bias, allowed, case.trace.config.d_head))


def _allowed_scores(made: Tensor, q: Tensor, k: Tensor, bias: Tensor | None, allowed: Tensor, d_head: int) -> float:
    expected = q.double() @ k.double().mT / math.sqrt(d_head)
    size = q.float().abs() @ k.float().abs().mT / math.sqrt(d_head)
    if bias is not None:
        expected, size = expected + bias.double(), size + bias.abs()
    made, expected = made.masked_fill(~allowed, 0.0), expected.masked_fill(~allowed, 0.0)
    return excess(made, expected, (d_head + OTHER_ROUNDINGS) * epsilon(made) * size)


def masks(case: Case) -> Iterator[Deviation]:
    """True exactly where causality, the registered mask, padding and a custom mask all permit attention."""
    config = case.trace.config
    for layer, (mask,) in case.attention("mask"):
        n_query, n_key = layer.queries.shape[1], layer.keys.shape[1]
        if mask.shape[-2:] != (n_query, n_key):
            yield broken(layer.path, "The mask is not between this layer’s queries and keys.")
            continue
        expected = layer.keys[:, None, None, :].expand(-1, 1, n_query, -1)  # [batch, 1, query, key]
        if layer.causal:
            offset = 0 if config.see_self else -1
            triangle = torch.ones(n_query, n_key, dtype=torch.bool, device=mask.device).tril(offset)
            expected = expected & triangle
        window = config.mask_component.allowed(config, n_query, n_key, mask.device)
        if window is not None and not layer.is_cross:
            expected = expected & window
        custom_mask = case.trace.mask
        if custom_mask is not None and layer.path.startswith(case.stacks[-1].stack) and not layer.is_cross:
            expected = expected & (custom_mask[None, None] if custom_mask.dim() == 2 else custom_mask[:, None])
        is_token = layer.queries[:, None, :, None]
        if bool((mask & ~expected & is_token).any()):
            yield broken(layer.path, "The mask allows keys that the configuration or the padding forbids.")
        elif bool((~mask & expected & is_token).any()):
            yield broken(layer.path, "The mask forbids keys that the configuration and the padding allow.")
        else:
            yield Deviation(layer.path, 0.0)


def patterns(case: Case) -> Iterator[Deviation]:
    """softmax over the keys; a query without any permitted key gets zeros."""
    for layer, (made, scores) in case.attention("pattern", "scores"):
        empty = scores.isneginf().all(dim=-1, keepdim=True)
        scores = scores.double().masked_fill(empty, 0.0)
        expected = scores.softmax(dim=-1).masked_fill(empty, 0.0)
        below = (scores.amax(dim=-1, keepdim=True) - scores).nan_to_num(posinf=0.0)  # the softmax takes exp(−below)
        roundings = below + made.shape[-1] + 2 * OTHER_ROUNDINGS
        yield Deviation(layer.path, excess(made, expected, epsilon(made) * roundings * expected))


def mixes(case: Case) -> Iterator[Deviation]:
    """z = A V."""
    for layer, (pattern, v, z) in case.attention("pattern", "v", "z"):
        yield Deviation(layer.path, of_product(z, pattern, v))


def outputs(case: Case) -> Iterator[Deviation]:
    """out = concat(z₁ … zₕ) W_O + b."""
    for layer, (z, out) in case.attention("z", "out"):
        yield Deviation(layer.path, affine(case, layer.path, heads_joined(z), out, "weight_out", "bias_out"))


def check_softmax(case: Case) -> Iterator[Mistake]:
    """softmax_over_queries · softmax_over_heads · scaled_after_softmax · masked_after_softmax · rows_not_one."""
    for layer in case.layers:
        pattern = case[f"{layer.path}.pattern"]  # [batch, head, query, key]
        allowed = case[f"{layer.path}.mask"] if case.has(layer.path, "mask") else torch.ones_like(pattern).bool()
        if allowed.shape == pattern.shape and (found := _wrong_softmax(case, layer, pattern, allowed)) is not None:
            yield found


def _wrong_softmax(case: Case, layer: TraceLayer, pattern: Tensor, allowed: Tensor) -> Mistake | None:
    counts = allowed.any(dim=-1)  # [batch, head, query]: has a permitted key
    if layer.queries.shape[1] == pattern.shape[2]:
        counts = counts & layer.queries[:, None]
    rows = pattern.sum(dim=-1)[counts].double()
    if len(rows) == 0 or _all(rows, 1.0, pattern, pattern.shape[-1]):
        return None
    sums = {"row_sum": rows.mean().item(), "row_sum_least": rows.min().item(), "row_sum_most": rows.max().item()}
    scale = 1 / math.sqrt(case.trace.config.d_head)
    columns = pattern.sum(dim=-2)[allowed.any(dim=-2)].double()
    if _all(rows, scale, pattern, pattern.shape[-1]):
        sentence = f"Each row sums to {sums['row_sum']:.3g} = 1/√d_head, not 1: the scale is applied after the softmax."
        numbers = {"sum": sums["row_sum"], "one_over_root_d_head": scale}
        return error("scaled_after_softmax", layer.path, sentence, numbers)
    if _all(columns, 1.0, pattern, pattern.shape[-2]):
        sentence = "Columns of the pattern sum to 1 and rows do not: the softmax is over the queries, not the keys."
        return error("softmax_over_queries", layer.path, sentence, sums)
    over_heads = pattern.sum(dim=1)[allowed.any(dim=1)].double()
    if pattern.shape[1] > 1 and _all(over_heads, 1.0, pattern, pattern.shape[1]):
        sentence = "In each cell the weights of all heads sum to 1, and rows do not: the softmax is over the heads."
        return error("softmax_over_heads", layer.path, sentence, sums)
    if case.has(layer.path, "scores"):
        whole = case[f"{layer.path}.scores"].softmax(dim=-1)
        if torch.allclose(whole[allowed], pattern[allowed], rtol=1e-4, atol=1e-7):
            least = f"{sums['row_sum_least']:.3g}"
            sentence = (
                f"The softmax includes masked keys, whose weights are zeroed later: a row sums to as little as {least}."
            )
            return error("masked_after_softmax", layer.path, sentence, sums)
    sentence = f"Rows sum to between {sums['row_sum_least']:.3g} and {sums['row_sum_most']:.3g} instead of 1."
    return error("rows_not_one", layer.path, sentence, sums)


def _all(sums: Tensor, value: float, pattern: Tensor, n: int) -> bool:
    """Return whether all sums of n terms equal the value up to rounding."""
    return len(sums) > 0 and bool(((sums - value).abs() <= 16 * n * torch.finfo(pattern.dtype).eps).all())


FIT_LIMIT = 1e-3

MIN_CELLS = 3
"""Smallest number of cells from which a factor can be told from chance."""


def check_scores(case: Case) -> Iterator[Mistake]:
    """no_scale · wrong_scale · keys_values_swapped."""
    for layer, activations in case.attention("q", "k", "v", "scores", "pattern", "z"):
        if (found := _wrong_scores(case, layer, *activations)) is not None:
            yield found


def _wrong_scores(
    case: Case, layer: TraceLayer, q: Tensor, k: Tensor, v: Tensor, scores: Tensor, pattern: Tensor, z: Tensor
) -> Mistake | None:
    config, q, k, scores = case.trace.config, q.double(), k.double(), scores.double()
    finite = scores.isfinite() & (scores != 0)  # a score of exactly 0 was wrongly masked with 0
    if case.has(layer.path, "pos_bias"):
        scores = scores - case[f"{layer.path}.pos_bias"].double()
    right = 1 / math.sqrt(config.d_head)
    dots, measured = (q @ k.mT).masked_fill(~finite, 0.0), scores.masked_fill(~finite, 0.0)
    if finite.sum() < MIN_CELLS or dots.norm() == 0 or relative(measured - right * dots, measured) <= FIT_LIMIT:
        return None
    dots, measured = dots[finite], measured[finite]
    v, pattern, z = v.double(), pattern.double(), z.double()
    if config.d_head == config.d_value and relative(z - pattern @ k, z) <= FIT_LIMIT:
        swapped = scores[finite] - right * (q @ v.mT)[finite]
        if relative(swapped, scores[finite]) <= FIT_LIMIT:
            sentence = "The scores are q·v/√d_head and the pattern weights the keys: keys and values are swapped."
            misfit = relative(measured - right * dots, measured)
            return error("keys_values_swapped", layer.path, sentence, {"misfit_of_q_k": misfit})
    factor = ((measured * dots).sum() / dots.square().sum()).item()
    if relative(measured - factor * dots, measured) > FIT_LIMIT:
        return None
    numbers = {"factor": factor, "one_over_root_d_head": right, "score_std": measured.std().item()}
    if abs(factor - 1) <= FIT_LIMIT:
        if _scores_scaled_after(pattern, right):
            return None
        times = f"{math.sqrt(config.d_head):.3g} times too large"
        sentence = f"The scores are plain q·k, {times}: they are not divided by √d_head."
        return error("no_scale", layer.path, sentence, numbers)
    sentence = f"The scores are {factor:.4g} · q·k, but the factor should be 1/√d_head = {right:.4g}."
    return error("wrong_scale", layer.path, sentence, numbers)


def _scores_scaled_after(pattern: Tensor, scale: float) -> bool:
    """Return whether the missing factor is applied after the softmax, which `check_softmax` reports."""
    sums = pattern.sum(dim=-1)
    sums = sums[sums > 0]
    return len(sums) > 0 and torch.allclose(sums, torch.full_like(sums, scale), rtol=1e-4)


ZEROS = "all those scores are exactly 0: they were masked with 0 instead of −∞"
LEAK = 1e-8
"""Weight on masked keys above which the mask counts as leaking."""


def check_future(case: Case) -> Iterator[Mistake]:
    """causal_off_by_one · causal_upside_down · masked_with_zero · causal_ignored."""
    for layer in case.layers:
        pattern = case[f"{layer.path}.pattern"]
        if not layer.causal or pattern.shape[-2] != pattern.shape[-1] or cells(layer, pattern) is None:
            continue
        index = torch.arange(pattern.shape[-1], device=pattern.device)
        offset = index[None, :] - index[:, None]  # [query, key]: key − query
        weight = pattern.masked_fill(~layer.queries[:, None, :, None], 0.0)
        later = _total(weight, offset > 0)
        numbers = {
            "weight_on_later_tokens": later / max(1.0, float(layer.queries.sum()) * pattern.shape[1]),
            "weight_on_the_next": _total(weight, offset == 1) / max(LEAK, later),
        }
        if later > LEAK:
            yield _leak(case, layer, weight, offset, numbers)


def _leak(case: Case, layer: TraceLayer, weight: Tensor, offset: Tensor, numbers: dict[str, float]) -> Mistake:
    share = f"{percent(numbers['weight_on_later_tokens'], 1)} of the attention"
    if _total(weight, offset < 0) <= LEAK and _total(weight, offset > 0) > LEAK:
        kind, why = "causal_upside_down", "no token attends to an earlier one: the mask is upside down"
    elif _total(weight, offset > 1) <= LEAK:
        kind, why = "causal_off_by_one", "all of it goes to the very next token: the triangle is one diagonal too wide"
    elif _scores_are_zero(case, layer, (offset > 0)[None, None]):
        kind, why = "masked_with_zero", ZEROS
    else:
        kind, why = "causal_ignored", "no causal mask is applied"
    return error(kind, layer.path, f"{share} goes to later tokens in a causal layer; {why}.", numbers)


def check_padding(case: Case) -> Iterator[Mistake]:
    """no_padding_mask · masked_with_zero."""
    for layer in case.layers:
        pattern = case[f"{layer.path}.pattern"]
        if cells(layer, pattern) is None or bool(layer.keys.all()):
            continue
        padded = ~layer.keys[:, None, None, :] & layer.queries[:, None, :, None]  # [batch, 1, query, key]
        weight = pattern.masked_fill(~padded, 0.0).sum(dim=-1)  # [batch, head, query]
        lost = weight.max().item()
        if lost <= LEAK:
            continue
        kind, why = "no_padding_mask", "."
        if _scores_are_zero(case, layer, padded):
            kind, why = "masked_with_zero", f"; {ZEROS}."
        sentence = f"Tokens give up to {percent_at_most(lost, 1)} of their attention to padding{why}"
        yield error(kind, layer.path, sentence, {"most_weight_on_padding": lost})


def _scores_are_zero(case: Case, layer: TraceLayer, where: Tensor) -> bool:
    name = f"{layer.path}.scores"
    return name in case and bool((case[name][where.expand(case[name].shape)] == 0).all())


def _total(weight: Tensor, where: Tensor) -> float:
    return weight[..., where].double().sum().item()
