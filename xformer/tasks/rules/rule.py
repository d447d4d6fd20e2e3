"""What a toy task is: its symbols, its sources, the right answer, and the attention that tells it has been understood.

Every task is one small frozen class; this one holds what most of them share. Of a source with n tokens:

    answer        answer_length(n) tokens, a pure function of the source
    looks_at      [answer, source]: the tokens that the output saying each answer token has to look at
    head score    Σ pattern[query, looked at], averaged over the answer tokens that have to look at something: in [0, 1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.config import TaskConfig
from xformer.errors import InputError
from xformer.tasks.rules.typed import read_numbers
from xformer.tasks.sampling import Purpose, sequences

Sequences = Int[Tensor, "batch pos"]
Lengths = Int[Tensor, " batch"]
Answers = tuple[Sequences, Lengths]
"""Answers and their lengths; cells past a length are arbitrary tokens."""


@dataclass(frozen=True)
class Rule:
    """A task with its sizes. A subclass says at least `answer`, `looks_at` and `verb`."""

    config: TaskConfig

    verb: ClassVar[str]
    """What the model does, as in “see how the model …”."""
    score_name: ClassVar[str]
    """What the head score is called."""
    score_says: ClassVar[str]
    """What a score of w says, as in “w of its attention …”."""
    look_for: ClassVar[str]
    """What a newcomer sees in a trained model's attention: one plain sentence, Markdown allowed."""
    unit: ClassVar[str] = "numbers"
    """What `min_len` and `max_len` count."""
    separator: ClassVar[str] = " "
    """What stands between the symbols of a source as they are typed."""
    needs_causal: ClassVar[bool] = False
    """Whether an encoder has to be causal: each answer is about the past alone."""

    @property
    def labels(self) -> tuple[str, ...]:
        """How the tokens 1, 2, … are written: those of a source first, then those that only an answer has."""
        return tuple(str(symbol) for symbol in range(1, self.config.symbols + 1))

    @property
    def n_numbers(self) -> int:
        """How many of the tokens 1, 2, … are numbers in their order; 0 where they are none."""
        return self.config.symbols

    @property
    def typed_example(self) -> str:
        """A text that can be read."""
        return " ".join(str(1 + (step * 5 + 2) % self.config.symbols) for step in range(4))

    @property
    def typed(self) -> str:
        """What a person can type, in a few words."""
        return f"Numbers from 1 to {self.config.symbols}, with spaces between them."

    @property
    def default(self) -> str:
        """What stands in the input box at first."""
        return "3 7 12 9 4 11" if self.config.symbols >= 12 else self.typed_example

    def examples(self) -> dict[str, str]:
        """Inputs with a purpose, in the words of “See how the model …”."""
        longest = self.config.max_len
        return {
            f"… {self.verb} six numbers": self.some(6),
            "… tells equal numbers apart by their place": " ".join(["5"] * 4 + ["9"] * 4),
            f"… {self.verb} the longest it was trained on": self.some(longest),
            "… fails on more than it was trained on": self.some(longest + 3),
            "… handles the shortest": self.some(self.config.min_len),
        }

    def some(self, count: int) -> str:
        """So many numbers, as they are typed: each is 7 more than the one before, modulo `symbols`."""
        return " ".join(str(1 + (step * 7 + 2) % self.config.symbols) for step in range(count))

    def source_length(self, size: int) -> int:
        """How many tokens a source has whose size, between `min_len` and `max_len`, is `size`."""
        return size

    def size(self, source: Sequence[int]) -> int:
        """The size of a source, in `unit`."""
        return len(source)

    def answer_length(self, n: int) -> int:
        """How many tokens the answer to n tokens has. Works on a tensor of lengths too."""
        return n

    def sources(self, n: int, *, paired: bool, draw: torch.Generator, purpose: Purpose) -> tuple[Sequences, Lengths]:
        """n sources and their lengths in tokens; with `paired`, those of each two neighbours have one and the same sum."""
        c = self.config
        return sequences(n, symbols=c.symbols, min_len=c.min_len, max_len=c.max_len, paired=paired, draw=draw)

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        """The right answers, as tensor algebra."""
        raise NotImplementedError

    def read(self, text: str) -> list[int]:
        """The tokens of what a person typed. Raises `InputError` with one plain sentence when it is no source."""
        return read_numbers(text, 1, self.config.symbols, self.typed_example)

    def check(self, source: Sequence[int]) -> None:
        """Raise `InputError` when there is no answer to so many tokens."""
        if not source:
            raise InputError("An example needs at least one number, got none; for example [3, 1, 2].")

    def remark(self, source: Sequence[int]) -> str:
        """What makes a source unlike those of training, as one sentence; "" when nothing does."""
        c, size = self.config, self.size(source)
        if c.min_len <= size <= c.max_len:
            return ""
        return f"{size} {self.unit}: it was trained on {c.min_len} to {c.max_len}, so expect mistakes."

    def looks_at(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        """Which source tokens the output that says each answer token has to look at; a row may be empty."""
        raise NotImplementedError

    def head_score(
        self, pattern: Float[Tensor, "head query key"], source: Sequence[int], queries: Sequence[int]
    ) -> Float[Tensor, " head"]:
        """How much of what this task needs each head looks at, in [0, 1].

        `queries` are where the outputs stand that say the answer, the keys 0 … n − 1 are the source's.
        """
        wanted = self.looks_at(torch.tensor(list(source), device=pattern.device)).to(pattern.dtype)  # [answer, pos]
        rows = pattern[:, list(queries), : len(source)]  # [head, answer, pos]
        mass = (rows * wanted).sum(dim=-1)  # [head, answer]
        counts = wanted.sum(dim=-1) > 0  # [answer]
        return mass[:, counts].mean(dim=-1) if bool(counts.any()) else mass.new_zeros(len(mass))


def diagonal(n: int, device: torch.device) -> Bool[Tensor, "answer pos"]:
    """Answer token i needs source token i."""
    return torch.eye(n, dtype=torch.bool, device=device)
