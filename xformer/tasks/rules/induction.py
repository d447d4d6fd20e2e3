"""Induction: repeat a random prefix. The next token is the one that followed the current token in the prefix.

One layer cannot solve it by content. In layer 1 a previous-token head writes into every position which token came before; in
layer 2 a head attends to the position whose previous token is the current one (Elhage et al. 2021, “A Mathematical Framework
for Transformer Circuits”; Olsson et al. 2022, arXiv:2209.11895). Lengths vary, so the distance does not help. The symbols of a
prefix are distinct, so the successor of a symbol is unambiguous.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.tasks.rules.rule import Answers, Lengths, Rule, Sequences


class Induction(Rule):
    """answer = source, of distinct symbols. Symbols 1 … `symbols`, at least `max_len` of them; lengths count symbols."""

    name = "induction"
    verb = "repeats"
    instruction = "Type numbers, each only once; it repeats them."
    score_name = "induction"
    score_says = "is on the token after the earlier occurrence of the current token"
    look_for = (
        "Look for an **induction head** in the second layer: to continue a token, it has to look at what "
        "**followed** that token in the prefix. To find that place, the first layer has to tell every position which "
        "token stands before it."
    )

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        return source, lengths

    def remark(self, source: Sequence[int]) -> str:
        return super().remark(source).replace("expect mistakes", "see whether looking up still works")

    def examples(self) -> dict[str, str]:
        longest = self.config.max_len
        return {
            "… repeats six numbers": self.distinct(6),
            "… repeats them in another order": " ".join(reversed(self.distinct(6).split())),
            "… is in doubt when a number comes again": "3 7 3 12 3 9",
            "… repeats the longest it was trained on": self.distinct(longest),
            "… manages on more than it was trained on": self.distinct(min(longest + 3, self.config.symbols)),
            "… handles the shortest": self.distinct(self.config.min_len),
        }

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        before = torch.nn.functional.pad(source, (1, -1), value=0)  # [pos]: the previous token of each answer
        return (before[:, None] == before) & (before > 0)
