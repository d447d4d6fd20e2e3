"""Copying: position i needs the symbol at i."""

from __future__ import annotations

from xformer.tasks.rules.rule import Answers, Lengths, Rule, Sequences


class Copy(Rule):
    """answer[i] = source[i]. Symbols 1 … `symbols`; lengths count symbols."""

    name = "copy"
    verb = "copies"
    instruction = "Type numbers; the model copies them."
    score_name = "diagonal"
    score_meaning = "is on the token itself"
    attention_hint = (
        "Look for a **diagonal**: the output at position i is the token at i, so some head has to attend there."
    )

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        return source, lengths
