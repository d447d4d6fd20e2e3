"""Checks of the residual stream: is each sublayer's output added to the stream?

    no norm, pre-norm   after = before + out                     an identity in the trace
    post-norm           after = γ · n(before + out) + β          n(s) = (s − mean s) / √(var s + ε)

γ and β are not in the trace, but they are the same for every token: in each of the d_model dimensions `after` is an affine
function of n(·), with two unknowns and one equation per token. From three tokens on, only the right sum fits (to about 10⁻⁶ in
float32; the limit is 10⁻³), whatever the weights. Known mistakes are tried only if it does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from xformer.components import Norm
from xformer.config import MAX_INK
from xformer.doctor.equations.case import (
    Case,
    Deviation,
    Mistake,
    TraceStack,
    TraceSublayer,
    broken,
    centred,
    error,
    relative,
    warning,
)
from xformer.doctor.equations.projections import affine
from xformer.doctor.equations.rounding import OTHER_ROUNDINGS, epsilon, excess, of_norm, of_sum

FIT_LIMIT = 1e-3
NO_ADDITION = 1e-6
"""A sublayer whose output is below this fraction of the stream counts as adding nothing."""


def check_residual(case: Case) -> Iterator[Mistake]:
    """no_residual · lost_output · residual_after_norm · stream-unexplained."""
    norm, eps, component = case.trace.config.norm, case.trace.config.norm_eps, case.trace.config.norm_component
    for sublayer in case.sublayers:
        if sublayer.before.shape[0] * sublayer.before.shape[1] < 3:
            continue

        def fits(made: Tensor, sublayer: TraceSublayer = sublayer) -> bool:
            if norm == "post":
                return misfit_of_norm(made, sublayer.after, component, eps) <= FIT_LIMIT
            return relative(sublayer.after - made, sublayer.after) <= FIT_LIMIT

        if fits(sublayer.before + sublayer.out):
            continue
        numbers = {"added_to_stream": relative(sublayer.out, sublayer.before)}
        if fits(sublayer.out):
            kind = "no_residual"
            what = "is the sublayer's output alone, without the input: the residual connection is missing."
        elif fits(sublayer.before):
            kind = "lost_output"
            what = "is unchanged: the sublayer's output is computed but discarded."
        elif norm == "pre" and fits(sublayer.inside + sublayer.out):
            kind = "residual_after_norm"
            what = "is the sum with the normalised input instead of the input before the norm."
        else:
            kind = "stream-unexplained"
            what = "is not the configured combination of its input and the sublayer's output."
        yield error(kind, sublayer.path, f"The stream after the sublayer {what}", numbers)


def check_additions(case: Case) -> Iterator[Mistake]:
    """adds_nothing: a sublayer whose output is 0."""
    for sublayer in case.sublayers:
        share = relative(sublayer.out, sublayer.before)
        looks = f"{sublayer.path}.pattern" not in case or bool(case[f"{sublayer.path}.pattern"].any())
        if share < NO_ADDITION and looks:  # attention without any permitted key legitimately adds nothing
            sentence = "The sublayer has no effect: its output is below a millionth of the stream."
            yield warning("adds_nothing", (sublayer.path,), sentence, {"added_to_stream": share})


def misfit_of_norm(made: Tensor, after: Tensor, norm: Norm, eps: float) -> float:
    """Return the relative misfit of `after` as an affine function, per dimension, of the normalised `made`.

    Args:
        made: The expected input of the norm, [..., d_model].
        after: The output of the norm, of the same shape.
        norm: The registered norm.
        eps: Its ε.

    Returns:
        0 for an exact fit, about 1 for none; 0 if all rows of `after` are equal, so that anything would fit.
    """
    y = centred(after)  # [row, d_model]
    if y is None:
        return 0.0
    normal, _ = norm.standardised(made.flatten(0, -2), eps)
    x = normal - normal.mean(dim=0)  # [row, d_model]
    slope = (x * y).sum(dim=0) / x.square().sum(dim=0).clamp(min=1e-30)  # [d_model]: γ
    return relative(y - slope * x, y)


def embeddings(case: Case) -> Iterator[Deviation]:
    """Each token has its row of the table, if that is known; each patch is an affine function of its pixels."""
    for at in case.stacks:
        name = f"{at.prefix}embed"
        if name not in case:
            continue
        embed = case[name]
        if case.trace.config.image:
            yield from _patches(case, at, embed)
            continue
        table = case.weight(at.table)
        if table is not None:
            scale = case.trace.config.d_model**0.5 if case.trace.config.scale_embeddings else 1.0
            expected = table.double()[at.tokens] * scale
            yield Deviation(name, excess(embed, expected, OTHER_ROUNDINGS * epsilon(embed) * expected.abs()))


def _patches(case: Case, at: TraceStack, embed: Tensor) -> Iterator[Deviation]:
    config = case.trace.config
    side = config.image // config.patch
    grid = at.tokens.view(len(at.tokens), side, config.patch, side, config.patch)
    pixels = grid.transpose(2, 3).flatten(3).flatten(1, 2).double() / MAX_INK  # [batch, patch, inside]
    name, classes = f"{at.prefix}embed", embed[:, :1]
    yield Deviation(name, affine(case, "embedding", pixels.to(embed.dtype), embed[:, 1:], "weight", "bias"))
    yield Deviation(name, excess(classes, classes[:1].double().expand_as(classes), classes))


def first_streams(case: Case) -> Iterator[Deviation]:
    """The first layer's input is the sum of embeddings and positions, up to the last bit but one."""
    for at in case.stacks:
        name, embed, pos = f"{at.stack}.0.resid_pre", f"{at.prefix}embed", f"{at.prefix}pos_embed"
        if name in case and embed in case:
            parts = [case[embed]]
            if pos in case:
                parts.append(case[pos].expand_as(case[embed]))
            yield Deviation(name, of_sum(case[name], *parts))


