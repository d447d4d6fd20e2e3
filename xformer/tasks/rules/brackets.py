"""Brackets: the nesting depth at each position, or ✗ once the string can no longer be balanced.

    depth[i] = Σ (+1 for "(", −1 for ")") over 0 … i;    answer[i] = depth[i] unless some depth[j ≤ i] < 0, else ✗

A causal head with uniform attention computes the mean depth[i] / (i + 1), which the position turns into the depth (Yao et al.
2021, arXiv:2105.11115, §4).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.errors import InputError
from xformer.tasks.framing import Purpose, sequences
from xformer.tasks.rules.rule import Answers, Lengths, Rule, Sequences, read_characters

OPEN, CLOSE = 1, 2
_BRACKETS = ("(", ")")
NEVER = 10_000
"""The end of a walk that does not have to return to 0."""


class Brackets(Rule):
    """answer[i] = the depth after i, or ✗. Two symbols; lengths count brackets, and depths go up to `max_len`."""

    name = "brackets"
    verb = "counts"
    instruction = "Type brackets; the model gives the depth of each, and ✗ once they can no longer be closed."
    score_name = "even look back"
    score_meaning = "is spread evenly over all earlier positions"
    attention_hint = (
        "Look for a head whose rows **fade evenly**: attending equally to all brackets so far takes their mean, and "
        "together with the position that gives the depth."
    )
    unit = "brackets"
    separator = ""
    has_numbers = False
    sample_text = "(()())"
    initial_text = "(()())())("
    accepted_text = "Brackets, ( or )."
    needs_causal = True

    @property
    def labels(self) -> tuple[str, ...]:
        return (*_BRACKETS, *(str(depth) for depth in range(self.config.max_len + 1)), "✗")

    def examples(self) -> dict[str, str]:
        half, longest = self.config.max_len // 2, self.config.max_len
        return {
            "… follows a balanced string": "(()(()))",
            "… sees where it breaks": "(()))(()",
            "… counts to the largest depth": "(" * longest,
            "… counts up and down again": "(" * half + ")" * half,
            "… rejects a closing bracket at the start": ")(" * min(4, half),
            "… fails on longer input than it was trained on": "()" * half + "(((())))",
        }

    def sources(self, n: int, *, paired: bool, draw: torch.Generator, purpose: Purpose) -> tuple[Sequences, Lengths]:
        """Draw one third balanced (up to one bracket if the length is odd), one third open, one third broken strings.

        Each is a walk that never goes below 0 and returns to 0 at its `end`, followed by ")" and random brackets. The `end` of
        broken strings is uniformly distributed.
        """
        c = self.config
        chance, lengths = sequences(n, symbols=1000, min_len=c.min_len, max_len=c.max_len, paired=paired, draw=draw)
        kind = torch.randint(0, 3, (n,), generator=draw)  # balanced, open, broken
        climb = torch.randint(300, 1001, (n,), generator=draw)  # probability of opening a bracket, in ‰
        broken_at = 2 * ((torch.rand(n, generator=draw) * ((lengths + 1) // 2)).long())
        end = torch.stack((lengths, torch.full_like(lengths, NEVER), broken_at)).gather(0, kind[None])[0]
        depth, cells = torch.zeros_like(lengths), torch.empty_like(chance)
        for place in range(c.max_len):
            opens = ((chance[:, place] <= climb) | (depth == 0)) & (depth < end - place)
            opens = torch.where(place > end, chance[:, place] <= 500, opens & (place != end))
            cells[:, place] = torch.where(opens, OPEN, CLOSE)
            depth = depth + torch.where(opens, 1, -1)
        return cells, lengths

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        depth = torch.where(source == OPEN, 1, -1).cumsum(dim=1)  # [batch, pos]
        is_lost = depth.cummin(dim=1).values < 0
        deepest = self.config.max_len
        return 3 + torch.where(is_lost, deepest + 1, depth.clamp(0, deepest)), lengths

    def read(self, text: str) -> list[int]:
        source = [1 + place for place in read_characters(text, _BRACKETS, "brackets, ( or )", self.typed_example)]
        depth = deepest = 0
        for token in source:
            depth += 1 if token == OPEN else -1
            deepest = max(deepest, depth)
        if deepest > self.config.max_len:
            raise InputError(
                f"This model can say depths up to {self.config.max_len}, and these brackets go down to {deepest}; "
                "close some earlier."
            )
        return source

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        n = len(source)
        return torch.ones(n, n, dtype=torch.bool, device=source.device).tril()

    def head_score(
        self, pattern: Float[Tensor, "head query key"], source: Sequence[int], queries: Sequence[int]
    ) -> Float[Tensor, " head"]:
        """Return 1 − ½ Σ |pattern − 1 / (number of keys so far)|, averaged over the queries after the first."""
        seen = self.target_pattern(torch.tensor(list(source), device=pattern.device)).to(pattern.dtype)  # [query, key]
        even = seen / seen.sum(dim=-1, keepdim=True)
        rows = pattern[:, list(queries), : len(source)]  # [head, query, key]
        apart = 0.5 * (rows - even).abs().sum(dim=-1)[:, 1:]  # [head, query]: the first can attend only to itself
        return 1 - apart.mean(dim=-1) if len(source) > 1 else apart.new_zeros(len(apart))
