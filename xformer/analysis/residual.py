"""When the answer is decided: what the residual stream would say after every sublayer, and who adds what to one logit.

    logit lens      logits(x) = W_U · norm(x) + b_U   for the stream x after each sublayer; norm: the model's own last one
                    (nostalgebraist 2020, "interpreting GPT: the logit lens")
    attribution     logit[t] = Σ over parts c of  g_c · c      (Elhage et al. 2021, "A Mathematical Framework for
                    Transformer Circuits": a logit is a sum over the paths through the residual stream)

A part c is whatever is added to the stream: token, position, each head's z W_O, each feed-forward output, the biases. The
readout g begins as the row of W_U and is pulled back through every norm that stands between c and the logit. Subtracting
the mean is linear; dividing by the standard deviation is not, so each norm's σ is frozen at the value it has in this run:

    g · LayerNorm(x) = g′ · x + g · β,     g′ = (γ g / σ) − mean(γ g / σ),     σ = √(var(x) + ε)

So the parts sum to the logit exactly: with pre-norm or none only the last norm is passed, with post-norm every later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer.errors import EditError
from xformer.layers.attention import Attention
from xformer.layers.block import Block, CrossBlock
from xformer.layers.feed_forward import FeedForward
from xformer.layers.norm import LayerNorm
from xformer.layers.residual import PostNorm
from xformer.layers.stack import Stack
from xformer.model import Transformer
from xformer.trace import Trace


@dataclass(frozen=True, eq=False)
class Sublayer:
    """One attention or feed-forward layer of the stack that speaks, with the names of the stream around it."""

    title: str
    path: str
    before: str
    after: str
    module: Attention | FeedForward
    norm: LayerNorm | None
    """The norm after the sum, which post-norm alone has."""

    @property
    def kind(self) -> str:
        return "attention" if isinstance(self.module, Attention) else "feed_forward"


def speaking_stack(model: Transformer) -> tuple[str, Stack]:
    """The stack whose output becomes the logits: the decoder where there is one."""
    name, stack = ("decoder", model.decoder) if model.decoder is not None else ("encoder", model.encoder)
    assert stack is not None
    return name, stack


def sublayers(model: Transformer) -> list[Sublayer]:
    """The sublayers of the stack that speaks, in order."""
    name, stack = speaking_stack(model)
    found = []
    for index, block in enumerate(stack.blocks):
        assert isinstance(block, Block | CrossBlock)
        at, layer = f"{name}.{index}", f"layer {index + 1}"
        if isinstance(block, CrossBlock):
            steps: list[tuple[str, str, str, Attention | FeedForward, nn.Module]] = [
                ("self_attn", "resid_mid", f"{layer} · self-attention", block.self_attn, block.self_attn_residual),
                (
                    "cross_attn",
                    "resid_cross",
                    f"{layer} · cross-attention",
                    block.cross_attn,
                    block.cross_attn_residual,
                ),
            ]
        else:
            steps = [("attn", "resid_mid", f"{layer} · attention", block.attn, block.attn_residual)]
        if block.ffn is not None and block.ffn_residual is not None:
            steps.append(("ffn", "resid_post", f"{layer} · feed-forward", block.ffn, block.ffn_residual))
        before = "resid_pre"
        for part, after, title, module, residual in steps:
            norm = residual.norm if isinstance(residual, PostNorm) else None
            found.append(Sublayer(title, f"{at}.{part}", f"{at}.{before}", f"{at}.{after}", module, norm))
            before = after
    return found


def stream(model: Transformer, trace: Trace) -> dict[str, Float[Tensor, "batch pos d_model"]]:
    """The residual stream at every point where something has been added, by a title of the point, in order."""
    parts = sublayers(model)
    return {"embedding": trace[parts[0].before]} | {part.title: trace[part.after] for part in parts}


@torch.no_grad()
def lens_logits(model: Transformer, trace: Trace) -> dict[str, Float[Tensor, "batch pos vocab"]]:
    """What each point of the stream would say if it were the last; the last one's are the model's own logits."""
    _, stack = speaking_stack(model)
    said = {}
    for title, x in stream(model, trace).items():
        said[title] = model.unembedding(x if stack.norm is None else stack.norm(x), model.embedding)
    return said


def lens(
    model: Transformer, trace: Trace, labels: Sequence[str], answers: Int[Tensor, " pos"] | None = None
) -> pd.DataFrame:
    """One row for each point of the stream and each position, for the first input of the trace.

    Columns: depth, point, position, token (the likeliest), probability, and where `answers` (negative: none) are given
    answer, answer_probability, right. Positions without a right answer are then left out.
    """
    rows = []
    for depth, (point, logits) in enumerate(lens_logits(model, trace).items()):
        p = logits[0].softmax(dim=-1)  # [pos, vocab]
        best = p.max(dim=-1)
        for position in range(len(p)):
            said = int(best.indices[position])
            row = {"depth": depth, "point": point, "position": position, "token": labels[said]}
            row["probability"] = best.values[position].item()
            if answers is not None:
                answer = int(answers[position])
                if answer < 0:
                    continue
                row |= {"answer": labels[answer], "answer_probability": p[position, answer].item()}
                row["right"] = said == answer
            rows.append(row)
    return pd.DataFrame(rows)


def decided(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a position of a `lens` frame with answers: `depth` and `point` from which on the likeliest token stays right.

    Positions whose last word is wrong have no row.
    """
    rows = []
    for position, group in frame.sort_values("depth").groupby("position"):
        right = group["right"].tolist()
        if not right[-1]:
            continue
        first = len(right) - next((i for i, ok in enumerate(reversed(right)) if not ok), len(right))
        rows.append({"position": position, "depth": first, "point": group["point"].iloc[first]})
    return pd.DataFrame(rows, columns=["position", "depth", "point"])


