"""Modular addition: a + b mod p, scored on pairs that are not used in training.

Training uses a fixed fraction of the pairs, scoring the others; a + b and b + a are on the same side. A model first memorises
its pairs and fails on the others; much later it suddenly generalises (“grokking”: Power et al. 2022, arXiv:2201.02177). It
represents numbers as angles on circles and adds by rotation (Nanda et al. 2023, arXiv:2301.05217).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.errors import InputError
from xformer.tasks.framing import Purpose, rows_of
from xformer.tasks.rules.rule import Answers, Lengths, Rule, Sequences, read_numbers


@cache
def pairs(p: int, *, share: float = 0.75, for_training: bool) -> Int[Tensor, "pair 2"]:
    """Return all ordered pairs of 0 … p − 1 on one side of the split; a + b and b + a are on the same side.

    The split does not depend on the seed, and a larger training share contains every smaller one.
    """
    unordered = torch.combinations(torch.arange(p), 2, with_replacement=True)  # [p (p + 1) / 2, 2]: a ≤ b
    order = torch.randperm(len(unordered), generator=torch.Generator().manual_seed(p))
    cut = round(share * len(unordered))
    chosen = unordered[order[:cut] if for_training else order[cut:]]
    return torch.cat((chosen, chosen[chosen[:, 0] != chosen[:, 1]].flip(1)))


class Modular(Rule):
    """Two numbers → one, a + b mod p. `symbols` is p, the numbers are 0 … p − 1; `min_len` and `max_len` are 2."""

    name = "modular"
    verb = "adds"
    instruction = "Type two numbers; the model adds them, wrapping around to 0 after the largest number."
    score_name = "the two numbers"
    score_meaning = "is on the two numbers"
    attention_hint = (
        "Look at the row of **start**, where the answer is predicted: it has to gather **the two numbers**. Attention shows no "
        "more than that: they are added in the embeddings and the feed-forward layer."
    )

    initial_text = ""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(str(number) for number in range(self.config.symbols))

    @property
    def typed_example(self) -> str:
        return f"{self.config.symbols // 2} {self.config.symbols * 2 // 3}"

    @property
    def format_hint(self) -> str:
        return f"Two numbers from 0 to {self.config.symbols - 1}."

    def examples(self) -> dict[str, str]:
        p = self.config.symbols
        (seen, unseen) = (self._pairs(for_training=side)[0].tolist() for side in (True, False))
        return {
            "… adds without wrapping around": f"{p // 4} {p // 3}",
            "… wraps around at p": f"{p - 1} {p - 2}",
            "… lands on zero": f"{p // 3} {p - p // 3}",
            "… adds a pair it was trained on": " ".join(map(str, seen)),
            "… adds a pair it never saw": " ".join(map(str, unseen)),
            "… adds b + a when it never saw a + b": " ".join(map(str, reversed(unseen))),
        }

    def _pairs(self, *, for_training: bool) -> Int[Tensor, "pair 2"]:
        return pairs(self.config.symbols, share=self.config.train_share, for_training=for_training)

    def answer_length(self, n: int) -> int:
        return n - 1

    @property
    def n_held_out(self) -> int:
        return len(self._pairs(for_training=False))

    def sources(self, n: int, *, paired: bool, draw: torch.Generator, purpose: Purpose) -> tuple[Sequences, Lengths]:
        """Draw n training pairs or unseen pairs, see `rows_of`."""
        table = self._pairs(for_training=purpose == "train")
        return 1 + rows_of(table, n, purpose=purpose, draw=draw), torch.full((n,), 2)

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        return 1 + (source - 1).sum(dim=1, keepdim=True) % self.config.symbols, lengths - 1

    def read(self, text: str) -> list[int]:
        typed = text.replace("+", " ").strip().removesuffix("=")
        numbers = read_numbers(typed, 0, self.config.symbols - 1, self.typed_example)
        self.check(numbers)
        return [1 + number for number in numbers]

    def check(self, source: Sequence[int]) -> None:
        if len(source) != 2:
            raise InputError(f"This model adds two numbers, got {len(source)}; try {self.typed_example}.")

    def remark(self, source: Sequence[int]) -> str:
        """State whether the pair is used in training."""
        seen = (self._pairs(for_training=True) == torch.tensor(list(source)) - 1).all(dim=1).any()
        return "This pair was used in training." if seen else "This pair was not used in training."

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        return torch.ones(1, len(source), dtype=torch.bool, device=source.device)
