"""Induction: repeat a random prefix. The next token is the one that followed the current token in the prefix.

One layer cannot solve this by content. In layer 1, a previous-token head writes the previous token into every position; in
layer 2, an induction head attends to the position whose previous token is the current one (Elhage et al. 2021, “A Mathematical
Framework for Transformer Circuits”; Olsson et al. 2022, arXiv:2209.11895). Lengths vary, so a fixed distance does not help. The
symbols of a prefix are distinct, so the successor of a symbol is unambiguous.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.tasks.rules.rule import Answers, Lengths, Rule, Sequences


class Induction(Rule):
    """answer = source; distinct symbols 1 … `symbols`, at least `max_len` of them; lengths count symbols."""

    name = "induction"
    verb = "repeats"
    instruction = "Type numbers, each only once; the model repeats them."
    score_name = "induction"
    score_meaning = "is on the token after the earlier occurrence of the current token"
    attention_hint = (
        "Look for an **induction head** in the second layer: to predict the next token, it has to attend to what "
        "**followed** the current token in the prefix. To find that position, the first layer has to give every position "
        "its previous token."
    )

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        return source, lengths

    def remark(self, source: Sequence[int]) -> str:
        return super().remark(source).replace("expect mistakes", "see whether the look-up still works")

    def examples(self) -> dict[str, str]:
        longest, six = self.config.max_len, self.distinct_numbers(6)
        longer = min(longest + 3, self.config.symbols)
        return {
            "… repeats six numbers": six,
            "… repeats them in another order": " ".join(reversed(six.split())),
            "… is unsure when a number repeats": "3 7 3 12 3 9",
            "… repeats the longest input it was trained on": self.distinct_numbers(longest),
            "… repeats longer input than it was trained on": self.distinct_numbers(longer),
            "… handles the shortest": self.distinct_numbers(self.config.min_len),
        }

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        before = torch.nn.functional.pad(source, (1, -1), value=0)  # [pos]: the previous token of each answer
        return (before[:, None] == before) & (before > 0)
