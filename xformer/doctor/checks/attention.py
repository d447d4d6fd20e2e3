"""Checks of attention itself: its weights, the mask constant, and the grouping of key/value heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.doctor.check import CheckContext, Finding, assume, broken, check, stacked
from xformer.doctor.formulas.heads import owners
from xformer.doctor.model_call import ModelCall
from xformer.doctor.token_model import TokenModel
from xformer.doctor.watch import Watched, stepwise, watch
from xformer.program.record import tensors_in

LOOSE = 1e4
"""Largest distance from 1, in machine epsilons, of the sum of a row of weights."""
UNDERFLOW = -104.0
"""exp of anything below this is 0 in float32."""
CLEARLY = 2
"""Masked scores are at least this many times the range of the others below them; by chance, this is rare."""


def loose(model: TokenModel) -> float:
    """Return the tolerance of attention weights: 1e-3 in float32, 0.08 in bfloat16."""
    return min(LOOSE * model.eps, 0.08)


def worst_cell(apart: Float[Tensor, "batch head query key"]) -> dict[str, int]:
    """Return head, query and key of the largest difference."""
    _, head, query, key = (int(i) for i in torch.unravel_index(apart.argmax(), apart.shape))
    return {"head": head, "query": query, "key": key}


@check("attention_rows", "attention weights are softmax(scores), and each row sums to 1, or to less if there is a sink")
def attention_rows(context: CheckContext) -> Finding:
    """Compare the weights that multiply the values, and the returned weights, with the softmax of the scores and sinks."""
    model = context.model
    run = model.shortened(16)
    every = watch(model, run, by_steps=True)
    seen = [one for one in every if not one.is_kernel]
    exact = [one for one in seen if one.is_finite or one.over != "key"]
    for one in exact:
        if (found := _wrong_rows(one, loose(model))) is not None:
            return found
    returned = _returned(model, run)
    if len(returned) == len(seen):
        for one, weights in zip(seen, returned, strict=True):
            is_alike = one.is_finite and weights.shape == one.pattern.shape
            apart = (weights - one.pattern).abs() if is_alike else None
            if apart is not None and float(apart.max()) > loose(model):
                sentence = f"The returned weights differ by {float(apart.max()):.2g} from those that multiply values."
                remedy = "Return the weights that are actually multiplied with the values, after mask and softmax."
                return finding_at(one, worst_cell(apart), sentence, remedy, float(apart.max()))
    assume(every, "No attention was found whose weights can be read.")
    assume(seen, "A fused kernel computes the attention, and the model has no other path that exposes the weights.")
    assume(exact, "The queries, keys, values or weights of every attention contain NaN or infinity.")
    least = [lowest for one in exact if (lowest := float(_sums(one).min())) < 1 - loose(model)]
    sentences = []
    if len(exact) > len(least):
        n = len(exact) - len(least)
        sentences.append(f"Each row of weights equals softmax(scores) and sums to 1, in {n} attentions.")
    if least:
        rule = "Each row equals exp(scores) / (sum + rest), where the rest is a sink or an added term"
        sentences.append(f"{rule}, and sums to between {min(least):.3g} and 1, in {len(least)} attentions.")
    if returned and len(returned) == len(seen) == len(exact):
        sentences.append("The returned weights agree.")
    return Finding("holds", " ".join(sentences))


def finding_at(
    one: Watched, cell: dict[str, int], sentence: str, remedy: str, size: float, cause: str = "pattern"
) -> Finding:
    """Return a finding of a broken rule at one cell of one attention."""
    pattern = one.pattern[0, cell["head"]].detach()
    name = f"{one.path}.{cause}"
    return broken(sentence, remedy, size, cause=cause, name=name, layer=one.layer, pattern=pattern, **cell)


def _wrong_rows(one: Watched, limit: float) -> Finding | None:
    """Return a finding if the weights of one attention are not softmax(scores), else None."""
    remedy = "Take the softmax over the keys (dim=-1) of the masked scores, and use the result unchanged in eval mode."
    if one.over != "key":
        axis = {"query": "the queries", "head": "the heads"}.get(one.over, "the batch")
        apart = (one.softmax.sum(dim=-1, keepdim=True) - 1).abs().nan_to_num(1.0).expand_as(one.softmax)
        cause = {"query": "softmax_over_queries", "head": "softmax_over_heads"}.get(one.over, "attention_over_batch")
        found = finding_at(
            one, worst_cell(apart), f"The softmax is over {axis}, not over the keys.", remedy, float(apart.max())
        )
        return replace(found, cause=cause)
    empty = ~one.allowed.any(dim=-1, keepdim=True)  # a fully masked row may be zeros or uniform
    pattern, total = one.pattern.double(), _sums(one)
    exponents = torch.cat([one.scores.masked_fill(~one.allowed, -torch.inf), one.sinks], dim=-1).double()
    expected = exponents.softmax(dim=-1)[..., : pattern.shape[-1]]
    if one.added:
        expected = expected * total.clamp(max=1)
    apart = (pattern - expected).abs().masked_fill(empty, 0.0)
    off = (total - 1 if not (one.added or one.sinks.numel()) else (total - 1).clamp(min=0)).abs()
    if max(float(apart.max()), float(off.max())) > limit:
        sentence = (
            f"The weights that multiply the values are not softmax(scores): a row sums to {total.flatten()[off.argmax()]:.3g}."
            if float(off.max()) > limit
            else f"The weights that multiply the values differ from softmax(scores) by {float(apart.max()):.2g}."
        )
        return finding_at(one, worst_cell(apart), sentence, remedy, float(apart.max()))
    if one.added != "constant":
        return None
    rest = (exponents.logsumexp(dim=-1, keepdim=True) + (1 / total - 1).clamp(min=0).log()).exp()
    rest = rest.masked_fill((total > 1 - limit) | (total < 1e-30), torch.nan)  # indistinguishable from the weights
    for head, of in enumerate(rest.unbind(1)):
        known = of[~of.isnan()]
        if known.numel() and float(known.max()) > (1 + 10 * limit) * float(known.min()):
            low, high = float(known.min()), float(known.max())
            sentence = f"Weights are not exp(scores) / (sum + constant): the constant would be {low:.3g} to {high:.3g}."
            place = worst_cell((of - known.min()).nan_to_num(0.0)[:, None]) | {"head": head}
            return finding_at(one, place, sentence, _ADDED, high - low)
    return None


_ADDED = "Where the maximum is subtracted from the scores first, add exp(−maximum) times the constant to the sum."


def _sums(one: Watched) -> Float[Tensor, "batch head query 1"]:
    """Return the sums of the rows of weights; 1 for rows without allowed keys."""
    return one.pattern.double().sum(dim=-1, keepdim=True).masked_fill(~one.allowed.any(dim=-1, keepdim=True), 1.0)


def _returned(model: TokenModel, run: ModelCall) -> list[Tensor]:
    """Return the attention weights in a model's output, [batch, head, query, key], in the order of its layers."""
    if not model.can("attention"):
        return []
    model = stepwise(model)
    with torch.no_grad():
        output = model.call(model.arguments(run) | {model.takes["attention"]: True})
    given = getattr(output, "attentions", None if model.is_transformers else output)
    n = run.read.shape[1]
    return [one for one in tensors_in(given) if one.dim() == 4 and tuple(one.shape[-2:]) == (n, n)]


