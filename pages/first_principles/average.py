"""First principle: a weighted average without parameters, dot products to weights to means."""

from __future__ import annotations

import streamlit as st

from pages.first_principles.sentence import PLACE, Picture, ask_row, show_matrices
from pages.shared.escape_markdown import escape_markdown
from pages.shared.picture import footer
from xformer.analysis.principles import Mixed, Sentence

TITLE = "Average"


def average_panel(sentence: Sentence) -> tuple[dict[str, str], list[str]]:
    """Draw the step; returns what the link keeps, and what to notice."""
    mixed = sentence.average()
    st.latex(r"S = X X^\top \qquad A = \mathrm{softmax}(S) \qquad Y = A\,X")
    st.caption(
        "Every word becomes a mean of all words. The weights are no parameters: they come from the dot products of the "
        "vectors themselves. Nothing here has been learned."
    )
    row = ask_row(sentence)
    calls = show_matrices(
        [
            Picture("X", mixed, "x", "one word per row"),
            Picture("S = X Xᵀ", mixed, "scores", "how alike two words are"),
            Picture("A = softmax(S)", mixed, "weights", "each row sums to 1"),
            Picture("Y = A X", mixed, "out", "the mixed words"),
        ],
        "average",
        row,
    )
    st.text(mixed.weighted_sum(row))
    footer(PLACE, "average", calls)
    return {"row": str(row)}, _notes(sentence, mixed, row)


def _notes(sentence: Sentence, mixed: Mixed, row: int) -> list[str]:
    names = [escape_markdown(name) for name in sentence.names]
    asymmetry = (mixed.scores - mixed.scores.T).abs().max().item()
    best = int(mixed.weights[row].argmax())
    self_best = sum(int(weights.argmax()) == i for i, weights in enumerate(mixed.weights))
    words = sentence.words
    notes = [
        f"**S is its own mirror image** (largest difference {asymmetry:.1g}): what “{names[row]}” is to another word, "
        "that word is to it. Nobody can ask for something other than what they are. Queries and keys, the next step, end that.",
        f"“{names[row]}” gives most of its weight, {mixed.weights[row, best].item():.3f}, to “{names[best]}”. "
        f"For {self_best} of {len(words)} words the largest weight is on themselves: x · x = ‖x‖² is hard to beat.",
    ]
    pairs = [(i, j) for i in range(len(words)) for j in range(i) if words[i] == words[j]]
    if pairs:
        i, j = pairs[0]
        apart = (mixed.out[i] - mixed.out[j]).abs().max().item()
        notes.append(
            f"“{names[j]}” and “{names[i]}” are the same word, so their rows of Y differ by {apart:.1g}: "
            "nothing here knows **where** a word stands."
        )
    return notes
