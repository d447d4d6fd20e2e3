"""Tasks on sequences of symbols: copying, copying twice, induction, reversing and sorting."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.tasks.framing import Purpose
from xformer.tasks.rules.rule import Answers, Lengths, Rule, Sequences


class Copy(Rule):
    """answer[i] = source[i]: position i needs the symbol at i. Symbols 1 … `symbols`; lengths count symbols."""

    name = "copy"
    verb = "copies"
    instruction = "Type numbers; it says them again."
    score_name = "diagonal"
    score_says = "is on the token itself"
    look_for = "Look for a **diagonal**: the output at position i has to say the token at i, so somewhere it has to look there."

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        return source, lengths


class CopyTwice(Rule):
    """answer[i] = source[i mod n], of distinct symbols 1 … `symbols`, at least `max_len` of them; lengths count symbols.

    In the second pass the model has to return to the start of the source, and then to stop, although it generated the same
    tokens after the same tokens before. The symbols are distinct, so the successor of a symbol is unambiguous.
    """

    name = "copy-twice"
    verb = "says twice"
    instruction = "Type numbers, each only once; it says them twice."
    score_name = "two diagonals"
    score_says = "is on the token that it has to say"
    look_for = (
        "Look for **two diagonals**, one below the other: the first time through the source and the second. Where the first "
        "ends, a head has to jump back to the beginning."
    )

    def answer_length(self, n: int) -> int:
        return 2 * n

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        place = torch.arange(2 * source.shape[1], device=source.device)  # [answer]
        return source.gather(1, place % lengths[:, None]), 2 * lengths

    def examples(self) -> dict[str, str]:
        longest = self.config.max_len
        return {
            "… says six numbers twice": self.distinct(6),
            "… says them in another order": " ".join(reversed(self.distinct(6).split())),
            "… is in doubt when a number comes again": "3 7 3 12 3 9",
            "… does the longest it was trained on": self.distinct(longest),
            "… handles the shortest": self.distinct(self.config.min_len),
        }

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        return super().target_pattern(source).repeat(2, 1)


class Induction(Rule):
    """answer = source, of distinct symbols: the next token is the one that followed the current token in the prefix. Symbols
    1 … `symbols`, at least `max_len` of them; lengths count symbols.

    One layer cannot solve it by content. In layer 1 a previous-token head writes into every position which token came before;
    in layer 2 a head attends to the position whose previous token is the current one (Elhage et al. 2021, “A Mathematical
    Framework for Transformer Circuits”; Olsson et al. 2022, arXiv:2209.11895). Lengths vary, so the distance does not help. The
    symbols of a prefix are distinct, so the successor of a symbol is unambiguous.
    """

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


class Reverse(Rule):
    """answer[i] = source[length − 1 − i], which requires the length. Symbols 1 … `symbols`; lengths count symbols."""

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


REPEATING = 0.25
"""In this share of the training sequences all symbols are among a few, as repetitions are rare by chance."""
FEW = 6


class Sort(Rule):
    """answer = the source in ascending order. Symbols 1 … `symbols`; lengths count symbols.

    The position of a symbol depends on all others, not on where it stands.
    """

    name = "sort"
    verb = "sorts"
    instruction = "Type numbers; it puts them in order."
    score_name = "right value"
    score_says = "is on tokens with the value that it has to say"
    look_for = (
        "No picture repeats from input to input: where a position has to look depends on **which numbers** stand there, "
        "not on where they stand. Change one number and see which rows move."
    )

    def sources(self, n: int, *, paired: bool, draw: torch.Generator, purpose: Purpose) -> tuple[Sequences, Lengths]:
        cells, lengths = super().sources(n, paired=paired, draw=draw, purpose=purpose)
        if purpose != "train":
            return cells, lengths
        few = torch.randint(1, FEW + 1, (n, 1), generator=draw, device=draw.device)
        among = torch.randint(1, self.config.symbols + 1, (n, FEW), generator=draw, device=draw.device)  # [n, FEW]
        chance = torch.rand(n, 1, generator=draw, device=draw.device)
        return torch.where(chance < REPEATING, among.gather(1, (cells - 1) % few), cells), lengths

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        index = torch.arange(source.shape[1], device=source.device)  # [pos]
        last = torch.iinfo(source.dtype).max
        in_order = source.masked_fill(index >= lengths[:, None], last).sort(dim=1).values
        return in_order.masked_fill(in_order == last, 0), lengths

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        return source.sort().values[:, None] == source