@check("mask_constant", "masked scores are so low that their weights are exactly 0, even for 10 times larger scores")
def mask_constant(context: CheckContext) -> Finding:
    """Compare the largest masked score with the other scores."""
    model = context.model
    base = model.shortened(16)
    if (
        base.target is not None and base.target.shape[1] == base.tokens.shape[1]
    ):  # tells the stacks apart by their lengths
        base = replace(base, target=base.target[:, :-1])
    runs = [base] if model.causal else []
    if model.can("valid") and base.target is None and base.tokens.shape[1] > 2:
        valid = torch.ones_like(base.tokens, dtype=torch.bool)
        valid[:, -2:] = False
        padded = ModelCall(base.tokens, valid=valid)
        runs.append(stacked([padded, padded]))  # in a batch of one, flattened heads would look like the batch
    own = getattr(model.module.config, "_attn_implementation", "eager") if model.is_transformers else "eager"
    lowest, n_masked = -float("inf"), 0
    for run in runs:
        for by_steps in (False,) if own == "eager" else (False, True):
            for one in watch(model, run, by_steps=by_steps):
                cells = _cells(one, run, model.causal) if one.is_finite else None
                if cells is None or not cells[0].any():
                    continue
                for head, constant, reach in _constants(one, *cells):
                    if reach > UNDERFLOW:
                        return _weak(one, head, constant, cells[0])
                    n_masked, lowest = n_masked + 1, max(lowest, constant)
    assume(n_masked, "No masked scores were observed.")
    return Finding("holds", f"Masked scores are at most {lowest:.3g}, so their weights are exactly 0.")


