"""First principle: several heads in the same space, and what they cost, counted from shapes and measured."""

from __future__ import annotations

import pandas as pd
import streamlit as st
import torch

from pages.first_principles.sentence import PLACE, Picture, show_matrices
from pages.shared import frame
from pages.shared.picture import footer, picture
from pages.shared.widgets import choose, seed
from xformer import viz
from xformer.analysis.principles import Mixed, Sentence, attention_costs

TITLE = "Heads"
SIZES = {"sentence": "this sentence", "paper": "the paper’s base model: 512 wide, 8 heads, 64 tokens"}
PAPERS_SIZE = (64, 512, 8)


def heads_panel(sentence: Sentence) -> tuple[dict[str, str], list[str]]:
    """Draw the step; returns what the link keeps, and what to notice."""
    d = sentence.d
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
    heads = [sentence.attention(n_heads=h, head=head) for head in range(h)]
    st.caption(
        f"Q, K and V have {d} columns each; every head takes {d // h} of them and mixes the words in its own way."
    )
    pictures = [
        Picture(f"A of head {i + 1}", head, "weights", _columns(i * d // h + 1, (i + 1) * d // h))
        for i, head in enumerate(heads)
    ]
    if h == 1:
        pictures.append(Picture("Y = A V", heads[0], "out", "the mixed values"))
    footer(PLACE, "heads", show_matrices(pictures, "heads"))
    n, d_model, n_heads = PAPERS_SIZE if size == "paper" else (len(sentence.words), d, h)
    shape = {"n_tokens": n, "d_model": d_model, "n_heads": n_heads}
    with frame.also("costs"):
        st.markdown(
            f"**Multiplications of one layer**  \n:small[{n} tokens, d = {d_model}, h = {n_heads}. The bars are counted from "
            "the shapes, the numbers were counted by torch as it multiplied.]"
        )
        picture(PLACE, "costs", viz.attention_costs, key="heads_cost", **shape)
    return {"heads": str(h), "size": size}, _notes(heads, attention_costs(**shape), n, d_model, n_heads)


def _columns(first: int, last: int) -> str:
    return f"column {first}" if first == last else f"columns {first} to {last}"


def _notes(heads: list[Mixed], costs: pd.DataFrame, n: int, d: int, h: int) -> list[str]:
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
