"""The steps of the residual stream computed again: embeddings, positions, norms, sums, feed-forward, logits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from xformer.config import MAX_INK
from xformer.diagnosis.case import Case, Measurement, TraceStack
from xformer.diagnosis.projections import affine, heads_joined, share_outside
from xformer.diagnosis.rounding import OTHER_ROUNDINGS, excess, of_norm, of_sum, unit

SAME_VECTOR = 1e-6
AFFINE_LIMIT = 1e-5
"""Of an affine map float32 leaves about 1e-6 unexplained; of one with a norm between, the spread of the rows' lengths."""


def embeddings(case: Case) -> Iterator[Measurement]:
    """Equal tokens have equal vectors and others have others; with the weights: those of the table."""
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
        else:
            yield Measurement(name, one_vector_each(embed[at.valid], at.tokens[at.valid]))


def _patches(case: Case, at: TraceStack, embed: Tensor) -> Iterator[Measurement]:
    config = case.trace.config
    side = config.image // config.patch
    grid = at.tokens.view(len(at.tokens), side, config.patch, side, config.patch)
    pixels = grid.transpose(2, 3).flatten(3).flatten(1, 2).double() / MAX_INK  # [batch, patch, inside]
    yield Measurement(
        f"{at.prefix}embed", affine(case, "embedding", pixels.to(embed.dtype), embed[:, 1:], "weight", "bias")
    )
    yield Measurement(
        f"{at.prefix}embed", excess(embed[:, :1], embed[:1, :1].double().expand_as(embed[:, :1]), embed[:, :1])
    )


def one_vector_each(rows: Tensor, ids: Tensor, *, differ: bool = True) -> float:
    """0 where rows of one id are equal and rows of different ids are not (unless they may be, `differ`); ∞ otherwise."""
    _, which = torch.unique(ids, return_inverse=True)
    n = int(which.max()) + 1
    first = torch.stack([rows[which == i][0] for i in range(n)]).double()  # [id, d_model]
    if not torch.equal(rows.double(), first[which]):
        return float("inf")
    if not differ:
        return 0.0
    apart = torch.cdist(first, first) + torch.eye(n, device=rows.device) * first.abs().max().clamp(min=1.0) * 1e3
    return float("inf") if n > 1 and bool((apart <= SAME_VECTOR * first.norm(dim=-1).max()).any()) else 0.0


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
            yield Measurement(sublayer.path, float("inf"))
            continue
        gain, shift = case.norm_weights(f"{sublayer.path}_residual.norm")
        yield Measurement(
            sublayer.path,
            of_norm(
                sublayer.after, sublayer.before.double() + sublayer.out.double(), norm, config.norm_eps, gain, shift
            ),
        )


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
    """A final norm where one is configured. Without it, what comes next is affine in the bare stream, which it is not else."""
    config, norm = case.trace.config, case.trace.config.norm_component
    for at in case.stacks:
        name, last = f"{at.prefix}final_norm", f"{at.stack}.{config.n_layers - 1}.resid_post"
        if name in case and last in case:
            if not config.final_norm:
                yield Measurement(name, float("inf"), "The configuration has no final norm, and here is one.")
                continue
            gain, shift = case.norm_weights(f"{at.stack}.norm")
            yield Measurement(name, of_norm(case[name], case[last], norm, config.norm_eps, gain, shift))
        elif last in case and config.final_norm:
            after = _after(case, at.stack)
            share = None if after is None else share_outside(case[last], after, case.spans)
            if share is not None:
                why = "What follows is made from the stream as it is: the final norm is missing."
                yield Measurement(name, float("inf") if share < AFFINE_LIMIT else 0.0, why)


def _after(case: Case, stack: str) -> Tensor | None:
    """What is made of a stack's output first: the logits, or the first keys of cross-attention."""
    is_output = stack == case.stacks[-1].stack
    name = "logits" if is_output else "decoder.0.cross_attn.k"
    if name not in case:
        return None
    return case[name] if is_output else heads_joined(case[name])


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
