"""Copying twice: the symbols, and then the same symbols again.

    answer[i] = source[i mod n]

The model has to return to the start of the source for the second pass, and stop after it, although both passes generate the
same tokens. The symbols are distinct, so the successor of a symbol is unambiguous.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.tasks.rules.rule import Answers, Lengths, Rule, Sequences


class CopyTwice(Rule):
    """answer = source, source; distinct symbols 1 … `symbols`, at least `max_len` of them; lengths count symbols."""

    name = "copy-twice"
    verb = "copies twice"
    instruction = "Type numbers, each only once; the model copies them twice."
    score_name = "two diagonals"
    score_meaning = "is on the token that it has to copy"
    attention_hint = (
        "Look for **two diagonals**, one below the other: the first and the second pass through the source. Where the first "
        "ends, a head has to jump back to the beginning."
    )

    def answer_length(self, n: int) -> int:
        return 2 * n

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        place = torch.arange(2 * source.shape[1], device=source.device)  # [answer]
        return source.gather(1, place % lengths[:, None]), 2 * lengths

    def examples(self) -> dict[str, str]:
        return {
            "… copies six numbers twice": self.distinct_numbers(6),
            "… copies them in another order": " ".join(reversed(self.distinct_numbers(6).split())),
            "… is unsure when a number repeats": "3 7 3 12 3 9",
            "… copies the longest input it was trained on": self.distinct_numbers(self.config.max_len),
            "… handles the shortest": self.distinct_numbers(self.config.min_len),
        }

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        return super().target_pattern(source).repeat(2, 1)
