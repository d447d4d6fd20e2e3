"""Addition of two numbers with equally many digits; the answer starts with the last digit.

    sum[i] = (a[i] + b[i] + carry[i]) mod 10,   carry[i + 1] = ⌊(a[i] + b[i] + carry[i]) / 10⌋      (i counts from the right)

A causal model generates digits in order, and a digit depends on the carry from all digits to its right. In the usual order,
the first digit requires the whole sum at once; in reverse order, each carry follows from the digits generated so far (Lee et
al. 2023, arXiv:2307.03381, §3, “reverse” format).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.errors import InputError
from xformer.tasks.framing import Purpose, sequences
from xformer.tasks.rules.rule import Answers, Lengths, Rule, Sequences, shown

PLUS = 11
"""The token of "+"; a digit d is the token 1 + d."""
MAX_DIGITS = 18
"""Largest number of digits whose sums fit into 64 bits."""
CARRYING = 0.25
"""Fraction of sums in which most columns add up to 9, so that carries propagate, which is rare by chance."""
RUNS = 0.3
"""Fraction of training numbers in which one end repeats a digit, often 0 or 9 (5000, 0007, 1999), which is rare by chance."""


MAX_EDGES = 10_000
"""Largest number of values of x in the edge cases."""


class Addition(Rule):
    """k digits, “+”, k digits → k + 1 digits of the sum, last digit first. Eleven symbols; lengths count the digits k."""

    name = "addition"
    verb = "adds"
    instruction = "Type a sum; the model adds it, last digit first."
    score_name = "own column"
    score_meaning = "is on the two digits of the column that it has to add"
    attention_hint = (
        "Look at the rows of the answer: each digit has to attend to **its column**, the two digits to be added, one step "
        "further left each time, which makes two diagonals."
    )
    unit = "digits"
    separator = ""
    tokens = (*"0123456789", "+")
    initial_text = ""

    @property
    def n_numbers(self) -> int:
        return 10

    @property
    def typed_example(self) -> str:
        return "347+586" if self.config.max_len >= 3 else "4+8"

    @property
    def format_hint(self) -> str:
        return f"Two numbers with + between them, like {self.typed_example}."

    def examples(self) -> dict[str, str]:
        k = self.config.max_len
        carries = {f"… carries a one through {k} digits": f"{'9' * k}+{'0' * (k - 1)}1"} if k > 1 else {}
        return {
            "… adds two numbers": self.typed_example,
            **carries,
            "… adds without any carry": f"{'1234512345'[:k]:0>{k}}+{'4321043210'[:k]:0>{k}}",
            "… adds the largest numbers it was trained on": f"{'9' * k}+{'9' * k}",
            "… adds zero": f"{'0' * k}+{'7052618394'[:k]:0>{k}}",
            "… fails on more digits than it was trained on": f"{'7' * min(k + 2, MAX_DIGITS)}+{'5' * min(k + 2, MAX_DIGITS)}",
        }

    def source_length(self, size: int) -> int:
        return 2 * size + 1

    def size(self, source: Sequence[int]) -> int:
        return (len(source) - 1) // 2

    def answer_length(self, n: int) -> int:
        return (n - 1) // 2 + 1

    def sources(self, n: int, *, paired: bool, draw: torch.Generator, purpose: Purpose) -> tuple[Sequences, Lengths]:
        c = self.config
        a, digits = sequences(n, symbols=10, min_len=c.min_len, max_len=c.max_len, paired=paired, draw=draw)
        b = torch.randint(1, 11, a.shape, generator=draw)
        chance = torch.rand(n, 1 + c.max_len, generator=draw)
        b = torch.where((chance[:, :1] < CARRYING) & (chance[:, 1:] < 0.8), 11 - a, b)  # 11 − (1 + d) = 1 + (9 − d)
        if purpose == "train":
            a, b = (_with_run(x, digits, draw) for x in (a, b))
        place = torch.arange(2 * c.max_len + 1).expand(n, -1)  # [n, pos]
        in_b = place - digits[:, None] - 1  # the digit of b at this position
        left, right = (x.gather(1, at.clamp(0, c.max_len - 1)) for x, at in ((a, place), (b, in_b)))
        return torch.where(in_b < -1, left, torch.where(in_b == -1, PLUS, right)), 2 * digits + 1

    def edge_cases(self) -> tuple[Sequences, Lengths]:
        """Return edge cases for each number of digits k.

        These are, for all x (or MAX_EDGES evenly spaced ones), x + 0, x + x, x + 9…9, x + 1 and x plus its complements to 10ᵏ
        and 10ᵏ − 1; all sums of two round numbers; and each sum with its terms swapped.
        """
        sums = [(k, *pair) for k in range(self.config.min_len, self.config.max_len + 1) for pair in sorted(_edges(k))]
        cells = torch.ones(len(sums), self.source_length(self.config.max_len), dtype=torch.long)
        for row, (k, x, y) in enumerate(sums):
            tokens = [1 + int(digit) for digit in f"{x:0{k}}"], [PLUS], [1 + int(digit) for digit in f"{y:0{k}}"]
            cells[row, : 2 * k + 1] = torch.tensor([token for part in tokens for token in part])
        return cells, torch.tensor([2 * k + 1 for k, *_ in sums])

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        k = (lengths[:, None] - 1) // 2  # [batch, 1]
        place = torch.arange(source.shape[1], device=source.device)  # [pos]
        power = torch.where(place < k, k - 1 - place, 2 * k - place)  # of ten, in a and in b
        counts = (place != k) & (place < lengths[:, None])
        total = torch.where(counts, (source - 1) * 10 ** power.clamp(0, MAX_DIGITS), 0).sum(dim=1)  # [batch]
        column = torch.arange((source.shape[1] - 1) // 2 + 1, device=source.device)  # [answer]
        return 1 + total[:, None] // 10**column % 10, (lengths - 1) // 2 + 1

    def read(self, text: str) -> list[int]:
        parts = re.fullmatch(r"([0-9]+)\+([0-9]+)", re.sub(r"[\s,]+", "", text).removesuffix("="))
        if parts is None:
            what = f"“{shown(text.strip())}” is not one" if text.strip() else "nothing was typed"
            raise InputError(f"This model reads a sum of two numbers, and {what}; try {self.typed_example}.")
        k = max(map(len, parts.groups()))
        if k > MAX_DIGITS:
            raise InputError(f"This model reads numbers of at most {MAX_DIGITS} digits, got {k}; take some away.")
        a, b = ([1 + int(digit) for digit in part.zfill(k)] for part in parts.groups())
        return [*a, PLUS, *b]

    def check(self, source: Sequence[int]) -> None:
        if len(source) < 3 or len(source) % 2 == 0 or self.size(source) > MAX_DIGITS:
            raise InputError(
                f"A sum has two numbers of as many digits, at most {MAX_DIGITS}, and + between them, got "
                f"{len(source)} tokens; at least one digit each, for example {self.typed_example}."
            )

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        k = (len(source) - 1) // 2
        column = torch.arange(k + 1, device=source.device)[:, None]  # [answer, 1]
        place = torch.arange(len(source), device=source.device)
        return ((place == k - 1 - column) | (place == 2 * k - column)) & (column < k)


def _edges(k: int) -> set[tuple[int, int]]:
    """Return sums of two numbers of k digits that carry through all digits, or nowhere, or only at one end."""
    top = 10**k
    every = max(1, top // MAX_EDGES)
    pairs = {
        pair
        for x in range(0, top, every)
        for pair in ((x, 0), (x, x), (x, top - 1), (x, 1), (x, top - x), (x, top - 1 - x))
        if pair[1] < top
    }
    rounds = [digit * 10**zeros for zeros in range(k) for digit in range(1, 10)]
    pairs |= {(x, y) for x in rounds for y in rounds}
    return pairs | {(y, x) for x, y in pairs}


def _with_run(numbers: Sequences, digits: Lengths, draw: torch.Generator) -> Sequences:
    """Replace one end of some numbers [n, place] by a run of one digit; `digits` is the length of each number."""
    n, width = numbers.shape
    chance = torch.rand(n, 4, generator=draw)
    length = 1 + (chance[:, 0] * digits).long()  # [n]: 1 to all of them
    place = torch.arange(width).expand(n, -1)  # [n, place]
    in_run = torch.where(chance[:, 1:2] < 0.5, place < length[:, None], place >= (digits - length)[:, None])
    anything = 1 + (chance[:, 2] * 30).long() % 10
    digit = torch.where(chance[:, 2] < 1 / 3, 1, torch.where(chance[:, 2] < 2 / 3, 10, anything))  # 0, 9, or any digit
    return torch.where((chance[:, 3:] < RUNS) & in_run, digit[:, None], numbers)
