"""Sorting: the symbols in ascending order. A symbol's target position depends on all others, not on its own position."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.tasks.framing import Purpose
from xformer.tasks.rules.rule import Answers, Lengths, Rule, Sequences

REPEATING = 0.25
"""Fraction of training sequences with only a few different symbols, because repetitions are rare by chance."""
FEW = 6


class Sort(Rule):
    """answer = the source in ascending order. Symbols 1 … `symbols`; lengths count symbols."""

    name = "sort"
    verb = "sorts"
    instruction = "Type numbers; the model sorts them."
    score_name = "right value"
    score_meaning = "is on tokens with the value that it has to output"
    attention_hint = (
        "No pattern repeats from input to input: where a position has to attend depends on **which numbers** there are, not "
        "on their positions. Change one number and see which rows move."
    )

    def sources(self, n: int, *, paired: bool, draw: torch.Generator, purpose: Purpose) -> tuple[Sequences, Lengths]:
        cells, lengths = super().sources(n, paired=paired, draw=draw, purpose=purpose)
        if purpose != "train":
            return cells, lengths
        few = torch.randint(1, FEW + 1, (n, 1), generator=draw)
        among = torch.randint(1, self.config.symbols + 1, (n, FEW), generator=draw)  # [n, FEW]
        chance = torch.rand(n, 1, generator=draw)
        return torch.where(chance < REPEATING, among.gather(1, (cells - 1) % few), cells), lengths

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        index = torch.arange(source.shape[1], device=source.device)  # [pos]
        last = torch.iinfo(source.dtype).max
        in_order = source.masked_fill(index >= lengths[:, None], last).sort(dim=1).values
        return in_order.masked_fill(in_order == last, 0), lengths

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        return source.sort().values[:, None] == source
