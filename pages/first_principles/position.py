"""First principle: attention has no order of its own; permute the words and nothing changes but the order of the outputs."""

from __future__ import annotations

import streamlit as st
import torch
from torch import Tensor

from pages.first_principles.sentence import PLACE, Picture, show_matrices
from pages.shared.escape_markdown import escape_markdown
from pages.shared.picture import footer
from pages.shared.widgets import choose, seed
from xformer.analysis.principles import Sentence, order_error

TITLE = "Position"
ORDERS = {"reversed": "reversed", "shuffled": "shuffled", "swapped": "first two swapped"}


def position_panel(sentence: Sentence) -> tuple[dict[str, str], list[str]]:
    """Draw the step; returns what the link keeps, and what to notice."""
    st.latex(r"f(P X) = P f(X) \text{ for every permutation } P \qquad f(PX + \mathrm{pos}) \neq P f(X + \mathrm{pos})")
    st.caption(
        "The same words in another order. Without positions each word gets the very same vector, only on another row; add a "
        "vector for the position to each word, and where a word stands begins to matter."
    )
    seed("add", (0, 1), 0, key="principle_add")
    with st.container(horizontal=True, gap="large", vertical_alignment="bottom"):
        how = choose("order", ORDERS, "reversed", "Order of the words", key="principle_order")
        adds = bool(
            st.segmented_control(
                "Positions",
                (0, 1),
                format_func=("none", "sinusoidal, added").__getitem__,
                required=True,
                key="principle_add",
                persist_state="session",
            )
        )
    order = order_of(how, len(sentence.words), sentence.seed)
    error = order_error(sentence, order, add_positions=adds)
    before, after = (one.attention(add_positions=adds) for one in (sentence, sentence.in_order(order)))
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown("**As you typed it**")
        typed = [Picture("X", before, "x", "what goes in"), Picture("Y", before, "out", "what comes out")]
        calls = show_matrices(typed, "typed")
    with right:
        st.markdown(f"**The same words, {ORDERS[how]}**")
        moved = [Picture("P X", after, "x", "what goes in"), Picture("f(P X)", after, "out", "what comes out")]
        calls += show_matrices(moved, "moved")
    st.metric(
        "Largest difference |f(P X) − P f(X)|",
        f"{error:.2g}",
        help="Each word’s output compared with its own output in the first sentence.",
        border=True,
        width="content",
    )
    footer(PLACE, "position", calls)
    return {"order": how, "add": str(int(adds))}, _notes(sentence, before.out, after.out, order, error, adds)


def order_of(how: str, n: int, seed: int) -> list[int]:
    """Which word comes to each place."""
    if how == "swapped":
        return [1, 0, *range(2, n)]
    if how == "shuffled":
        return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    return list(range(n))[::-1]


def _notes(sentence: Sentence, before: Tensor, after: Tensor, order: list[int], error: float, adds: bool) -> list[str]:
    names = [escape_markdown(name) for name in sentence.names]
    if not adds:
        return [
            f"No output changed by more than {error:.1g}, which is rounding: **without positions a sentence is a bag of "
            "words**. “The dog saw the cat” and “the cat saw the dog” are the same to it.",
            "It holds for every permutation, for any number of heads, and for the feed-forward layer, which sees one word at "
            "a time. Only a causal mask brings some order back: it counts how many words came before.",
        ]
    apart = (after - before[torch.tensor(order)]).norm(dim=-1)
    most = int(apart.argmax())
    return [
        f"Now outputs change by up to {error:.2g}. “{names[order[most]]}” moves most: its vector is "
        f"{apart[most].item():.2f} away from what it was, of a length of {before[order[most]].norm().item():.2f}.",
        "The positions are the sinusoids of the paper (§3.5), the same as on the Positions screen; rotary angles and ALiBi "
        "would do it inside the scores instead.",
    ]
