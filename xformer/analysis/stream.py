"""The residual stream of the stack whose output becomes the logits: what it is after every sublayer, and how long it is there.

x ← x + f(x)  (pre-norm: x + f(Norm(x));  post-norm: Norm(x + f(x)))       (Vaswani et al. 2017, §3.1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from xformer.reading import Reading
from xformer.site import Site

_AFTER = {"attn": "resid_mid", "self_attn": "resid_mid", "cross_attn": "resid_cross", "ffn": "resid_post"}
_DOES = {"attn": "attention", "self_attn": "self", "cross_attn": "cross", "ffn": "feed-forward"}


@dataclass(frozen=True)
class StreamStep:
    """One sublayer of the output stack, with the names of the stream before and after it."""

    site: Site
    title: str
    before: str
    after: str


def stream_steps(reading: Reading) -> list[StreamStep]:
    """The sublayers of the output stack, in order."""
    sites = [site for site in reading.subject.shape.sites if site.stack == reading.output_stack]
    found, before = [], f"{reading.output_stack}.0.resid_pre"
    for site in sites:
        after = f"{site.stack}.{site.layer}.{_AFTER[site.kind]}"
        layer = f"{'decoder' if reading.is_pair else 'layer'} {site.layer + 1}"
        found.append(StreamStep(site, f"{layer} · {_DOES[site.kind]}", before, after))
        before = after
    return found


def stream(reading: Reading) -> dict[str, Float[Tensor, "batch pos d_model"]]:
    """The residual stream at every point where something has been added, by a title of the point, in order."""
    steps = stream_steps(reading)
    return {"embedding": reading[steps[0].before]} | {step.title: reading[step.after] for step in steps}


def positions_of(reading: Reading, positions: Sequence[int] | None = None) -> list[int]:
    """The positions of the output stack that are no padding, in order; only those among `positions` where they are given."""
    real = reading.trace.real(reading.output_stack)
    return [
        at
        for at in range(reading.logits.shape[1])
        if (real is None or real[at]) and (positions is None or at in positions)
    ]


def norms(reading: Reading, positions: Sequence[int] | None = None) -> pd.DataFrame:
    """Lengths ‖x‖₂ by position: of the stream at each point ("stream"), and of what was added to get there ("added").

    With post-norm what is added is measured before the sum is normalised. "added" at the embedding is the embedding.
    Padding is left out. Columns: what, depth, point, position, length.
    """
    outs = {step.title: reading[f"{step.site.path}.out"] for step in stream_steps(reading)}
    counted = positions_of(reading, positions)
    rows = []
    for depth, (point, x) in enumerate(stream(reading).items()):
        for what, vectors in (("stream", x), ("added", outs.get(point, x))):
            lengths = vectors[0].norm(dim=-1).tolist()  # [pos]
            rows += [
                {"what": what, "depth": depth, "point": point, "position": position, "length": lengths[position]}
                for position in counted
            ]
    return pd.DataFrame(rows)
