"""First principle: attention has no order of its own; permute the words and nothing changes but the order of the outputs."""

from __future__ import annotations

import pandas as pd
import streamlit as st
import torch
from torch import Tensor

from pages.first_principles.sentence import Sentence
from pages.first_principles.show import Picture, show_matrices
from pages.shared.ask import choose, seed
from pages.shared.literal import literal
from pages.shared.notebook import code_and_data
from xformer.analysis import principles
from xformer.positions.sinusoidal import sinusoidal

TITLE = "Position"
ORDERS = {"reversed": "reversed", "shuffled": "shuffled", "swapped": "first two swapped"}


def position_panel(sentence: Sentence) -> tuple[dict[str, str], list[str]]:
    """Draw the step; returns what the link keeps, and what to notice."""
    x, d, n = sentence.x, sentence.d, len(sentence.words)
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
    order = order_of(how, n, sentence.seed)
    matrices = principles.learned_matrices(d, sentence.seed)
    positions = sinusoidal(n, d) if adds else torch.zeros(n, d)

    def attention(rows: Tensor) -> Tensor:
        return principles.projected(rows + positions, matrices).out

    error = principles.order_error(attention, x, order)
    before, after = attention(x), attention(x[torch.tensor(order)])
    names = sentence.names
    moved = [f"{place} {sentence.words[at]}" for place, at in enumerate(order)]
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown("**As you typed it**")
        one = show_matrices(
            [
                Picture("X", x, names, sentence.dimensions(), about="what goes in"),
                Picture("Y", before, names, sentence.dimensions("y"), about="what comes out"),
            ],
            "typed",
        )
    with right:
        st.markdown(f"**The same words, {ORDERS[how]}**")
        other = show_matrices(
            [
                Picture("P X", x[torch.tensor(order)], moved, sentence.dimensions(), about="what goes in"),
                Picture("f(P X)", after, moved, sentence.dimensions("y"), about="what comes out"),
            ],
            "moved",
        )
    st.metric(
        "Largest difference |f(P X) − P f(X)|",
        f"{error:.2g}",
        help="Each word’s output compared with its own output in the first sentence.",
        border=True,
        width="content",
    )
    code = [
        "from xformer.positions.sinusoidal import sinusoidal",
        f"positions = sinusoidal({n}, {d})" if adds else f"positions = torch.zeros({n}, {d})",
        f"matrices = principles.learned_matrices({d}, {sentence.seed})",
        "f = lambda rows: principles.projected(rows + positions, matrices).out",
        f"print(principles.order_error(f, x, {order}))",
        f'matrix_chart(principles.matrix_frame(f(x[{order}]), {moved}, {sentence.dimensions("y")}), kind="signed", dark=False)',
    ]
    code_and_data(
        [*sentence.code(), *code],
        pd.concat([one.assign(order="typed"), other.assign(order=how)]),
        "position",
        "first-principles",
    )
    return {"order": how, "add": str(int(adds))}, _notes(sentence, before, after, order, error, adds)


def order_of(how: str, n: int, seed: int) -> list[int]:
    """Which word comes to each place."""
    if how == "swapped":
        return [1, 0, *range(2, n)]
    if how == "shuffled":
        return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    return list(range(n))[::-1]


def _notes(sentence: Sentence, before: Tensor, after: Tensor, order: list[int], error: float, adds: bool) -> list[str]:
    names = [literal(name) for name in sentence.names]
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