def between_layers(case: Case) -> Iterator[Deviation]:
    """Each layer's input is the previous layer's output."""
    for at in case.stacks:
        for index in range(1, case.trace.config.n_layers):
            before, after = f"{at.stack}.{index - 1}.resid_post", f"{at.stack}.{index}.resid_pre"
            if before in case and after in case:
                yield Deviation(after, of_sum(case[after], case[before]))


def inputs(case: Case) -> Iterator[Deviation]:
    """Each sublayer reads the stream, or with pre-norm the normalised stream."""
    config, norm = case.trace.config, case.trace.config.norm_component
    for sublayer in case.sublayers:
        if config.norm != "pre":
            yield Deviation(sublayer.path, of_sum(sublayer.inside, sublayer.before))
            continue
        gain, shift = case.norm_weights(f"{sublayer.path}_residual.norm")
        yield Deviation(sublayer.path, of_norm(sublayer.inside, sublayer.before, norm, config.norm_eps, gain, shift))


def sums(case: Case) -> Iterator[Deviation]:
    """The stream after each sublayer is the sum of input and output, normalised with post-norm."""
    config, norm = case.trace.config, case.trace.config.norm_component
    for sublayer in case.sublayers:
        if config.norm != "post":
            yield Deviation(sublayer.path, of_sum(sublayer.after, sublayer.before, sublayer.out))
            continue
        if sublayer.before.shape != sublayer.out.shape:
            yield broken(sublayer.path)
            continue
        gain, shift = case.norm_weights(f"{sublayer.path}_residual.norm")
        whole = sublayer.before.double() + sublayer.out.double()
        yield Deviation(sublayer.path, of_norm(sublayer.after, whole, norm, config.norm_eps, gain, shift))


def hidden(case: Case) -> Iterator[Deviation]:
    """pre = in W₁ + b₁; with a gate pre = in W_gate + b_gate and up = in W₁ + b₁."""
    is_gated = case.trace.config.ffn_component.is_gated
    for path, (x, pre) in case.feed_forward("in", "pre"):
        names = ("weight_gate", "bias_gate") if is_gated else ("weight_in", "bias_in")
        yield Deviation(path, affine(case, path, x, pre, *names))
    if is_gated:
        for path, (x, up) in case.feed_forward("in", "up"):
            yield Deviation(path, affine(case, path, x, up, "weight_in", "bias_in"))


def activations(case: Case) -> Iterator[Deviation]:
    """post = act(pre), times up with a gate; each is accurate to a few units of rounding of its factors."""
    component = case.trace.config.ffn_component
    for path, (pre, post, *gated) in case.feed_forward("pre", "post", *(["up"] if component.is_gated else [])):
        up = gated[0].double() if gated else None
        size = pre.double().abs() * (1.0 if up is None else up.abs())
        yield Deviation(path, excess(post, component.post(pre.double(), up), OTHER_ROUNDINGS * epsilon(post) * size))


def second(case: Case) -> Iterator[Deviation]:
    """out = post W₂ + b₂."""
    for path, (post, out) in case.feed_forward("post", "out"):
        yield Deviation(path, affine(case, path, post, out, "weight_out", "bias_out"))


def final_norms(case: Case) -> Iterator[Deviation]:
    """There is a final norm exactly if one is configured."""
    config, norm = case.trace.config, case.trace.config.norm_component
    for at in case.stacks:
        name, last = f"{at.prefix}final_norm", f"{at.stack}.{config.n_layers - 1}.resid_post"
        if name in case and last in case:
            if not config.final_norm:
                yield broken(name, "The configuration has no final norm, but the run has one.")
                continue
            gain, shift = case.norm_weights(f"{at.stack}.norm")
            yield Deviation(name, of_norm(case[name], case[last], norm, config.norm_eps, gain, shift))


def logits(case: Case) -> Iterator[Deviation]:
    """logits = x W + b; with a tied output, W is the embedding table."""
    config = case.trace.config
    at = case.stacks[-1]
    names = (f"{at.prefix}final_norm", f"{at.stack}.{config.n_layers - 1}.resid_post")
    name = next((name for name in names if name in case), None)
    if name is None or "logits" not in case or (config.final_norm and name == names[1]):
        return
    matrix = at.table if config.tied_output else "unembedding.weight"
    yield Deviation("logits", affine(case, "", case[name], case["logits"], matrix, "unembedding.bias"))
