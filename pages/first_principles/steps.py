"""The steps of First principles: average, queries and keys, scale, mask, heads and position, each drawn for a sentence."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import streamlit as st
import torch
from torch import Tensor

from pages.first_principles.sentence import PLACE, Picture, ask_row, draw_again, show_matrices
from pages.shared import frame
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.frame import is_framed
from pages.shared.picture import footer, picture, shown, table
from pages.shared.widgets import choose
from xformer import analysis, viz
from xformer.analysis.principles import (
    AFTER,
    BEFORE,
    N_KEYS,
    N_PAIRS,
    N_QUERIES,
    NO_MASK,
    RAW,
    SCALED,
    WIDTHS,
    ZERO,
    Mixed,
    Sentence,
    attention_costs,
    order_error,
)


def average_panel(sentence: Sentence) -> list[str]:
    """Draw the step; returns what to notice."""
    mixed = sentence.average()
    st.latex(r"S = X X^\top \qquad A = \mathrm{softmax}(S) \qquad Y = A\,X")
    st.caption(
        "Every word becomes a weighted mean of all words. The weights come from dot products of the vectors themselves: "
        "no parameters, nothing learned."
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
    return _average_notes(sentence, mixed, row)


def _average_notes(sentence: Sentence, mixed: Mixed, row: int) -> list[str]:
    names = [escape_markdown(name) for name in sentence.names]
    asymmetry = (mixed.scores - mixed.scores.T).abs().max().item()
    best = int(mixed.weights[row].argmax())
    self_best = sum(int(weights.argmax()) == i for i, weights in enumerate(mixed.weights))
    words = sentence.words
    notes = [
        f"**S is its own mirror image** (largest difference {asymmetry:.1g}): what “{names[row]}” is to another word, "
        "that word is to it. Queries and keys, the next step, change that.",
        f"“{names[row]}” gives most of its weight, {mixed.weights[row, best].item():.3f}, to “{names[best]}”. "
        f"For {self_best} of {len(words)} words the largest weight is on themselves: x · x = ‖x‖² is hard to beat.",
    ]
    pairs = [(i, j) for i in range(len(words)) for j in range(i) if words[i] == words[j]]
    if pairs:
        i, j = pairs[0]
        apart = (mixed.out[i] - mixed.out[j]).abs().max().item()
        notes.append(
            f"“{names[j]}” and “{names[i]}” are the same word, so their rows of Y differ by {apart:.1g}: "
            "position plays no role yet."
        )
    return notes


SLIDE = 26
"""Columns of numbers that fit side by side in a frame of 1280 pixels."""


def qkv_panel(sentence: Sentence) -> list[str]:
    """Draw the step; returns what to notice."""
    mixed = sentence.attention()
    st.latex(
        r"Q = X W_Q \quad K = X W_K \quad V = X W_V \qquad A = \mathrm{softmax}\!\left(Q K^\top / \sqrt{d}\right)"
        r"\qquad Y = A\,V"
    )
    st.caption(
        "Three matrices map each word to a query (what it looks for), a key (what it is found by) and a value (what it "
        "passes on). In a model they are learned; here they are random, drawn from the seed."
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
    return _qkv_notes(sentence, mixed, row)


def _qkv_notes(sentence: Sentence, mixed: Mixed, row: int) -> list[str]:
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


def scale_panel(sentence: Sentence) -> list[str]:
    """Draw the step; returns what to notice."""
    st.latex(
        r"\mathrm{Var}(q_i k_i) = 1 \;\Rightarrow\; \mathrm{Var}(q \cdot k) = \mathrm{Var}\Big(\sum_{i=1}^{d} q_i k_i\Big) = d "
        r"\;\Rightarrow\; \mathrm{Var}\big(q \cdot k / \sqrt{d}\big) = 1"
    )
    st.caption(
        "For independent entries of mean 0 and variance 1, variances of a sum add up: the wider the vectors, the larger "
        "their products, and the more the softmax picks a single key."
    )
    widths = {width: str(width) for width in WIDTHS}
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        look: dict[str, Any] = {"widget": st.select_slider, "width": 280}
        d = choose("dk", widths, 64, "d, the width of q and k", key="principle_dk", **look)
        is_scaled = choose("scaled", {1: "divide by √d", 0: "leave it out"}, 1, "Scale", key="principle_scaled")
        st.button("Draw again", icon=":material/casino:", key="principle_scale_redraw", on_click=draw_again)
    numbers = {"seed": sentence.seed}
    here = {"d": d, **numbers}
    row = Call(viz.softmax_row, (), {**here, "scaled": bool(is_scaled)})
    charts = {
        f"Variance of q · k**  \n:small[{N_PAIRS:,} pairs; dashed: d, 1]": Call(viz.product_variances, (), here),
        f"One query, {N_KEYS} keys, d = {d}**  \n:small[{'divided by √d' if is_scaled else 'no scale'}]": row,
        f"Gradient of the softmax**  \n:small[mean of {N_QUERIES} queries, {N_KEYS} keys]": Call(
            viz.softmax_saturation, (), here
        ),
    }
    for place, (title, call) in zip(st.columns(3, gap="medium"), charts.items(), strict=True):
        with place:
            st.markdown(f"**{title}")
            shown(PLACE, call, f"scale_{call.name}")
    measured = table(PLACE, analysis.product_variances, **numbers)
    saturated = table(PLACE, analysis.softmax_saturation, **numbers)
    footer(PLACE, "scale", list(charts.values()), lambda: measured.merge(saturated, on="d"))
    largest = max(table(PLACE, analysis.softmax_row, **row.options)["weight"].tolist())
    return _scale_notes(measured.set_index("d"), saturated.set_index(["d", "scale"]), d, largest)


def _scale_notes(measured: pd.DataFrame, saturated: pd.DataFrame, d: int, largest: float) -> list[str]:
    here, raw, scaled = measured.loc[d], saturated.loc[(d, RAW)], saturated.loc[(d, SCALED)]
    narrow, wide = saturated.loc[(WIDTHS[0], RAW)], saturated.loc[(WIDTHS[-1], RAW)]
    return [
        f"At d = {d} the variance of q · k was measured as **{here['variance']:.4g}** (expected {d}, give or take "
        f"{here['error']:.2g}); divided by √{d} = {math.sqrt(d):.3g} it is **{here['scaled']:.3f}**.",
        f"Without the scale the largest of {N_KEYS} weights is {raw['largest']:.2f} on average at d = {d}, with it "
        f"{scaled['largest']:.2f}. (In the one row shown: {largest:.2f}.)",
        f"The gradient of a softmax is p (1 − p) at its largest, 1/4 at most. Without the scale it falls from "
        f"{narrow['gradient']:.3f} at d = {WIDTHS[0]} to {wide['gradient']:.3f} at d = {WIDTHS[-1]}; with it, it stays at "
        f"{saturated.loc[(WIDTHS[-1], SCALED)]['gradient']:.3f}. **A saturated softmax hardly learns.**",
        "The lines hold for entries that are independent, with mean 0 and variance 1, as fresh weights make them. "
        "Training is free to leave that behind.",
    ]


def mask_panel(sentence: Sentence) -> list[str]:
    """Draw the step; returns what to notice."""
    ways = {mask: sentence.attention(mask=mask) for mask in (NO_MASK, BEFORE, AFTER, ZERO)}
    st.latex(
        r"S_{ij} = -\infty \text{ for } j > i \qquad e^{-\infty} = 0 \qquad "
        r"A_{ij} = \frac{e^{S_{ij}}}{\sum_{j' \le i} e^{S_{ij'}}}"
    )
    st.caption("A model that generates word by word must not see later words, so later keys are masked in each row.")
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
    return _mask_notes(sentence, ways, row)


def _sums(mixed: Mixed, row: int) -> str:
    """The sum of a row, and the part of it on later keys."""
    weights = mixed.weights[row]
    return f"row {row}: Σ = {weights.sum().item():.3f}, forbidden {weights[row + 1 :].sum().item():.3f}"


def _mask_notes(sentence: Sentence, ways: dict[str, Mixed], row: int) -> list[str]:
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
        f"Zeroing **after** the softmax skips that: the row of “{names[least]}” then sums to {late[least].item():.3f} "
        "only, and the mixed vector shrinks with it.",
        f"Zeroing **before** the softmax forbids nothing: e⁰ = 1, and “{names[worst]}” gives {leak[worst].item():.3f} of its "
        "weight to words that it must not see. Both mistakes are in the Bug lab.",
        f"The first word has only itself to look at, so its weight is {ways[BEFORE].weights[0, 0].item():.0f}.",
    ]


SIZES = {"sentence": "this sentence", "paper": "the paper’s base model: 512 wide, 8 heads, 64 tokens"}

PAPERS_SIZE = (64, 512, 8)


def heads_panel(sentence: Sentence) -> list[str]:
    """Draw the step; returns what to notice."""
    d = sentence.d
    st.latex(
        r"\mathrm{head}_i = \mathrm{softmax}\!\left(Q_i K_i^\top / \sqrt{d/h}\right) V_i \qquad "
        r"Y = \mathrm{concat}(\mathrm{head}_1 \ldots \mathrm{head}_h)\, W_O"
    )
    options = {h: str(h) for h in (1, 2, 4) if d % h == 0}
    with st.container(horizontal=True, gap="large", vertical_alignment="bottom"):
        h = choose("heads", options, 2, "Heads", key="principle_heads", width="content")
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
    return _heads_notes(heads, attention_costs(**shape), n, d_model, n_heads)


def _columns(first: int, last: int) -> str:
    return f"column {first}" if first == last else f"columns {first} to {last}"


def _heads_notes(heads: list[Mixed], costs: pd.DataFrame, n: int, d: int, h: int) -> list[str]:
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


ORDERS = {"reversed": "reversed", "shuffled": "shuffled", "swapped": "first two swapped"}


def position_panel(sentence: Sentence) -> list[str]:
    """Draw the step; returns what to notice."""
    st.latex(r"f(P X) = P f(X) \text{ for every permutation } P \qquad f(PX + \mathrm{pos}) \neq P f(X + \mathrm{pos})")
    st.caption(
        "The same words in another order. Without positions each word gets the same vector, in another row; with a position "
        "vector added to each word, the order matters."
    )
    with st.container(horizontal=True, gap="large", vertical_alignment="bottom"):
        how = choose("order", ORDERS, "reversed", "Order of the words", key="principle_order")
        adds = bool(choose("add", {0: "none", 1: "sinusoidal, added"}, 0, "Positions", key="principle_add"))
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
    return _position_notes(sentence, before.out, after.out, order, error, adds)


def order_of(how: str, n: int, seed: int) -> list[int]:
    """The position of the word that moves to each place."""
    if how == "swapped":
        return [1, 0, *range(2, n)]
    if how == "shuffled":
        return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    return list(range(n))[::-1]


def _position_notes(
    sentence: Sentence, before: Tensor, after: Tensor, order: list[int], error: float, adds: bool
) -> list[str]:
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
