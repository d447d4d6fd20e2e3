"""Checks of the residual stream: is each sublayer's result added to what was there?

    no norm, pre-norm   after = before + out                     an identity in the trace
    post-norm           after = γ · n(before + out) + β          n(s) = (s − mean s) / √(var s + ε)

γ and β are not in the trace, but they are the same for every token: in each of the d_model dimensions `after` is a straight
line over n(·), and two unknowns meet as many equations as there are tokens. So from three tokens on, the right sum is known by
fitting exactly (in float32 to about 10⁻⁶; accepted to 10⁻³), whatever was learned; the mistakes are fitted in its place only
where it fails.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.linalg import vector_norm

from xformer.components import NORMS, Norm
from xformer.diagnosis.case import Case, Finding, Sublayer, centred, error, relative
from xformer.diagnosis.rounding import of_norm

FIT_LIMIT = 1e-3
NO_ADDITION = 1e-6
"""A sublayer whose result is a smaller share of the stream adds nothing."""
LEAST_SPREAD = 1e-4


def check_residual(case: Case) -> Iterator[Finding]:
    """no-residual · lost-output · residual-after-norm · no-norm · other-norm · stream-unexplained."""
    norm, eps, component = case.trace.config.norm, case.trace.config.norm_eps, case.trace.config.norm_component
    for sublayer in case.sublayers:
        if sublayer.before.shape[0] * sublayer.before.shape[1] < 3:
            continue

        def fits(made: Tensor, sublayer: Sublayer = sublayer) -> bool:
            if norm == "post":
                return misfit_of_norm(made, sublayer.after, component, eps) <= FIT_LIMIT
            return relative(sublayer.after - made, sublayer.after) <= FIT_LIMIT

        if fits(sublayer.before + sublayer.out):
            continue
        numbers = {"added_to_stream": relative(sublayer.out, sublayer.before)}
        if fits(sublayer.out):
            kind = "no-residual"
            what = "is the sublayer's result alone, not added to what was there: the residual connection is missing."
        elif fits(sublayer.before):
            kind = "lost-output"
            what = "is what it was before: the sublayer's result is computed and lost."
        elif norm == "pre" and fits(sublayer.inside + sublayer.out):
            kind = "residual-after-norm"
            what = "goes on from the normalised vectors instead of those before the norm."
        elif norm == "post" and relative(sublayer.after - sublayer.before - sublayer.out, sublayer.after) <= FIT_LIMIT:
            kind = "no-norm"
            what = 'is the bare sum, though the configuration says norm="post".'
        elif norm == "post" and (other := other_norm(case, sublayer.before + sublayer.out, sublayer.after)):
            kind, what = (
                "other-norm",
                f"is what {other.title} makes of the sum, and the configuration says {component.title}.",
            )
        else:
            kind = "stream-unexplained"
            what = "is not what the configuration makes of the stream before and the sublayer's result."
        yield error(kind, sublayer.path, f"The stream after it {what}", numbers)


def check_norms(case: Case) -> Iterator[Finding]:
    """other-norm, where a sublayer reads (pre-norm) and at the end; `check_residual` covers post-norm."""
    config = case.trace.config
    places = [(one.path, one.before, one.inside) for one in case.sublayers] if config.norm == "pre" else []
    for at in case.stacks:
        name, last = f"{at.prefix}final_norm", f"{at.stack}.{config.n_layers - 1}.resid_post"
        if config.final_norm and name in case and last in case:
            places.append((name, case[last], case[name]))
    for path, x, made in places:
        if other := other_norm(case, x, made):
            sentence = f"The norm is {other.title}, and the configuration says {config.norm_component.title}."
            yield error("other-norm", path, sentence)


def other_norm(case: Case, x: Tensor, made: Tensor) -> Norm | None:
    """The registered norm that made `made` [..., d_model] from `x` where the configured one did not."""
    own, eps = case.trace.config.norm_component, case.trace.config.norm_eps
    excess = of_norm(made, x, own, eps, None, None)
    if excess is None or excess <= 1:
        return None
    fits = {one: of_norm(made, x, one, eps, None, None) for one in NORMS.values() if one is not own}
    return next((one for one, excess in fits.items() if excess is not None and excess <= 1), None)


def check_additions(case: Case) -> Iterator[Finding]:
    """adds-nothing (a sublayer whose result is 0) · constant-stream (all tokens have one vector: rank collapse)."""
    for sublayer in case.sublayers:
        share = relative(sublayer.out, sublayer.before)
        looks = f"{sublayer.path}.pattern" not in case or bool(case[f"{sublayer.path}.pattern"].any())
        if share < NO_ADDITION and looks:  # a token that may see nothing, itself included, adds nothing rightly
            yield Finding(
                "adds-nothing",
                (sublayer.path,),
                "warning",
                "The sublayer puts out nothing: what it adds is below a millionth of the stream.",
                {"added_to_stream": share},
            )
    yield from _constant(case)


def _constant(case: Case) -> Iterator[Finding]:
    """Dong et al. 2021 (arXiv:2103.03404): attention without residual connections makes all tokens alike."""
    for block in case.blocks:
        name = f"{block}.resid_post"
        if name not in case:
            continue
        is_target = block.startswith("decoder.") and case.target_valid is not None
        tokens = case.trace.target if is_target else case.trace.tokens
        valid = case.target_valid if is_target else case.valid
        if tokens is None or valid is None:
            continue
        x = case[name].double()
        if case.trace.config.image:  # the class token is unlike any patch
            tokens = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        spreads = _spreads(x, tokens, valid)
        if len(spreads) and spreads.max() < LEAST_SPREAD:
            sentence = "All tokens have the same vector here, so nothing after it can tell them apart."
            yield Finding("constant-stream", (name,), "warning", sentence, {"spread": spreads.max().item()})


def _spreads(x: Tensor, tokens: Tensor, valid: Tensor) -> Tensor:
    """How far the vectors of each input that has two different tokens lie from their mean, as a share of their length."""
    rows, n = x.masked_fill(~valid[..., None], 0.0), valid.sum(dim=1)[:, None, None]  # [batch, pos, d_model]
    apart = (rows - rows.sum(dim=1, keepdim=True) / n).masked_fill(~valid[..., None], 0.0)
    shares = vector_norm(apart, dim=(1, 2)) / vector_norm(rows, dim=(1, 2)).clamp(min=1e-300)
    first = tokens.gather(1, valid.long().argmax(dim=1, keepdim=True))
    return shares[((tokens != first) & valid).any(dim=1)]


def misfit_of_norm(made: Tensor, after: Tensor, norm: Norm, eps: float) -> float:
    """How badly `after` is a straight line, dimension by dimension, over the normalised `made`: 0 exactly, about 1 not at all.
    0 also where all rows of `after` are alike, so that anything would fit.

    Args:
        made: What the norm should have read [..., d_model].
        after: What it put out, of the same shape.
        norm: The registered norm.
        eps: Its ε.
    """
    y = centred(after)  # [row, d_model]
    if y is None:
        return 0.0
    normal, _ = norm.standardised(made.flatten(0, -2), eps)
    x = normal - normal.mean(dim=0)  # [row, d_model]
    slope = (x * y).sum(dim=0) / x.square().sum(dim=0).clamp(min=1e-30)  # [d_model]: γ
    return relative(y - slope * x, y)