def _cells(one: Watched, run: ModelCall, causal: bool) -> tuple[Tensor, Tensor] | None:
    """Return which cells must be masked and which need not be, both [query, key]; None for attention to another stream."""
    n = run.read.shape[1]
    if not one.is_square or one.pattern.shape[-2] != n:
        return None
    masked = torch.ones(n, n, dtype=torch.bool).triu(1) if causal else torch.zeros(n, n, dtype=torch.bool)
    tokens = torch.ones(n, dtype=torch.bool) if run.valid is None else run.valid[0].cpu()
    masked |= ~tokens
    return masked & tokens[:, None], ~masked & tokens[:, None]  # rows of padding do not matter


def _constants(one: Watched, masked: Tensor, seen: Tensor) -> Iterator[tuple[int, float, float]]:
    """Yield each head, its mask constant, and the largest log-weight of a masked key if scores were 10 times larger.

    Heads whose masked scores are neither equal nor clearly below the others are skipped: they have no mask, or another one,
    which other checks report.
    """
    for head, score in enumerate(one.scores[0].double()):
        hidden, others = score[masked], score[seen]
        constant, itself = float(hidden.max()), score.diagonal()[seen.diagonal()]
        if len(hidden) > 2 and bool((hidden == hidden[0]).all()):
            others = others[others != constant]  # leave out keys outside a window, which have the same constant
            is_masked = others.numel() > 0
        else:
            least = float(itself.min()) if itself.numel() else constant
            is_shifted = constant < least and _is_shifted(hidden, others)
            others = others[others > (constant + least) / 2]  # leave out keys outside a window here as well
            is_clear = others.numel() > 0 and least - constant > CLEARLY * float(others.max() - others.min())
            is_masked = is_shifted or (
                is_clear and (len(hidden) > 2 or constant < UNDERFLOW)
            )  # few may be low by chance
        if is_masked:
            reach = 20 * float(others.abs().max()) if bool(others.isfinite().all()) else 0.0
            yield head, constant, constant + reach


def _is_shifted(hidden: Float[Tensor, " cell"], others: Float[Tensor, " cell"]) -> bool:
    """Whether masked scores are alike, as scores plus a constant are, and lower than the others by more than their spread."""
    is_alike = len(hidden) > 10 and float(hidden.std()) < CLEARLY * float(others.std())
    return is_alike and float(hidden.mean()) < float(others.mean() - others.std())


def _weak(one: Watched, head: int, constant: float, masked: Tensor) -> Finding:
    cells = one.softmax.double() * masked
    largest = float(cells[0, head].max())
    if largest == 0.0:
        cells = one.scores.double().masked_fill(~masked, -float("inf"))
    cell = worst_cell(cells[:, head : head + 1]) | {"head": head}
    already = f" (already up to {largest:.2g})" if largest > 0 else ""
    sentence = f"Masked scores are only {constant:.3g}: when scores are large, masked keys get weight{already}."
    remedy = "Mask with −∞, or with torch.finfo(scores.dtype).min."
    return replace(finding_at(one, cell, sentence, remedy, abs(constant), "mask"), cause="mask_too_small")


GROUPING = (
    "Repeat keys and values head by head (repeat_interleave, or expand and reshape), not all heads as a block (repeat)."
)


@check("key_value_groups", "query head h uses key/value head h // group, and no other")
def key_value_groups(context: CheckContext) -> Finding:
    """Query heads that share keys or values must be adjacent, in groups of equal size."""
    seen = [one for one in watch(context.model, context.model.shortened(4)) if one.k is not None]
    seen = [one for one in seen if one.scores.shape[1] > 1 and one.is_finite]
    assume(seen, "The model has only one head, or its keys could not be observed.")
    kinds = set()
    for one in seen:
        n_heads = one.scores.shape[1]
        for heads in (one.k, one.v):
            if heads is None or heads.shape[1] != n_heads:  # grouped by broadcasting, without a copy
                continue
            read = owners(heads[0])
            distinct = sorted(set(read))
            kinds.add(f"{len(distinct)} for {n_heads} query heads")
            if n_heads % len(distinct):
                continue
            for head, owner in enumerate(read):
                group = head * len(distinct) // n_heads
                if owner != distinct[group]:
                    sentence = "A query head reads the key/value head of another group."
                    found = broken(sentence, GROUPING, name=f"{one.path}.v", layer=one.layer, head=head, cause="v")
                    return replace(found, cause="key_value_head_order")
    rest = f" ({', '.join(sorted(kinds))})" if kinds else ""
    return Finding("holds", f"Every query head uses the key/value head of its group{rest}.")
