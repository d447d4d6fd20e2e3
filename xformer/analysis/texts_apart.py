"""Two texts that two models went on with, whatever their tokens are: compared by characters.

a says  "·drink"  "·to"  "·John"         the tokens of each end at characters of its text; where both have an end the text
b says  "·dr" "ink" "·to" "·Mary"        before it is one piece, with the product of its tokens' probabilities
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class SaidText:
    """A text, where its tokens end in it, and how likely each of them was."""

    text: str
    ends: tuple[int, ...]
    probability: tuple[float, ...]

    @classmethod
    def of(cls, plain: Callable[[Sequence[int]], str], tokens: Sequence[tuple[int, float]]) -> SaidText:
        """The text of tokens, each with its probability; `plain` says what text some of them are."""
        ids = [token for token, _ in tokens]
        text = plain(ids)
        ends = tuple(min(len(plain(ids[: index + 1])), len(text)) for index in range(len(ids)))
        return cls(text, ends, tuple(p for _, p in tokens))


def parting(one: SaidText, other: SaidText) -> int | None:
    """The character at which two texts part; None where one of them only goes on further, or not even that."""
    pairs = zip(one.text, other.text, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), None)


def pieces(one: SaidText, other: SaidText) -> pd.DataFrame:
    """The text that both said, cut where both have the end of a token: text, from, to, tokens and probability of each.

    Their last row is where they part: what each says from the last common end to the end of the token at which it parts.
    """
    apart = parting(one, other)
    last = min(len(one.text), len(other.text)) if apart is None else apart
    common = sorted(end for end in {*one.ends} & {*other.ends} if 0 < end <= last)
    rows = [_row(one, other, start, end, end) for start, end in zip([0, *common], common, strict=False)]
    if apart is not None:
        start = common[-1] if common else 0
        ends = [next(end for end in said.ends if end > apart) for said in (one, other)]
        rows.append(_row(one, other, start, *ends))
    return pd.DataFrame(rows)


def _row(one: SaidText, other: SaidText, start: int, end: int, other_end: int) -> dict[str, object]:
    row: dict[str, object] = {"from": start}
    for name, said, to in (("A", one, end), ("B", other, other_end)):
        inside = [at for at, token_end in enumerate(said.ends) if start < token_end <= to]
        row |= {
            f"{name} says": said.text[start:to],
            f"tokens of {name}": len(inside),
            f"p of {name}": math.prod(said.probability[at] for at in inside),
        }
    return row


def bits_per_character(loss: float, n_tokens: int, n_characters: int) -> float:
    """A mean loss in nats over some tokens as bits for each of the characters that they are: that knows no tokens."""
    return loss * n_tokens / math.log(2) / n_characters if n_characters else math.nan
