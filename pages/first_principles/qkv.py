"""First principle: queries, keys and values, three learned views of each word."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.first_principles.sentence import Sentence, ask_row
from pages.first_principles.show import Picture, show_matrices
from pages.shared.literal import literal
from pages.shared.notebook import code_and_data
from xformer.analysis import principles

TITLE = "q, k, v"


def qkv_panel(sentence: Sentence) -> tuple[dict[str, str], list[str]]:
    """Draw the step; returns what the link keeps, and what to notice."""
    x, names = sentence.x, sentence.names
    matrices = principles.learned_matrices(sentence.d, sentence.seed)
    mixed = principles.projected(x, matrices)
    st.latex(
        r"Q = X W_Q \quad K = X W_K \quad V = X W_V \qquad A = \mathrm{softmax}\!\left(Q K^\top / \sqrt{d}\right)"
        r"\qquad Y = A\,V"
    )
    st.caption(
        "Three matrices give each word three roles: what it asks for (query), what it can be found by (key), what it hands "
        "over (value). In a model they are learned; here they are drawn from the seed, so that you can see what they do."
    )
    row = ask_row(sentence)
    table = show_matrices(
        [
            Picture("Q = X W_Q", mixed.q, names, sentence.dimensions("q"), about="asks for"),
            Picture("K = X W_K", mixed.k, names, sentence.dimensions("k"), about="is found by"),
            Picture("V = X W_V", mixed.v, names, sentence.dimensions("v"), about="hands over"),
        ],
        "qkv",
        chosen=names[row],
    )
    mixing = [
        Picture("S = Q Kᵀ / √d", mixed.scores, names, names, about="row asks, column answers"),
        Picture("A = softmax(S)", mixed.weights, names, names, "share", "each row sums to 1"),
        Picture("Y = A V", mixed.out, names, sentence.dimensions("y"), about="the mixed values"),
    ]
    more = show_matrices(mixing, "qkv_mixed", chosen=names[row])
    st.text(principles.weighted_sum(mixed, row, sentence.words) + ", each by its value")
    code = [
        f"mixed = principles.projected(x, principles.learned_matrices({sentence.d}, {sentence.seed}))",
        "names = principles.numbered(words)",
        'matrix_chart(principles.matrix_frame(mixed.scores, names, names), kind="signed", dark=False)',
    ]
    code_and_data([*sentence.code(), *code], pd.concat([table, more]), "qkv", "first-principles")
    return {"row": str(row)}, _notes(sentence, mixed, row)


def _notes(sentence: Sentence, mixed: principles.Mixed, row: int) -> list[str]:
    names = [literal(name) for name in sentence.names]
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
