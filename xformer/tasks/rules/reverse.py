"""Reversal: position i needs the symbol at length − 1 − i, so it must know the length."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.tasks.rules.rule import Answers, Lengths, Rule, Sequences


class Reverse(Rule):
    """answer[i] = source[length − 1 − i]. Symbols 1 … `symbols`; lengths count symbols."""

    name = "reverse"
    verb = "reverses"
    instruction = "Type numbers; the model reverses them."
    score_name = "anti-diagonal"
    score_meaning = "is on the mirrored token"
    attention_hint = (
        "Look for an **anti-diagonal**: the output at position i is the token at length − 1 − i, so some head has to attend "
        "there. Unless the positions encode it, earlier layers must first determine the length of the input."
    )

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        index = torch.arange(source.shape[1], device=source.device)  # [pos]
        return source.gather(1, (lengths[:, None] - 1 - index).clamp(min=0)), lengths

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        return super().target_pattern(source).flip(-1)
