"""Checks of who looks at whom: no weight on later tokens where the model is causal, and none on padding.

A masked score is −∞ and its weight exactly 0; a fill of −10⁹ underflows to 0 as well. So any weight above 10⁻⁸ (rounding
never makes a weight out of nothing) is a leak. With two tokens "the next token" and "the future" are one cell, and the
milder name is given.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from xformer.diagnosis.case import Case, Finding, Layer, cells, error
from xformer.formatting import percent, percent_at_most

LEAK = 1e-8
"""Weight above this has leaked through a mask."""


def check_future(case: Case) -> Iterator[Finding]:
    """causal-off-by-one · causal-upside-down · masked-with-zero · causal-ignored · sees-itself."""
    for layer in case.layers:
        pattern = case[f"{layer.path}.pattern"]
        if not layer.causal or pattern.shape[-2] != pattern.shape[-1] or cells(layer, pattern) is None:
            continue
        n = pattern.shape[-1]
        offset = torch.arange(n)[None, :] - torch.arange(n)[:, None]  # [query, key]: key − query
        offset = offset.to(pattern.device)
        asked = layer.queries[:, None, :, None]  # [batch, 1, query, 1]
        weight = pattern.masked_fill(~asked, 0.0)
        later = _total(weight, offset > 0)
        numbers = {
            "weight_on_later_tokens": later / max(1.0, float(layer.queries.sum()) * pattern.shape[1]),
            "weight_on_the_next": _total(weight, offset == 1) / max(LEAK, later),
        }
        if later > LEAK:
            yield _leak(case, layer, weight, offset, numbers)
        elif not case.trace.config.see_self and _total(weight, offset == 0) > LEAK:
            yield error(
                "sees-itself",
                layer.path,
                "The configuration says see_self=False, and tokens look at themselves.",
                numbers,
            )


def _leak(case: Case, layer: Layer, weight: Tensor, offset: Tensor, numbers: dict[str, float]) -> Finding:
    share = f"{percent(numbers['weight_on_later_tokens'], 1)} of the attention"
    if _total(weight, offset < 0) <= LEAK and _total(weight, offset > 0) > LEAK:
        kind, why = "causal-upside-down", "no token looks at an earlier one: the mask is upside down"
    elif _total(weight, offset > 1) <= LEAK:
        kind, why = "causal-off-by-one", "all of it to the very next token: the triangle is one diagonal too wide"
    elif _scores_are_zero(case, layer, (offset > 0)[None, None]):
        kind, why = "masked-with-zero", "all those scores are exactly 0: they were masked with 0 instead of −∞"
    else:
        kind, why = "causal-ignored", "no causal mask is in force"
    return error(kind, layer.path, f"{share} goes to later tokens in a causal layer; {why}.", numbers)


def check_window(case: Case) -> Iterator[Finding]:
    """window-off-by-one · window-ignored · masked-with-zero: weight on keys that the registered mask forbids."""
    config = case.trace.config
    for layer in case.layers:
        pattern = case[f"{layer.path}.pattern"]
        n_query, n_key = pattern.shape[-2:]
        allowed = config.mask_component.allowed(config, n_query, n_key, pattern.device)
        if layer.is_cross or allowed is None or cells(layer, pattern) is None:
            continue
        weight = pattern.masked_fill(~layer.queries[:, None, :, None], 0.0)
        lost = _total(weight, ~allowed)
        if lost <= LEAK:
            continue
        distance = (torch.arange(n_key)[None, :] - torch.arange(n_query)[:, None]).abs().to(pattern.device)
        share = lost / max(1.0, float(layer.queries.sum()) * pattern.shape[1])
        if _scores_are_zero(case, layer, ~allowed[None, None]):
            kind, why = "masked-with-zero", "all those scores are exactly 0: they were masked with 0 instead of −∞"
        elif lost - _total(weight, ~allowed & (distance == config.window)) <= LEAK:
            kind, why = "window-off-by-one", "all of it to the first key outside"
        else:
            kind, why = "window-ignored", "no window is in force"
        sentence = f"{percent(share, 1)} of the attention goes to keys outside the window of {config.window}; {why}."
        yield error(kind, layer.path, sentence, {"weight_outside": share})


def check_padding(case: Case) -> Iterator[Finding]:
    """no-padding-mask · masked-with-zero · cross-mask-of-target."""
    for layer in case.layers:
        pattern = case[f"{layer.path}.pattern"]
        if cells(layer, pattern) is None:
            continue
        if layer.is_cross and _is_masked_by_the_target(case, layer):
            yield error(
                "cross-mask-of-target",
                layer.path,
                "Cross-attention sees as many tokens of the source as the target has: it is masked by the target’s padding.",
                {
                    "padded_cells_seen": float((~layer.keys & _like_the_target(layer)).sum()),
                    "tokens_hidden": float((layer.keys & ~_like_the_target(layer)).sum()),
                },
            )
            continue
        if bool(layer.keys.all()):
            continue
        padded = ~layer.keys[:, None, None, :] & layer.queries[:, None, :, None]  # [batch, 1, query, key]
        weight = pattern.masked_fill(~padded, 0.0).sum(dim=-1)  # [batch, head, query]
        lost = weight.max().item()
        if lost <= LEAK:
            continue
        zero = _scores_are_zero(case, layer, padded)
        yield error(
            "masked-with-zero" if zero else "no-padding-mask",
            layer.path,
            f"Tokens give up to {percent_at_most(lost, 1)} of their attention to padding"
            + ("; all those scores are exactly 0: they were masked with 0 instead of −∞." if zero else "."),
            {"most_weight_on_padding": lost},
        )


def _is_masked_by_the_target(case: Case, layer: Layer) -> bool:
    """Whether the target's tokens see exactly those cells of the source where the target has tokens itself."""
    wrong = _like_the_target(layer)  # [batch, key]
    if bool(layer.queries.all()) or bool((wrong == layer.keys).all()):
        return False  # it forbids nothing, or it is the right one
    scores = f"{layer.path}.scores"
    seen = (
        ~case[scores].isneginf() if scores in case else case[f"{layer.path}.pattern"] > 0
    )  # [batch, head, query, key]
    asked = layer.queries[:, None, :, None].expand_as(seen)
    return bool((seen == wrong[:, None, None, :])[asked].all())


def _like_the_target(layer: Layer) -> Bool[Tensor, "batch key"]:
    """Which keys a mask made of the queries' padding allows; where there are more keys than queries, all of those."""
    n_key = layer.keys.shape[1]
    return F.pad(layer.queries, (0, max(0, n_key - layer.queries.shape[1])), value=True)[:, :n_key]


def _scores_are_zero(case: Case, layer: Layer, where: Tensor) -> bool:
    name = f"{layer.path}.scores"
    return name in case and bool((case[name][where.expand(case[name].shape)] == 0).all())


def _total(weight: Tensor, where: Tensor) -> float:
    return weight[..., where].double().sum().item()
