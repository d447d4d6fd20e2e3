"""Reversal: position i needs the symbol at length − 1 − i, which requires the length."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.tasks.rules.rule import Answers, Lengths, Rule, Sequences


class Reverse(Rule):
    """answer[i] = source[length − 1 − i]. Symbols 1 … `symbols`; lengths count symbols."""

    name = "reverse"
    verb = "reverses"
    instruction = "Type numbers; it says them backwards."
    score_name = "anti-diagonal"
    score_says = "is on the mirrored token"
    look_for = (
        "Look for an **anti-diagonal**: the output at position i has to say the token at length − 1 − i, so somewhere it "
        "has to look there. Unless the positions tell it, earlier layers must first work out the input’s length."
    )

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        index = torch.arange(source.shape[1], device=source.device)  # [pos]
        return source.gather(1, (lengths[:, None] - 1 - index).clamp(min=0)), lengths

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        return super().target_pattern(source).flip(-1)
