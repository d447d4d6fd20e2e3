"""First principle: queries, keys and values, three learned views of each word."""

from __future__ import annotations

import streamlit as st

from pages.first_principles.sentence import PLACE, Picture, ask_row, show_matrices
from pages.shared.escape_markdown import escape_markdown
from pages.shared.frame import is_framed
from pages.shared.picture import footer
from xformer.analysis.principles import Mixed, Sentence

TITLE = "q, k, v"
SLIDE = 26
"""Columns of numbers that stand side by side in a frame of 1280 pixels, which is wide and low."""


def qkv_panel(sentence: Sentence) -> tuple[dict[str, str], list[str]]:
    """Draw the step; returns what the link keeps, and what to notice."""
    mixed = sentence.attention()
    st.latex(
        r"Q = X W_Q \quad K = X W_K \quad V = X W_V \qquad A = \mathrm{softmax}\!\left(Q K^\top / \sqrt{d}\right)"
        r"\qquad Y = A\,V"
    )
    st.caption(
        "Three matrices give each word three roles: what it asks for (query), what it can be found by (key), what it hands "
        "over (value). In a model they are learned; here they are drawn from the seed, so that you can see what they do."
    )
    row = ask_row(sentence)
    roles = [
        Picture("Q = X W_Q", mixed, "q", "asks for"),
        Picture("K = X W_K", mixed, "k", "is found by"),
        Picture("V = X W_V", mixed, "v", "hands over"),
    ]
    mixing = [
        Picture("S = Q Kᵀ / √d", mixed, "scores", "row asks, column answers"),
        Picture("A = softmax(S)", mixed, "weights", "each row sums to 1"),
        Picture("Y = A V", mixed, "out", "the mixed values"),
    ]
    fits = is_framed() and 4 * sentence.d + 2 * len(sentence.names) <= SLIDE
    rows = {"qkv": [*roles, *mixing]} if fits else {"qkv": roles, "qkv_mixed": mixing}
    calls = [call for name, pictures in rows.items() for call in show_matrices(pictures, name, row)]
    st.text(mixed.weighted_sum(row) + ", each by its value")
    footer(PLACE, "qkv", calls)
    return {"row": str(row)}, _notes(sentence, mixed, row)


def _notes(sentence: Sentence, mixed: Mixed, row: int) -> list[str]:
    names = [escape_markdown(name) for name in sentence.names]
    apart = (mixed.scores - mixed.scores.T).abs()
    i, j = divmod(int(apart.argmax()), len(names))
    own = sum(int(weights.argmax()) == k for k, weights in enumerate(mixed.weights))
    return [
        f"**S is no longer a mirror image**: “{names[i]}” scores “{names[j]}” {mixed.scores[i, j].item():.2f}, the other way "
        f"round it is {mixed.scores[j, i].item():.2f}. A word can now look for something that it is not.",
        f"{own} of {len(names)} words look most at themselves now.",
        f"The three matrices hold 3 · {sentence.d} · {sentence.d} = {3 * sentence.d**2} numbers, whatever the length of the "
        "sentence: the same matrices serve every word.",
    ]
