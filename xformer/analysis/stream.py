"""The residual stream of the stack whose output becomes the logits: what it is after every sublayer, and how long it is there.

x ← x + f(x)  (pre-norm: x + f(Norm(x));  post-norm: Norm(x + f(x)))       (Vaswani et al. 2017, §3.1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.errors import UnavailableError
from xformer.reading import Reading
from xformer.site import Site, after

WHOLE = ("sequence_class", "next_sentence", "image_class", "audio_class", "answer_span", "similarity")
"""The outputs of external models whose logits are about the whole input, not about each position."""
_DOES = {"attn": "attention", "self_attn": "self", "cross_attn": "cross", "ffn": "feed-forward"}


@dataclass(frozen=True)
class StreamStep:
    """One sublayer of the output stack, with the names of the stream before and after it."""

    site: Site
    title: str
    before: str
    after: str


def stream_steps(reading: Reading) -> list[StreamStep]:
    """The sublayers of the output stack, in order. Those that add at once, in a parallel block, share a before and an after.

    Raises `UnavailableError` for a model in which no stream was found.
    """
    shape = reading.subject.shape
    sites = [site for site in shape.sites if site.stack == reading.output_stack]
    if not shape.d_model or not sites:
        raise UnavailableError(f"No residual stream was found in {reading.subject.name}.")
    found, before = [], f"{reading.output_stack}.0.resid_pre"
    for site in sites:
        layer = f"{'decoder' if reading.is_pair else 'layer'} {site.layer + 1}"
        joined = site.path in shape.joined
        end = f"{site.stack}.{site.layer}.resid_post" if joined else after(site)
        found.append(StreamStep(site, f"{layer} · {_DOES[site.kind]}", before, end))
        is_last = site is sites[-1] or sites[sites.index(site) + 1].layer != site.layer
        before = before if joined and not is_last else end
    return found


def stream(reading: Reading) -> dict[str, Float[Tensor, "batch pos d_model"]]:
    """The residual stream at every point where something has been added, by a title of the point, in order."""
    return {title: reading[name] for title, (name, _) in _points(reading).items()}


def _points(reading: Reading) -> dict[str, tuple[str, list[str]]]:
    """The points of the stream by their titles: its name there, and the names of what was added to get there."""
    steps = stream_steps(reading)
    points: dict[str, tuple[str, list[str]]] = {"embedding": (steps[0].before, [])}
    by_end: dict[str, list[StreamStep]] = {}
    for step in steps:
        by_end.setdefault(step.after, []).append(step)
    for end, together in by_end.items():
        title = " and ".join([together[0].title, *(_DOES[step.site.kind] for step in together[1:])])
        points[title] = end, [f"{step.site.path}.out" for step in together]
    return points


def positions_of(reading: Reading, positions: Sequence[int] | None = None) -> list[int]:
    """The positions of the output stack that are no padding, in order; only those among `positions` where they are given."""
    real = reading.trace.real(reading.output_stack)
    has_one_each = reading.has_logits and reading.output not in WHOLE
    n = reading.logits.shape[1] if has_one_each else len(reading.ids(reading.output_stack))
    return [at for at in range(n) if (real is None or real[at]) and (positions is None or at in positions)]


def norms(reading: Reading, positions: Sequence[int] | None = None) -> pd.DataFrame:
    """Lengths ‖x‖₂ by position: of the stream at each point ("stream"), and of what was added to get there ("added").

    With post-norm what is added is measured before the sum is normalised. "added" at the embedding is the embedding.
    Padding is left out. Columns: what, depth, point, position, length.
    """
    outs = {
        title: torch.stack([reading[out] for out in added]).sum(dim=0)
        for title, (_, added) in _points(reading).items()
        if added
    }
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
