"""First principle: the causal mask, −∞ before the softmax, and what two other ways to forbid do instead."""

from __future__ import annotations

import pandas as pd
import streamlit as st
import torch

from pages.first_principles.sentence import Sentence, ask_row
from pages.first_principles.show import Picture, show_matrices
from pages.shared.ask import choose
from pages.shared.literal import literal
from pages.shared.notebook import code_and_data
from xformer.analysis import principles

TITLE = "Mask"
FULL, RIGHT, LATE, ZERO = "no mask", "−∞ before the softmax", "0 after the softmax", "0 before the softmax"


def mask_panel(sentence: Sentence) -> tuple[dict[str, str], list[str]]:
    """Draw the step; returns what the link keeps, and what to notice."""
    names = sentence.names
    matrices = principles.learned_matrices(sentence.d, sentence.seed)
    plain = principles.projected(sentence.x, matrices)
    ways = principles.ways_to_mask(plain.scores)
    st.latex(
        r"S_{ij} = -\infty \text{ for } j > i \qquad e^{-\infty} = 0 \qquad "
        r"A_{ij} = \frac{e^{S_{ij}}}{\sum_{j' \le i} e^{S_{ij'}}}"
    )
    st.caption(
        "Whoever writes a text word by word must not see the words to come. So later keys are struck out of each row."
    )
    with st.container(horizontal=True, gap="large", vertical_alignment="bottom"):
        options = {"causal": "causal mask on", "full": "off"}
        is_causal = choose("causal", options, "causal", "Mask", key="principle_causal") == "causal"
        row = ask_row(sentence)
    shown = principles.projected(sentence.x, matrices, causal=is_causal)
    assert torch.equal(shown.weights, ways[RIGHT if is_causal else FULL])
    table = show_matrices(
        [
            Picture("S", shown.scores, names, names, about="scores" + (", later keys −∞" if is_causal else "")),
            Picture("A = softmax(S)", shown.weights, names, names, "share", "each row sums to 1", struck=is_causal),
            Picture("Y = A V", shown.out, names, sentence.dimensions("y"), about="the mixed values"),
        ],
        "mask",
        chosen=names[row],
    )
    st.markdown("**Three ways to forbid, and what each row sums to**")
    pictures, sums = [], {}
    for way in (RIGHT, LATE, ZERO):
        allowed = torch.tril(ways[way])
        sums[way] = (ways[way].sum(dim=-1), allowed.sum(dim=-1))
        total = (
            f"row {row}: Σ = {sums[way][0][row].item():.3f}, forbidden {(sums[way][0] - sums[way][1])[row].item():.3f}"
        )
        pictures.append(Picture(way, ways[way], names, names, "share", total, struck=way != ZERO))
    more = show_matrices(pictures, "mask_ways", chosen=names[row])
    code = [
        f"mixed = principles.projected(x, principles.learned_matrices({sentence.d}, {sentence.seed}), causal={is_causal})",
        "names = principles.numbered(words)",
        f'matrix_chart(principles.matrix_frame(mixed.weights, names, names), kind="share", dark=False, struck={is_causal})',
    ]
    code_and_data([*sentence.code(), *code], pd.concat([table, more]), "mask", "first-principles")
    return {"row": str(row), "causal": "causal" if is_causal else "full"}, _notes(sentence, ways, row)


def _notes(sentence: Sentence, ways: dict[str, torch.Tensor], row: int) -> list[str]:
    names = [literal(name) for name in sentence.names]
    before, after = ways[FULL][row], ways[RIGHT][row]
    lost = before[row + 1 :].sum().item()
    grown = (after[: row + 1].sum() / before[: row + 1].sum()).item()
    leak = torch.triu(ways[ZERO], 1).sum(dim=-1)
    worst = int(leak.argmax())
    late = ways[LATE].sum(dim=-1)
    least = int(late.argmin())
    first = (
        f"Without a mask “{names[row]}” gives {lost:.3f} of its weight to words to come. With −∞ that share goes to the "
        f"words before, each × {grown:.3f}: **the row is normalised anew** and still sums to {after.sum().item():.3f}."
        if lost > 0
        else f"“{names[row]}” is the last word: nothing comes after it, so the mask changes nothing in its row."
    )
    return [
        first,
        f"Zeroing **after** the softmax forgets that: the row of “{names[least]}” then sums to {late[least].item():.3f} "
        "only, and the mixed vector shrinks with it.",
        f"Zeroing **before** the softmax forbids nothing: e⁰ = 1, and “{names[worst]}” gives {leak[worst].item():.3f} of its "
        "weight to words that it must not see. Both mistakes are in the Bug lab.",
        f"The first word has only itself to look at, so its weight is {ways[RIGHT][0, 0].item():.0f}.",
    ]
