"""First principle: several heads in the same space, and what they cost, counted from shapes and measured."""

from __future__ import annotations

import pandas as pd
import streamlit as st
import torch

from pages.first_principles.sentence import Sentence
from pages.first_principles.show import Picture, show_matrices
from pages.shared.ask import choose, seed
from pages.shared.layout import is_dark
from pages.shared.notebook import code_and_data
from xformer.analysis import principles
from xformer.viz.principles import cost_chart

TITLE = "Heads"
SIZES = {"sentence": "this sentence", "paper": "the paper’s base model: 512 wide, 8 heads, 64 tokens"}
PAPER = (64, 512, 8)


def heads_panel(sentence: Sentence) -> tuple[dict[str, str], list[str]]:
    """Draw the step; returns what the link keeps, and what to notice."""
    names, d = sentence.names, sentence.d
    st.latex(
        r"\mathrm{head}_i = \mathrm{softmax}\!\left(Q_i K_i^\top / \sqrt{d/h}\right) V_i \qquad "
        r"Y = \mathrm{concat}(\mathrm{head}_1 \ldots \mathrm{head}_h)\, W_O"
    )
    options = [h for h in (1, 2, 4) if d % h == 0]
    seed("heads", options, 2, key="principle_heads")
    with st.container(horizontal=True, gap="large", vertical_alignment="bottom"):
        st.segmented_control(
            "Heads", options, required=True, key="principle_heads", persist_state="session", width="content"
        )
        h = int(st.session_state["principle_heads"])
        size = choose("size", SIZES, "sentence", "Count the cost for", key="principle_size")
    matrices = principles.learned_matrices(d, sentence.seed)
    heads = principles.split_heads(sentence.x, matrices, h)
    st.caption(
        f"Q, K and V have {d} columns each; every head takes {d // h} of them and mixes the words in its own way."
    )
    pictures = [
        Picture(f"A of head {i + 1}", head.weights, names, names, "share", _columns(i * d // h + 1, (i + 1) * d // h))
        for i, head in enumerate(heads)
    ]
    if h == 1:
        pictures.append(Picture("Y = A V", heads[0].out, names, sentence.dimensions("y"), about="the mixed values"))
    table = show_matrices(pictures, "heads")
    draw = "*[matrix_chart(principles.matrix_frame(head.weights, names, names), kind='share', dark=False) for head in heads]"
    matrices_code = f"principles.learned_matrices({d}, {sentence.seed})"
    more = [f"heads = principles.split_heads(x, {matrices_code}, {h})", "names = principles.numbered(words)"]
    code_and_data(
        [*sentence.code(), "import altair", *more, f"altair.hconcat({draw})"], table, "heads", "first-principles"
    )
    n, d_model, n_heads = PAPER if size == "paper" else (len(names), d, h)
    costs = principles.costs(n, d_model, n_heads)
    st.markdown(
        f"**Multiplications of one layer**  \n:small[{n} tokens, d = {d_model}, h = {n_heads}. The bars are counted from the "
        "shapes, the numbers were counted by torch as it multiplied.]"
    )
    st.altair_chart(cost_chart(costs, dark=is_dark()), width="stretch", key="heads_cost")
    code = [
        "from xformer.analysis import principles",
        "from xformer.viz.principles import *",
        f"cost_chart(principles.costs(n={n}, d_model={d_model}, n_heads={n_heads}), dark=False)",
    ]
    code_and_data(code, costs, "costs", "first-principles")
    return {"heads": str(h), "size": size}, _notes(heads, costs, n, d_model, n_heads)


def _columns(first: int, last: int) -> str:
    return f"column {first}" if first == last else f"columns {first} to {last}"


def _notes(heads: list[principles.Mixed], costs: pd.DataFrame, n: int, d: int, h: int) -> list[str]:
    one, split, wide = (sum(costs["count"][costs["heads"] == name]) for name in dict.fromkeys(costs["heads"]))
    measured = costs.drop_duplicates("heads")["measured"].tolist()
    agree = measured == [one, split, wide]
    notes = [
        f"**h heads of d/h cost as many multiplications as one head of d**: {split:,} and {one:,}, "
        + ("and torch counted the same while multiplying." if agree else f"but torch counted {measured}.")
        + " Each of them has its own pattern for that price. All heads are one batched product, so they run side by side.",
        f"h heads as wide as d, as the write-up “Recreating a Modern Transformer in PyTorch” builds them, cost {wide:,}: "
        f"{wide / one:.2f} × as much.",
        f"What does grow with h is the number of weights, and so of exponentials: {n * n:,} for one head, {h * n * n:,} "
        f"for {h}.",
    ]
    if len(heads) > 1:
        apart = 0.5 * (heads[0].weights - heads[1].weights).abs().sum(dim=-1)
        query = int(apart.argmax())
        notes.append(
            f"Heads 1 and 2 disagree most in row {query}: {apart[query].item():.2f} of the weight lies elsewhere. "
            f"Averaged over rows it is {torch.mean(apart).item():.2f}."
        )
    return notes
