"""Checks of the residual stream: is each sublayer's result added to what was there?

    no norm, pre-norm   after = before + out                     an identity in the trace
    post-norm           after = γ · n(before + out) + β          n(s) = (s − mean s) / √(var s + ε)

γ and β are not in the trace, but they are the same for every token: in each of the d_model dimensions `after` is a straight
line over n(·), and two unknowns meet as many equations as there are tokens. So from three tokens on, the right sum is known by
fitting exactly (in float32 to about 10⁻⁶; accepted to 10⁻³), with any weights; the mistakes are fitted in its place only
where it fails.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from xformer.components import Norm
from xformer.config import MAX_INK
from xformer.diagnosis.case import (
    Case,
    Finding,
    Measurement,
    Sublayer,
    TraceStack,
    broken,
    centred,
    error,
    relative,
    warning,
)
from xformer.diagnosis.projections import affine
from xformer.diagnosis.rounding import OTHER_ROUNDINGS, excess, of_norm, of_sum, unit

FIT_LIMIT = 1e-3
NO_ADDITION = 1e-6
"""A sublayer whose result is a smaller share of the stream adds nothing."""


def check_residual(case: Case) -> Iterator[Finding]:
    """no-residual · lost-output · residual-after-norm · stream-unexplained."""
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
        else:
            kind = "stream-unexplained"
            what = "is not what the configuration makes of the stream before and the sublayer's result."
        yield error(kind, sublayer.path, f"The stream after it {what}", numbers)


def check_additions(case: Case) -> Iterator[Finding]:
    """adds-nothing: a sublayer whose result is 0."""
    for sublayer in case.sublayers:
        share = relative(sublayer.out, sublayer.before)
        looks = f"{sublayer.path}.pattern" not in case or bool(case[f"{sublayer.path}.pattern"].any())
        if share < NO_ADDITION and looks:  # a token that may see nothing, itself included, adds nothing rightly
            sentence = "The sublayer puts out nothing: what it adds is below a millionth of the stream."
            yield warning("adds-nothing", (sublayer.path,), sentence, {"added_to_stream": share})


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


def embeddings(case: Case) -> Iterator[Measurement]:
    """A token has its row of the table, where that is known; a patch is an affine function of its pixels."""
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
            yield Measurement(name, excess(embed, expected, OTHER_ROUNDINGS * unit(embed) * expected.abs()))


def _patches(case: Case, at: TraceStack, embed: Tensor) -> Iterator[Measurement]:
    config = case.trace.config
    side = config.image // config.patch
    grid = at.tokens.view(len(at.tokens), side, config.patch, side, config.patch)
    pixels = grid.transpose(2, 3).flatten(3).flatten(1, 2).double() / MAX_INK  # [batch, patch, inside]
    name, classes = f"{at.prefix}embed", embed[:, :1]
    yield Measurement(name, affine(case, "embedding", pixels.to(embed.dtype), embed[:, 1:], "weight", "bias"))
    yield Measurement(name, excess(classes, classes[:1].double().expand_as(classes), classes))


def first_streams(case: Case) -> Iterator[Measurement]:
    """What goes into the first layer is the sum of both, to the last bit but one."""
    for at in case.stacks:
        name, embed, pos = f"{at.stack}.0.resid_pre", f"{at.prefix}embed", f"{at.prefix}pos_embed"
        if name in case and embed in case:
            parts = [case[embed]]
            if pos in case:
                parts.append(case[pos].expand_as(case[embed]))
            yield Measurement(name, of_sum(case[name], *parts))


def between_layers(case: Case) -> Iterator[Measurement]:
    """Layers follow one another with nothing between them."""
    for at in case.stacks:
        for index in range(1, case.trace.config.n_layers):
            before, after = f"{at.stack}.{index - 1}.resid_post", f"{at.stack}.{index}.resid_pre"
            if before in case and after in case:
                yield Measurement(after, of_sum(case[after], case[before]))


def inputs(case: Case) -> Iterator[Measurement]:
    """What a sublayer reads: the stream itself, or with pre-norm the stream normalised."""
    config, norm = case.trace.config, case.trace.config.norm_component
    for sublayer in case.sublayers:
        if config.norm != "pre":
            yield Measurement(sublayer.path, of_sum(sublayer.inside, sublayer.before))
            continue
        gain, shift = case.norm_weights(f"{sublayer.path}_residual.norm")
        yield Measurement(sublayer.path, of_norm(sublayer.inside, sublayer.before, norm, config.norm_eps, gain, shift))


def sums(case: Case) -> Iterator[Measurement]:
    """What a sublayer leaves: the sum, with post-norm normalised."""
    config, norm = case.trace.config, case.trace.config.norm_component
    for sublayer in case.sublayers:
        if config.norm != "post":
            yield Measurement(sublayer.path, of_sum(sublayer.after, sublayer.before, sublayer.out))
            continue
        if sublayer.before.shape != sublayer.out.shape:
            yield broken(sublayer.path)
            continue
        gain, shift = case.norm_weights(f"{sublayer.path}_residual.norm")
        whole = sublayer.before.double() + sublayer.out.double()
        yield Measurement(sublayer.path, of_norm(sublayer.after, whole, norm, config.norm_eps, gain, shift))


def hidden(case: Case) -> Iterator[Measurement]:
    """pre = in W₁ + b₁; with a gate pre = in W_gate + b_gate and up = in W₁ + b₁."""
    is_gated = case.trace.config.ffn_component.is_gated
    for path, (x, pre) in case.feed_forward("in", "pre"):
        names = ("weight_gate", "bias_gate") if is_gated else ("weight_in", "bias_in")
        yield Measurement(path, affine(case, path, x, pre, *names))
    if is_gated:
        for path, (x, up) in case.feed_forward("in", "up"):
            yield Measurement(path, affine(case, path, x, up, "weight_in", "bias_in"))


def activations(case: Case) -> Iterator[Measurement]:
    """post = act(pre), with a gate times up; each is good to a few units of rounding of its factors."""
    component = case.trace.config.ffn_component
    for path, (pre, post, *gated) in case.feed_forward("pre", "post", *(["up"] if component.is_gated else [])):
        up = gated[0].double() if gated else None
        size = pre.double().abs() * (1.0 if up is None else up.abs())
        yield Measurement(path, excess(post, component.post(pre.double(), up), OTHER_ROUNDINGS * unit(post) * size))


def second(case: Case) -> Iterator[Measurement]:
    """out = post W₂ + b₂."""
    for path, (post, out) in case.feed_forward("post", "out"):
        yield Measurement(path, affine(case, path, post, out, "weight_out", "bias_out"))


def final_norms(case: Case) -> Iterator[Measurement]:
    """A final norm where one is configured, and only there."""
    config, norm = case.trace.config, case.trace.config.norm_component
    for at in case.stacks:
        name, last = f"{at.prefix}final_norm", f"{at.stack}.{config.n_layers - 1}.resid_post"
        if name in case and last in case:
            if not config.final_norm:
                yield broken(name, "The configuration has no final norm, and here is one.")
                continue
            gain, shift = case.norm_weights(f"{at.stack}.norm")
            yield Measurement(name, of_norm(case[name], case[last], norm, config.norm_eps, gain, shift))


def logits(case: Case) -> Iterator[Measurement]:
    """logits = x W + b, with the table of the tokens where the output is tied."""
    config = case.trace.config
    at = case.stacks[-1]
    names = (f"{at.prefix}final_norm", f"{at.stack}.{config.n_layers - 1}.resid_post")
    name = next((name for name in names if name in case), None)
    if name is None or "logits" not in case or (config.final_norm and name == names[1]):
        return
    matrix = at.table if config.tied_output else "unembedding.weight"
    yield Measurement("logits", affine(case, "", case[name], case["logits"], matrix, "unembedding.bias"))
