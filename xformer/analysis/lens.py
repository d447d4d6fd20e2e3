"""When the answer is decided: what the residual stream would say after every sublayer.

logit lens      logits(x) = W_U · norm(x) + b_U   for the stream x after each sublayer; norm: the model's own last one
                (nostalgebraist 2020, "interpreting GPT: the logit lens")
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.analysis.stream import speaking_stack, stream
from xformer.model import Transformer
from xformer.trace import Trace


@torch.no_grad()
def lens_logits(model: Transformer, trace: Trace) -> dict[str, Float[Tensor, "batch pos vocab"]]:
    """What each point of the stream would say if it were the last; the last one's are the model's own logits."""
    return {title: model.unembed(x) for title, x in stream(model, trace).items()}


def lens(
    model: Transformer, trace: Trace, labels: Sequence[str], answers: Int[Tensor, " pos"] | None = None
) -> pd.DataFrame:
    """One row for each point of the stream and each position, for the first input of the trace; padding is left out.

    Columns: depth, point, position, token (the likeliest), probability, and where `answers` (negative: none) are given
    answer, answer_probability, right. Positions without a right answer are then left out.
    """
    asked = torch.ones(trace.logits.shape[1], dtype=torch.bool) if answers is None else answers.cpu() >= 0  # [pos]
    real = trace.real(speaking_stack(model)[0])
    asked = asked if real is None else asked & real.cpu()
    positions = asked.nonzero()[:, 0]  # [asked]
    frames = []
    for depth, (point, logits) in enumerate(lens_logits(model, trace).items()):
        p = logits[0, positions.to(logits.device)].softmax(dim=-1).cpu()  # [asked, vocab]
        best = p.max(dim=-1)
        columns: dict[str, object] = {
            "depth": depth,
            "point": point,
            "position": positions.tolist(),
            "token": [labels[token] for token in best.indices.tolist()],
            "probability": best.values.tolist(),
        }
        if answers is not None:
            right = answers.cpu()[positions]  # [asked]
            columns["answer"] = [labels[token] for token in right.tolist()]
            columns["answer_probability"] = p.gather(1, right[:, None])[:, 0].tolist()
            columns["right"] = (best.indices == right).tolist()
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def decided(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per position of a `lens` frame with answers: `depth` and `point` from which on the likeliest token stays right.

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
