"""What the parts of a score come to: what each source adds to a key's advantage, and what removing it really changes.

A contribution is arithmetic on one run, with the norm before the layer frozen. `without_source` is the measurement: it removes
a source from what this one head takes its queries (or keys) from, computes that norm anew, and leaves all else as it was (path
patching, Wang et al. 2022, arXiv:2211.00593, §3.1). All numbers are nats, differences of log attention weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from xformer import edits
from xformer.analysis.score_parts import DISTANCE, ScoreParts, Side, head_input
from xformer.analysis.stream_parts import Writer
from xformer.errors import InputError
from xformer.reading import Reading, rerun

LEAST = 0.1
"""Nats. A smaller advantage, or opposing contribution, changes the odds of two keys by less than a tenth: not worth a word."""
NEAR = 0.8
"""A source with so much of the largest one's contribution is comparable to it, so that neither is named alone."""
MOST = 0.5
"""Removing a source that is named takes away at least so much of the advantage."""


@dataclass(frozen=True)
class Contribution:
    """A source at the query or at the key. Over the sources of either side `adds` sums to the whole advantage."""

    side: Side | None
    """None for the bias by distance, which belongs to neither."""
    writer: Writer
    adds: float
    """What it adds to the advantage, in nats."""
    removal: float
    """By how much the advantage falls when it is removed from this head's queries, or from its keys."""

    @property
    def title(self) -> str:
        """The source in words: "layer 1 · head 2 at the key"."""
        return self.writer.name if self.side is None else f"{self.writer.name} at the {self.side}"


def contributions(parts: ScoreParts) -> list[Contribution]:
    """Each source on each side, the largest contribution first."""
    found = []
    sides: tuple[tuple[Side, tuple[Writer, ...], int], ...]
    sides = (("query", parts.query.writers, 1), ("key", parts.key.writers, 0))
    for side, writers, dim in sides:
        adds, left = parts.advantage.sum(dim=dim)[:-1].tolist(), parts.left[side].tolist()
        found += [
            Contribution(side, writer, added, parts.total_advantage - rest)
            for writer, added, rest in zip(writers, adds, left, strict=True)
        ]
    if parts.has_distance:
        of_distance = float(parts.advantage[-1, -1])
        found.append(Contribution(None, DISTANCE, of_distance, of_distance))
    return sorted(found, key=lambda one: -one.adds)


def is_worth_a_word(parts: ScoreParts) -> bool:
    """Whether there is a choice to explain: the key has an even share of the attention or more, and is preferred."""
    return parts.weight * parts.n_allowed >= 1.0 and parts.total_advantage >= LEAST


def deciding(parts: ScoreParts) -> tuple[Contribution, ...]:
    """The source that decides why a key is preferred; two where one at the query and one at the key are comparable; else none.

    No source is named where another one of the same side has `NEAR` as much, where removing it does not change the advantage
    most, or takes away less than `MOST` of it, or where there is no choice to explain (see `is_worth_a_word`).
    """
    found = contributions(parts)
    named = [one for one in found if one.adds > NEAR * found[0].adds]
    if not is_worth_a_word(parts) or len({one.side for one in named}) < len(named):
        return ()
    if any(one.writer.kind in ("rounding", "unattributed") for one in named):
        return ()
    least = min(one.removal for one in named)
    if least < MOST * parts.total_advantage or any(one.removal > NEAR * least for one in found if one not in named):
        return ()
    return tuple(named)


def opposing(parts: ScoreParts) -> Contribution | None:
    """The source that takes away the most; None where none takes away as much as `LEAST`."""
    last = contributions(parts)[-1]
    return last if last.adds <= -LEAST else None


def without_source(
    reading: Reading, *, layer: int, head: int, source: str, side: Side | None = None, parts: ScoreParts | None = None
) -> Reading:
    """The same run with a source removed from one head's queries, or from its keys, at all positions.

    Args:
        reading: The run.
        layer: The attention layer, from 0; `head` counts from 0 too.
        source: Its name, as in the tables of `analysis.why`; "distance" removes the bias from this head's scores.
        side: Whether the queries or the keys lose it; None for "distance".
        parts: Those of any cell of that head where they are known.

    Raises:
        InputError: Where there is no source of that name.
    """
    site = reading.attention_site(layer)
    if source == DISTANCE.name and f"{site.path}.pos_bias" in reading:
        scores = reading[f"{site.path}.scores"]
        bias = reading[f"{site.path}.pos_bias"].expand_as(scores)
        return rerun(reading, [edits.replace(f"{site.path}.scores", scores - bias, heads=[head])])
    if side is None:
        raise InputError(f"Is {source} removed at the query or at the key? Give side.")
    known = None if parts is None else parts.query if side == "query" else parts.key
    found = known or head_input(reading, site, side, head)
    names = [writer.name for writer in found.writers]
    if source not in names:
        raise InputError(f"No source is called {source!r} in what this layer reads; there are {', '.join(names)}.")
    name = f"{site.path}.{'q' if side == 'query' else 'k'}"
    left = reading[name].clone()
    left[0, head] = found.without[names.index(source)].to(left.dtype)
    return rerun(reading, [edits.replace(name, left, heads=[head])])


def check(
    reading: Reading, changed: Reading, *, layer: int, head: int, query: int, key: int, against: int | None = None
) -> pd.DataFrame:
    """What became of a cell and of the predictions.

    Returns:
        The rows weight (attention, 0 to 1), advantage (over `against`, or over the mean of the other keys), score and loss,
        these three in nats; the columns what, before, after.
    """
    path = reading.attention_site(layer).path

    def of(run: Reading) -> list[float]:
        row = run[f"{path}.scores"][0, head, query].double()  # [key]
        others = row.isfinite()
        others[key] = False
        compared = row[others].mean() if against is None else row[against]
        weight = float(run[f"{path}.pattern"][0, head, query, key])
        return [weight, float(row[key] - compared), float(row[key]), run.loss]

    return pd.DataFrame({"what": ["weight", "advantage", "score", "loss"], "before": of(reading), "after": of(changed)})