def norms(model: Transformer, trace: Trace) -> pd.DataFrame:
    """Lengths ‖x‖₂ by position: of the stream at each point ("stream"), and of what was added to get there ("added").

    With post-norm what is added is measured before the sum is normalised. "added" at the embedding is the embedding.
    """
    outs = {part.title: trace[f"{part.path}.out"] for part in sublayers(model)}
    rows = []
    for depth, (point, x) in enumerate(stream(model, trace).items()):
        lengths = {"stream": x[0].norm(dim=-1).tolist(), "added": outs.get(point, x)[0].norm(dim=-1).tolist()}
        for what, values in lengths.items():
            rows += [
                {"what": what, "depth": depth, "point": point, "position": position, "length": value}
                for position, value in enumerate(values)
            ]
    return pd.DataFrame(rows)


@torch.no_grad()
def attribution(
    model: Transformer, trace: Trace, position: int, token: int, against: int | None = None
) -> pd.DataFrame:
    """What each part adds to the logit of `token` at a position (less that of `against`), for the trace's first input.

    One row a part, in the order of the stream: part, kind, layer (from 1; 0 outside the layers), head (from 1, 0 for none),
    contribution. The contributions, in double precision, sum to the logit (or the difference). Where an edit
    took the place of a whole sublayer's output, that output is one part, its bias included.

    Raises `EditError` when an edit changed the stream itself, which is then not the sum of its parts.
    """
    for name in ("*.resid_*", "final_norm", "*.final_norm", "logits"):
        for edit in trace.edits:
            if fnmatchcase(edit.name, name) or edit.name == name:
                raise EditError(f"An edit of {edit.name!r} changes the stream itself; attribute a run without it.")
    name, stack = speaking_stack(model)
    at = f"{name}." if model.config.architecture == "encoder-decoder" else ""
    unembed = model.embedding.token if model.unembedding.weight is None else model.unembedding.weight
    bias = torch.zeros(len(unembed)) if model.unembedding.bias is None else model.unembedding.bias

    def chosen(table: Tensor) -> Tensor:
        row = table[token].double()
        return row if against is None else row - table[against].double()

    g = chosen(unembed)  # [d_model]: the readout
    rows = [_row("output bias", "bias", chosen(bias))]
    shift = torch.zeros((), dtype=torch.float64)  # from the βs of the norms
    added = torch.zeros((), dtype=torch.float64)  # from the biases of the sublayers
    parts = sublayers(model)
    if stack.norm is not None:
        g, constant = _before_norm(stack.norm, trace[parts[-1].after][0, position].double(), g)
        shift = shift + constant
    for part in reversed(parts):
        out = trace[f"{part.path}.out"][0, position].double()  # [d_model]
        if part.norm is not None:
            x = trace[part.before][0, position].double()
            g, constant = _before_norm(part.norm, x + out, g)
            shift = shift + constant
        layer = int(part.path.split(".")[1]) + 1
        own = part.module.bias_out
        replaced = any(fnmatchcase(f"{part.path}.out", edit.name) for edit in trace.edits)
        if replaced or own is None:
            own = torch.zeros_like(out)
        added = added + g @ own.double()
        if isinstance(part.module, FeedForward) or replaced:
            rows.append(_row(part.title, part.kind, g @ (out - own.double()), layer))
            continue
        z = trace[f"{part.path}.z"][0, :, position].double()  # [head, d_value]
        heads = torch.einsum("hv,hvd,d->h", z, part.module.W_O.double(), g)  # [head]
        title = (
            part.title.replace("self-attention", "self").replace("cross-attention", "cross").replace(" · attention", "")
        )
        rows += [
            _row(f"{title} · head {head + 1}", "attention", heads[head], layer, head + 1)
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


def _row(part: str, kind: str, value: Tensor, layer: int = 0, head: int = 0) -> dict[str, object]:
    return {"part": part, "kind": kind, "layer": layer, "head": head, "contribution": value.item()}


def _before_norm(
    norm: LayerNorm, x: Float[Tensor, " d_model"], g: Float[Tensor, " d_model"]
) -> tuple[Float[Tensor, " d_model"], Float[Tensor, ""]]:
    """The readout g′ of a norm's input x that equals the readout g of its output, up to the constant g · β."""
    sigma = torch.sqrt(x.var(correction=0) + norm.eps)
    scaled = norm.weight.double() * g / sigma  # [d_model]
    return scaled - scaled.mean(), g @ norm.bias.double()
