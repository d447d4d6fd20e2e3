"""The residual stream of the stack that speaks: what it is after every sublayer, and how long it is there.

x ← x + f(x)  (pre-norm: x + f(Norm(x));  post-norm: Norm(x + f(x)))       (Vaswani et al. 2017, §3.1)
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from jaxtyping import Float
from torch import Tensor, nn

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
        at, layer = f"{name}.{index}", f"{'decoder' if isinstance(block, CrossBlock) else 'layer'} {index + 1}"
        if isinstance(block, CrossBlock):
            steps: list[tuple[str, str, str, Attention | FeedForward, nn.Module]] = [
                ("self_attn", "resid_mid", f"{layer} · self", block.self_attn, block.self_attn_residual),
                (
                    "cross_attn",
                    "resid_cross",
                    f"{layer} · cross",
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


def norms(model: Transformer, trace: Trace) -> pd.DataFrame:
    """Lengths ‖x‖₂ by position: of the stream at each point ("stream"), and of what was added to get there ("added").

    With post-norm what is added is measured before the sum is normalised. "added" at the embedding is the embedding.
    Padding is left out.
    """
    outs = {part.title: trace[f"{part.path}.out"] for part in sublayers(model)}
    real = trace.real(speaking_stack(model)[0])
    rows = []
    for depth, (point, x) in enumerate(stream(model, trace).items()):
        lengths = {"stream": x[0].norm(dim=-1).tolist(), "added": outs.get(point, x)[0].norm(dim=-1).tolist()}
        for what, values in lengths.items():
            rows += [
                {"what": what, "depth": depth, "point": point, "position": position, "length": value}
                for position, value in enumerate(values)
                if real is None or real[position]
            ]
    return pd.DataFrame(rows)
