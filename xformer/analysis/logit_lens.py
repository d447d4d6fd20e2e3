"""The logit lens: the prediction of the residual stream after every sublayer.

logit lens      logits(x) = W_U · norm(x) + b_U   for the stream x after each sublayer; norm: the model's own last one
                (nostalgebraist 2020, "interpreting GPT: the logit lens")
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.analysis.residual import attribution, positions_of, stream, stream_steps
from xformer.errors import EditError, UnavailableError
from xformer.memory import check_analysis
from xformer.reading import Reading

MOST_AT_ONCE = 8_000_000
"""Logits that are computed at a time."""


@torch.no_grad()
def lens_logits(reading: Reading) -> dict[str, Float[Tensor, "batch pos vocab"]]:
    """The logits of each point of the stream, unembedded as if it were the last; those of the last are the model's own.

    Raises `InputError` where that is too much to hold; `lens` holds one point at a time.
    """
    points, vocab = stream(reading), reading.subject.shape.vocab_size
    batch, n = next(iter(points.values())).shape[:2]
    check_analysis("lens_logits", "ask lens for some positions", points=len(points), batch=batch, n=n, vocab=vocab)
    return {title: reading.subject.unembed(x) for title, x in points.items()}


@torch.no_grad()
def lens(reading: Reading, positions: Sequence[int] | None = None) -> pd.DataFrame:
    """One row for each point of the stream and each output that is asked for, of the first input; padding is left out.

    Columns: depth, point, position, token (the likeliest), probability, answer, answer_probability, right. Where no output is
    asked for, all positions are there, without the last three. `positions` are those wanted, all by default. The output that
    predicts what follows a text has the model's own prediction as its answer.

    Args:
        reading: The run.
        positions: The positions, from 0; all of them by default.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.lens(reading)
        >>> list(table.columns)
        ['depth', 'point', 'position', 'token', 'probability', 'answer', 'answer_probability', 'right']
    """
    names, counted = reading.subject.labels, looked_at(reading, positions)
    answer = torch.tensor([reading.explained(at) for at in counted], dtype=torch.long)  # [asked]
    frames = []
    for depth, (point, p) in enumerate(_probabilities(reading, counted)):
        best = p.max(dim=-1)
        columns: dict[str, object] = {"depth": depth, "point": point, "position": counted}
        columns["token"] = [names[token] for token in best.indices.tolist()]
        columns["probability"] = best.values.tolist()
        if reading.target_positions:
            columns["answer"] = [names[token] for token in answer.tolist()]
            columns["answer_probability"] = p.gather(1, answer[:, None])[:, 0].tolist()
            columns["right"] = (best.indices == answer).tolist()
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def _probabilities(reading: Reading, counted: Sequence[int]) -> Iterator[tuple[str, Float[Tensor, "asked vocab"]]]:
    """What each point of the stream would say at some positions. As many points at a time as `MOST_AT_ONCE` allows: a large
    vocabulary's matrix is slow to read, and all its logits together are too many to hold.
    """
    points = list(stream(reading).items())
    together = max(1, MOST_AT_ONCE // max(1, len(counted) * len(reading.subject.labels)))
    for first in range(0, len(points), together):
        some = points[first : first + together]
        x = torch.cat([state[:1, counted] for _, state in some], dim=1)  # [1, point · asked, d_model]
        p = reading.subject.unembed(x)[0].softmax(dim=-1).cpu().unflatten(0, (len(some), len(counted)))
        yield from ((point, p[index]) for index, (point, _) in enumerate(some))


@torch.no_grad()
def answer_path(reading: Reading, *, position: int) -> pd.DataFrame:
    """One output through the stream: how likely its answer is after each sublayer, and what the sublayer adds to its margin.

    Args:
        reading: The run.
        position: The position, from 0.

    Returns:
        One row for each point of the stream: depth, point, token (the likeliest), answer, answer_probability, rank (of the
        answer, from 1), and adds: what was added there to the answer's logit less that of the strongest other token (see
        `attribution`; biases are in no row), NaN where that cannot be split.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.answer_path(reading, position=0)
        >>> list(table.columns)
        ['depth', 'point', 'token', 'answer', 'answer_probability', 'rank', 'adds']
    """
    names, answer, adds = reading.subject.labels, reading.explained(position), {}
    try:
        parts = attribution(reading, position=position, lead=True)
        adds["embedding"] = parts.loc[parts["kind"].isin(["embedding", "positions"]), "contribution"].sum()
        ends: dict[str, float] = {}
        for step in stream_steps(reading):
            head = step.title.removesuffix(" · attention") + " · head "
            mine = (parts["part"] == step.title) | parts["part"].str.startswith(head)
            ends[step.after] = ends.get(step.after, 0.0) + parts.loc[mine, "contribution"].sum()
        adds |= dict(zip(list(stream(reading))[1:], ends.values(), strict=True))
    except (EditError, UnavailableError):
        adds = {}
    rows = []
    for depth, (point, probabilities) in enumerate(_probabilities(reading, [position])):
        p = probabilities[0]
        rank = 1 + int((p > p[answer]).sum())
        token, adds_here = names[int(p.argmax())], adds.get(point, math.nan)
        rows.append((depth, point, token, names[answer], float(p[answer]), rank, adds_here))
    return pd.DataFrame(rows, columns=["depth", "point", "token", "answer", "answer_probability", "rank", "adds"])


def looked_at(reading: Reading, positions: Sequence[int] | None = None) -> list[int]:
    """The positions of the outputs that a lens is about: those asked for, and what follows a text; where none is, all."""
    asked = {*reading.target_positions, *([] if reading.open_output is None else [reading.open_output])}
    return [at for at in positions_of(reading, positions) if not reading.target_positions or at in asked]


def decided(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per position of a `lens` frame with answers: `depth` and `point` from which on the likeliest token stays right.

    Positions whose last word is wrong have no row.
    """
    rows = []
    for position, group in frame.sort_values("depth").groupby("position"):
        if (first := holds_from(group["right"].tolist())) is not None:
            rows.append((position, first, group["point"].iloc[first]))
    return pd.DataFrame(rows, columns=["position", "depth", "point"])


def holds_from(flags: Sequence[bool]) -> int | None:
    """The index from which on all flags are true to the end; None where the last one is false."""
    first = 1 + max((at for at, flag in enumerate(flags) if not flag), default=-1)
    return first if first < len(flags) else None
