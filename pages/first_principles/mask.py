"""First principle: the causal mask, −∞ before the softmax, and what two other ways to forbid do instead."""

from __future__ import annotations

import streamlit as st

from pages.first_principles.sentence import PLACE, Picture, ask_row, show_matrices
from pages.shared import frame
from pages.shared.escape_markdown import escape_markdown
from pages.shared.picture import footer
from pages.shared.widgets import choose
from xformer.analysis.principles import AFTER, BEFORE, NO_MASK, ZERO, Mixed, Sentence

TITLE = "Mask"


def mask_panel(sentence: Sentence) -> tuple[dict[str, str], list[str]]:
    """Draw the step; returns what the link keeps, and what to notice."""
    ways = {mask: sentence.attention(mask=mask) for mask in (NO_MASK, BEFORE, AFTER, ZERO)}
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
    mixed = ways[BEFORE if is_causal else NO_MASK]
    calls = show_matrices(
        [
            Picture("S", mixed, "scores", "scores" + (", later keys −∞" if is_causal else "")),
            Picture("A = softmax(S)", mixed, "weights", "each row sums to 1"),
            Picture("Y = A V", mixed, "out", "the mixed values"),
        ],
        "mask",
        row,
    )
    with frame.also("ways"):
        st.markdown("**Three ways to forbid, and what each row sums to**")
        pictures = [Picture(way, ways[way], "weights", _sums(ways[way], row)) for way in (BEFORE, AFTER, ZERO)]
        calls += show_matrices(pictures, "mask_ways", row)
    footer(PLACE, "mask", calls)
    return {"row": str(row), "causal": "causal" if is_causal else "full"}, _notes(sentence, ways, row)


def _sums(mixed: Mixed, row: int) -> str:
    """What the row sums to, and how much of that lies on later keys."""
    weights = mixed.weights[row]
    return f"row {row}: Σ = {weights.sum().item():.3f}, forbidden {weights[row + 1 :].sum().item():.3f}"


def _notes(sentence: Sentence, ways: dict[str, Mixed], row: int) -> list[str]:
    names = [escape_markdown(name) for name in sentence.names]
    before, after = ways[NO_MASK].weights[row], ways[BEFORE].weights[row]
    lost = before[row + 1 :].sum().item()
    grown = (after[: row + 1].sum() / before[: row + 1].sum()).item()
    leak = ways[ZERO].weights.triu(1).sum(dim=-1)
    worst = int(leak.argmax())
    late = ways[AFTER].weights.sum(dim=-1)
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
        f"The first word has only itself to look at, so its weight is {ways[BEFORE].weights[0, 0].item():.0f}.",
    ]
