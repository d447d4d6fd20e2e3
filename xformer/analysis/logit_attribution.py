"""Who adds what to one logit: the parts of the residual stream, each as the model reads it out.

    attribution     logit[t] = Σ over parts c of  g_c · c      (Elhage et al. 2021, "A Mathematical Framework for
                    Transformer Circuits": a logit is a sum over the paths through the residual stream)

A part c is whatever is added to the stream: token, position, each head's z W_O, each feed-forward output, the biases. The
readout g begins as the row of W_U and is pulled back through every norm that stands between c and the logit. Subtracting
the mean is linear; dividing by the standard deviation is not, so each norm's σ is frozen at the value it has in this run:

    g · LayerNorm(x) = g′ · x + g · β,     g′ = (γ g / σ) − mean(γ g / σ),     σ = √(var(x) + ε)

So the parts sum to the logit exactly: with pre-norm or none only the last norm is passed, with post-norm every later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.analysis.stream import stream_steps
from xformer.errors import EditError
from xformer.layers.norm import LayerNorm
from xformer.layers.residual import PostNorm
from xformer.reading import Reading
from xformer.subjects import own_model
from xformer.trace import Trace


@torch.no_grad()
def attribution(reading: Reading, *, position: int, token: int | None = None, lead: bool = False) -> pd.DataFrame:
    """What each part adds to the logit of a token at a position of the output stack, for the first input.

    The token is what stands there (`Reading.explained`) unless one is given; with `lead`, its logit less that of the strongest
    other token. One row per part, in the order of the stream: part, kind, layer (from 0; −1 outside the layers), head (from 0,
    −1 for none), contribution. The contributions, in double precision, sum to the logit (or the lead). Where an edit took the
    place of a whole sublayer's output, that output is one part, its bias included.

    Raises `EditError` when an edit changed the stream itself, which is then not the sum of its parts.
    """
    model, trace = own_model(reading.subject), reading.trace
    name = reading.output_stack
    stack, at = getattr(model, name), f"{name}." if reading.is_pair else ""
    token, rival = explained_pair(reading, position, token)
    unembed = model.unembedding.matrix(model.embedding)
    bias = torch.zeros(len(unembed)) if model.unembedding.bias is None else model.unembedding.bias

    def chosen(table: Tensor) -> Tensor:
        row = table[token].double()
        return row - table[rival].double() if lead else row

    g = chosen(unembed)  # [d_model]: the readout
    rows = [_row("output bias", "bias", chosen(bias))]
    shift = torch.zeros((), dtype=torch.float64)  # from the βs of the norms
    added = torch.zeros((), dtype=torch.float64)  # from the biases of the sublayers
    steps = stream_steps(reading)
    _check_is_a_sum(trace, [*(end for step in steps for end in (step.before, step.after)), f"{at}final_norm", "logits"])
    if stack.norm is not None:
        g, constant = _before_norm(stack.norm, trace[steps[-1].after][0, position].double(), g)
        shift = shift + constant
    for step in reversed(steps):
        path, layer = step.site.path, step.site.layer
        block = stack.blocks[layer]
        module, residual = getattr(block, step.site.kind), getattr(block, f"{step.site.kind}_residual")
        out = trace[f"{path}.out"][0, position].double()  # [d_model]
        if isinstance(residual, PostNorm):  # the norm after the sum, which post-norm alone has
            x = trace[step.before][0, position].double()
            g, constant = _before_norm(residual.norm, x + out, g)
            shift = shift + constant
        own = module.bias_out
        replaced = any(fnmatchcase(f"{path}.out", edit.name) for edit in trace.edits)
        if replaced or own is None:
            own = torch.zeros_like(out)
        added = added + g @ own.double()
        if not step.site.is_attention or replaced:
            kind = "attention" if step.site.is_attention else "feed_forward"
            rows.append(_row(step.title, kind, g @ (out - own.double()), layer))
            continue
        z = trace[f"{path}.z"][0, :, position].double()  # [head, d_value]
        heads = torch.einsum("hv,hvd,d->h", z, module.W_O.double(), g)  # [head]
        title = step.title.removesuffix(" · attention")
        rows += [
            _row(f"{title} · head {head + 1}", "attention", heads[head], layer, head)
            for head in reversed(range(len(heads)))
        ]
    if f"{at}pos_embed" in trace:
        table = trace[f"{at}pos_embed"]
        table = table[0] if table.dim() == 3 else table  # [pos, d_model]
        rows.append(_row("position", "positions", g @ table[position].double()))
    rows.append(_row("token", "embedding", g @ trace[f"{at}embed"][0, position].double()))
    rows.reverse()
    rows.insert(-1, _row("norms' shifts β", "bias", shift))
    rows.insert(-1, _row("sublayers' biases", "bias", added))
    return pd.DataFrame(rows)


def explained_pair(reading: Reading, position: int, token: int | None = None) -> tuple[int, int]:
    """The token that is explained at a position, and the strongest other one."""
    token = reading.explained(position) if token is None else token
    others = reading.logits[0, position].clone()  # [vocab]
    others[token] = float("-inf")
    return token, int(others.argmax())


def strongest(frames: Mapping[str, pd.DataFrame], n: int) -> dict[str, pd.DataFrame]:
    """`attribution` frames with their `n` largest parts, by size in any of them, in the order of the stream; and the others.

    The others are one last row, "63 others", of the kind "others": so that each frame still sums to what it did.
    """
    size: dict[str, float] = {}
    for frame in frames.values():
        for part, contribution in zip(frame["part"].tolist(), frame["contribution"].tolist(), strict=True):
            size[part] = max(size.get(part, 0.0), abs(contribution))
    if len(size) <= n + 1:  # a row for one other says less than the other
        return dict(frames)
    kept = sorted(size, key=lambda part: -size[part])[:n]
    found = {}
    for name, frame in frames.items():
        rest = frame[~frame["part"].isin(kept)]
        others = {
            "part": f"{len(size) - n} others",
            "kind": "others",
            "layer": -1,
            "head": -1,
            "contribution": rest["contribution"].sum(),
        }
        found[name] = pd.concat([frame[frame["part"].isin(kept)], pd.DataFrame([others])], ignore_index=True)
    return found


def _check_is_a_sum(trace: Trace, names: Sequence[str]) -> None:
    """Raise `EditError` where an edit, by its name or by a glob, put something else in place of a sum of the stream."""
    for edit in trace.edits:
        for name in names:
            if fnmatchcase(name, edit.name):
                raise EditError(
                    f"The edit of {edit.name!r} changes {name}, the stream itself, which is then not the sum of its parts; "
                    "attribute a run without it."
                )


def _row(part: str, kind: str, value: Tensor, layer: int = -1, head: int = -1) -> dict[str, object]:
    return {"part": part, "kind": kind, "layer": layer, "head": head, "contribution": value.item()}


def _before_norm(
    norm: LayerNorm, x: Float[Tensor, " d_model"], g: Float[Tensor, " d_model"]
) -> tuple[Float[Tensor, " d_model"], Float[Tensor, ""]]:
    """The readout g′ of a norm's input x that equals the readout g of its output, up to the constant g · β."""
    sigma = torch.sqrt(x.var(correction=0) + norm.eps)
    scaled = norm.weight.double() * g / sigma  # [d_model]
    return scaled - scaled.mean(), g @ norm.bias.double()
