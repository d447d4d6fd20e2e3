"""Running parity: after each bit, whether the number of ones so far is odd, computed from the previous answer.

    answer[i] = bit[0] ⊕ … ⊕ bit[i] = answer[i − 1] ⊕ bit[i]

Computing the parity of all bits at once requires counting. Intermediate results turn it into steps that need only two tokens:
the bit and the previous answer (Wei et al. 2022, arXiv:2201.11903).
"""

from __future__ import annotations

from xformer.tasks.rules.rule import Answers, Lengths, Rule, Sequences, read_characters

_BITS = ("0", "1")


class Parity(Rule):
    """answer[i] = XOR of bits 0 … i. Two symbols, the bits 0 and 1; lengths count bits."""

    name = "parity"
    verb = "tracks the parity of"
    instruction = "Type zeros and ones; after each, the model says if the number of ones so far is even (0) or odd (1)."
    score_name = "its own bit"
    score_meaning = "is on the next bit"
    attention_hint = (
        "Look at the rows of the answer: each step has to attend to **one bit**, the next one, which makes a diagonal. "
        "The previous answer is the current token, so these two tokens are enough for a step."
    )
    unit = "bits"
    separator = ""
    tokens = _BITS
    has_numbers = False
    sample_text = "1 0 1 1"
    initial_text = "10110100"
    accepted_text = "Bits, 0 or 1."

    def examples(self) -> dict[str, str]:
        longest = self.config.max_len
        return {
            "… tracks the parity of eight bits": self.default,
            "… switches at every one": "1" * min(8, longest),
            "… stays the same for zeros": "0" * min(8, longest),
            "… carries a single one to the end": "1" + "0" * (min(8, longest) - 1),
            "… handles the longest input it was trained on": ("110100101110010" * longest)[:longest],
            "… fails on longer input than it was trained on": ("110100101110010" * longest)[: longest + 3],
        }

    def read(self, text: str) -> list[int]:
        return [1 + bit for bit in read_characters(text, _BITS, "bits, 0 or 1", self.typed_example)]

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        return 1 + (source == 2).long().cumsum(dim=1) % 2, lengths
