"""The steps of First principles: each draws its picture under a headline, and returns what to notice.

All but the last two use a sentence, which the visitor edits in its matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st
import torch

from pages.components.elements import matrices
from pages.compute import cached_runs, models
from pages.compute.call import PictureCall, PictureContext, picture_call
from pages.compute.picture import footer, shown, table, toolbar
from pages.controls.text import escape_markdown, headline
from pages.controls.widgets import choose, validate_text
from pages.first_principles.sentence import PREDICT, change, followed_row, tell
from pages.state import screens
from pages.state.link import keep_widget_value, take_parameter
from xformer import Checkpoint, analysis, viz
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
    head_of,
    learned_matrices,
    order_error,
    parts,
)
from xformer.errors import InputError
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.widgets.matrices_data import Shown, matrices_data, mix, operand, product, softmax

CONTEXT = PictureContext("first-principles")


def show_matrices(shown: Sequence[Shown], step: str, row: int, **more: Any) -> list[PictureCall]:
    """Draw matrices that follow the numbers of `row`; return the calls that draw them as figures."""
    data = matrices_data(shown, step=step, row=row, predict=st.session_state[PREDICT], **more)
    matrices(data, key=f"matrices_{step}", changed=change)
    return [
        picture_call(viz.matrix, matrix.mixed, what=matrix.which, n_columns=matrix.n_columns, row=row)
        for matrix in shown
        if matrix.drawn
    ]


CLEAR = 0.15
"""A weight is a finding where it exceeds that of uniform attention by this much."""


def row_words(names: Sequence[str]) -> list[str]:
    """Return the words of rows as Markdown; only words that occur twice keep their positions."""
    words = [name.partition(" · ")[2] for name in names]
    return [escape_markdown(word if words.count(word) == 1 else name) for word, name in zip(words, names, strict=True)]


def average_panel(sentence: Sentence) -> list[str]:
    """Draw attention as an average with dot products as weights; return what to notice."""
    mixed = sentence.average()
    row = followed_row(mixed.names)
    tell(strongest_weight(mixed, row))
    pictures = [
        Shown("X", "X", mixed, "x", "one word per row", editable=True),
        Shown("S", "S = X Xᵀ", mixed, "scores", "similarity of two words", product("X", "X")),
        Shown("A", "A = softmax(S)", mixed, "weights", "each row sums to 1", softmax("S"), breaks=True),
        Shown("Y", "Y = A X", mixed, "out", "the mixed words", mix("A", "X")),
    ]
    footer(CONTEXT, "average", show_matrices(pictures, "average", row, words=sentence.words))
    own = sum(int(weights.argmax()) == i for i, weights in enumerate(mixed.weights))
    return [
        "Each word becomes a weighted average of all words. The weights are not learned; they come from dot products of the "
        "word vectors.",
        f"**S is symmetric**: cat→dog equals dog→cat. For {own} of {len(mixed.names)} words the largest weight is "
        "on themselves: a word can only match similar words. Queries and keys, the next step, change both.",
    ]


def strongest_weight(mixed: Mixed, row: int) -> str:
    """Describe the strongest weight of a row; "" where attention is almost uniform."""
    best, names = int(mixed.weights[row].argmax()), row_words(mixed.names)
    weight = mixed.weights[row, best].item()
    if weight < 1 / len(names) + CLEAR:
        return ""
    source = "itself" if best == row else f"“{names[best]}”"
    return f"“{names[row]}” takes {percent(weight, 0)} of its new vector from {source}."


def qkv_panel(sentence: Sentence) -> list[str]:
    """Draw attention with queries, keys and values; return what to notice."""
    mixed = sentence.attention()
    row = followed_row(mixed.names)
    names = row_words(mixed.names)
    asymmetry = (mixed.scores - mixed.scores.T).abs()
    i, j = divmod(int(asymmetry.argmax()), len(names))
    if asymmetry[i, j] >= 0.1:
        tell(
            f"“{names[i]}” scores “{names[j]}” {mixed.scores[i, j].item():.2f}, and “{names[j]}” scores “{names[i]}” "
            f"{mixed.scores[j, i].item():.2f}: S is no longer symmetric."
        )
    pictures = [
        Shown("X", "X", mixed, "x", drawn=False),
        Shown("Q", "Q = X W_Q", mixed, "q", "what a word looks for", product("X", "W_Q", by="columns")),
        Shown("K", "K = X W_K", mixed, "k", "what it matches", product("X", "W_K", by="columns")),
        Shown("V", "V = X W_V", mixed, "v", "what it passes on", product("X", "W_V", by="columns")),
        *_attention(mixed, sentence.d),
    ]
    matrices = zip(("W_Q", "W_K", "W_V"), learned_matrices(sentence.d, sentence.seed), strict=True)
    weights = [operand(name, values) for name, values in matrices]
    footer(CONTEXT, "qkv", show_matrices(pictures, "qkv", row, operands=weights, words=sentence.words))
    own = sum(int(weights.argmax()) == k for k, weights in enumerate(mixed.weights))
    return [
        "Three matrices turn each word into a query, a key and a value. In a model they are learned; here they are random. "
        f"A word can now look for something different from itself: {own} of {len(names)} words attend most to themselves.",
        f"The three matrices hold 3 · {sentence.d} · {sentence.d} = {3 * sentence.d**2} numbers for a sentence of any "
        "length: the same matrices serve every word.",
    ]


def _attention(mixed: Mixed, d: int, hidden: str = "") -> list[Shown]:
    """Return S, A and Y, computed from Q, K and V; `hidden` describes how later words are masked."""
    scores = product("Q", "K", divide=math.sqrt(d))
    about = f"later words: {hidden}" if hidden else "rows: queries, columns: keys"
    sums = "sum of each row: Σ" if hidden else "each row sums to 1"
    return [
        Shown("S", "S = Q Kᵀ / √d", mixed, "scores", about, scores, breaks=True),
        Shown("A", "A = softmax(S)", mixed, "weights", sums, softmax("S"), has_sums=bool(hidden)),
        Shown("Y", "Y = A V", mixed, "out", "the mixed values", mix("A", "V")),
    ]


def _roles(mixed: Mixed, suffix: str = "") -> list[Shown]:
    """Return Q, K and V as operands that are not drawn."""
    return [Shown(f"{name}{suffix}", name, mixed, name.lower(), drawn=False) for name in "QKV"]


def scale_panel(sentence: Sentence) -> list[str]:
    """Draw the effect of dividing by √d; return what to notice."""
    place = st.container()
    with toolbar():
        widths, ask = {width: f"d = {width}" for width in WIDTHS}, partial(choose, hide_label=True)
        d = ask("dk", widths, "Width of q and k", default=64, key="principle_dk", widget=st.selectbox, width=120)
        is_scaled = ask("scaled", {1: "divide by √d", 0: "no scale"}, "Scale", key="principle_scaled")
    numbers = {"seed": sentence.seed}
    here = {"d": d, **numbers}
    calls = [
        picture_call(viz.product_variances, **here),
        picture_call(viz.softmax_row, **here, scaled=bool(is_scaled)),
        picture_call(viz.softmax_saturation, **here),
    ]
    places = [*st.columns(2, gap="medium"), st.expander("What the scale does to the gradient")]
    for column, call in zip(places, calls, strict=True):
        with column:
            shown(CONTEXT, call, f"scale_{call.name}")
    measured = table(CONTEXT, analysis.product_variances, **numbers)
    saturated = table(CONTEXT, analysis.softmax_saturation, **numbers)
    footer(CONTEXT, "scale", calls, lambda: measured.merge(saturated, on="d"))
    at, by_scale = measured.set_index("d").loc[d], saturated.set_index(["d", "scale"])
    with place:
        variances = f"{at['variance']:.4g}; divided by √d it is {at['scaled']:.3f}."
        headline(f"At d = {d} the variance of q · k over {N_PAIRS:,} pairs is {variances}")
    return _scale_notes(by_scale, d)


def _scale_notes(saturated: pd.DataFrame, d: int) -> list[str]:
    raw, scaled = saturated.loc[(d, RAW)], saturated.loc[(d, SCALED)]
    narrow, wide = saturated.loc[(WIDTHS[0], RAW)], saturated.loc[(WIDTHS[-1], RAW)]
    return [
        r"For independent entries of mean 0 and variance 1: $\mathrm{Var}(q_i k_i) = 1$, so $\mathrm{Var}(q \cdot k) = d$ and "
        r"$\mathrm{Var}(q \cdot k / \sqrt{d}) = 1$. Training may change both.",
        f"The bars show one query with {N_KEYS} keys. Averaged over {N_QUERIES} queries at d = {d}, the largest weight is "
        f"{raw['largest']:.2f} without the scale and {scaled['largest']:.2f} with it. The largest gradient of a softmax is "
        f"p (1 − p). Without the scale it falls from {narrow['gradient']:.3f} at d = {WIDTHS[0]} to {wide['gradient']:.3f} at "
        f"d = {WIDTHS[-1]}: **a saturated softmax hardly learns.**",
    ]


WAYS = {"causal": BEFORE, "late": AFTER, "zero": ZERO, "full": NO_MASK}
"""The ways to treat later words, by their value in the link."""


def mask_panel(sentence: Sentence) -> list[str]:
    """Draw three ways to mask later words, and none; return what to notice."""
    place = st.container()
    with toolbar():
        way = WAYS[choose("causal", WAYS, "Mask", key="principle_causal", hide_label=True)]
    mixed = sentence.attention(mask=way)
    row = followed_row(mixed.names)
    with place:
        tell(_mask_finding(sentence, mixed, row))
    pictures = [*_roles(mixed), *_attention(mixed, sentence.d, _HIDDEN[way])]
    footer(CONTEXT, "mask", show_matrices(pictures, "mask", row, words=sentence.words))
    return [
        "A model that generates word by word must not see later words. With −∞ before the softmax, e^−∞ = 0: a masked word "
        "gets no weight, and each row still sums to 1.",
        "The other two ways are common mistakes, both in the Bug lab: 0 after the softmax leaves rows that sum to less than 1, "
        "and 0 before it masks nothing, because e⁰ = 1.",
    ]


_HIDDEN = {BEFORE: "−∞", ZERO: "0", AFTER: "zeroed later", NO_MASK: "visible"}


def _mask_finding(sentence: Sentence, mixed: Mixed, row: int) -> str:
    names = row_words(mixed.names)
    if mixed.mask == AFTER:
        sums = mixed.weights.sum(dim=-1)
        least = int(sums.argmin())
        return f"The row of “{names[least]}” sums to only {sums[least].item():.2f}." if sums[least] < 0.99 else ""
    if mixed.mask == ZERO:
        leak = mixed.weights.triu(1).sum(dim=-1)
        worst = int(leak.argmax())
        return f"“{names[worst]}” still gives {percent(leak[worst].item(), 0)} of its weight to later words."
    late = sentence.attention().weights[row, row + 1 :].sum().item()
    if late < 0.01:
        return ""
    if mixed.mask == NO_MASK:
        return f"“{names[row]}” gives {percent(late, 0)} of its weight to later words."
    return f"The {percent(late, 0)} that “{names[row]}” gave to later words now go to itself and earlier ones."


_SMALL = "₁₂₃₄"


def heads_panel(sentence: Sentence) -> list[str]:
    """Draw attention split into heads; return what to notice."""
    place, d = st.container(), sentence.d
    with toolbar():
        options = {h: f"{h} head{'s' if h > 1 else ''}" for h in (1, 2, 4) if d % h == 0}
        h = choose("heads", options, "Heads", default=2, key="principle_heads", hide_label=True)
    heads = [sentence.attention(n_heads=h, head=head) for head in range(h)]
    row = followed_row(heads[0].names)
    pictures = [one for index, head in enumerate(heads) for one in _head(head, index, d // h, h == 1)]
    footer(CONTEXT, "heads", show_matrices(pictures, "heads", row, words=sentence.words))
    if h > 1:
        distance = 0.5 * (heads[0].weights - heads[1].weights).abs().sum(dim=-1)
        query = int(distance.argmax())
        if distance[query] >= 0.1:
            name, share = row_words(heads[0].names)[query], percent(distance[query].item(), 0)
            with place:
                tell(f"For “{name}”, heads 1 and 2 put {share} of the weight on different words.")
    n = len(sentence.words)
    costs = attention_costs(n_tokens=n, d_model=d, n_heads=h)
    one, split, wide = (sum(costs["count"][costs["heads"] == name]) for name in dict.fromkeys(costs["heads"]))
    is_counted = costs.drop_duplicates("heads")["measured"].tolist() == [one, split, wide]
    counted = ", as counted by torch" if is_counted else ""
    return [
        f"Each head takes {d // h} of the {d} columns of Q, K and V and mixes the words in its own way; Z₁ … are concatenated "
        "before W_O.",
        f"**h heads of width d/h cost as many multiplications as one head of width d**: {split:,} and {one:,}{counted}. "
        f"Heads as wide as d would cost {wide:,}. Only the number of exponentials grows with h: {n * n:,} for one head, "
        f"{h * n * n:,} for {h}.",
    ]


def _head(head: Mixed, index: int, width: int, has_scores: bool) -> list[Shown]:
    """Return the matrices of one of several heads."""
    s, a, z = (f"{name}{_SMALL[index]}" for name in "SAZ")
    q, k, v = (f"{name}{_SMALL[index]}" for name in "QKV")
    columns = f"columns {index * width + 1}–{(index + 1) * width}" if width > 1 else f"column {index + 1}"
    return [
        *_roles(head, _SMALL[index]),
        Shown(s, s, head, "scores", columns, product(q, k, divide=math.sqrt(width)), drawn=has_scores, breaks=True),
        Shown(a, a, head, "weights", "" if has_scores else columns, softmax(s)),
        Shown(z, z, head, "out", "", mix(a, v)),
    ]


ORDERS = {"reversed": "reversed", "shuffled": "shuffled"}


def position_panel(sentence: Sentence) -> list[str]:
    """Draw the outputs for two orders of the words; return what to notice."""
    place = st.container()
    with toolbar():
        how = choose("order", ORDERS, "Order", key="principle_order", hide_label=True)
        options = {0: "no positions", 1: "positions added"}
        adds = bool(choose("add", options, "Positions", key="principle_add", hide_label=True))
    order = order_of(how, len(sentence.words), sentence.seed)
    error = order_error(sentence, order, add_positions=adds)
    before, after = (one.attention(add_positions=adds) for one in (sentence, sentence.in_order(order)))
    row = followed_row(before.names)
    finding = f"In another order, no word’s output changes by more than {error:.1g}: the sentence is a bag of words."
    if adds:
        finding = f"In another order, outputs change by up to {error:.2g}: the order matters."
    with place:
        tell(finding)
    pictures = []
    for mixed, mark in ((before, ""), (after, "′")):
        x, a, v = (f"{name}{mark}" for name in "XAV")
        scores = product(f"Q{mark}", f"K{mark}", divide=math.sqrt(sentence.d))
        title, about = (f"X, {ORDERS[how]}", "the same words") if mark else ("X", "as typed")
        pictures += [
            *_roles(mixed, mark),
            Shown(f"S{mark}", "S", mixed, "scores", made=scores, drawn=False),
            Shown(a, a, mixed, "weights", drawn=False),
            Shown(x, title, mixed, "x", about, breaks=True, editable=not mark, rows_editable=not mark),
            Shown(f"Y{mark}", f"Y{mark}", mixed, "out", "output", mix(a, v), rows_editable=not mark),
        ]
    footer(CONTEXT, "position", show_matrices(pictures, "position", row, words=sentence.words))
    if not adds:
        return [
            "Without positions each word gets the same vector, in another row: $f(PX) = P f(X)$ for every permutation $P$ and "
            "any number of heads, also after a feed-forward layer. “The dog saw the cat” equals “the cat saw the dog”."
        ]
    return ["The positions are the sinusoids of Vaswani et al. 2017 (§3.5), added to X before Q, K and V."]


def order_of(how: str, n: int, seed: int) -> list[int]:
    """Return, for each row of the new order, the position of its word in the sentence."""
    if how == "shuffled":
        return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    return list(range(n))[::-1]


def parts_panel() -> tuple[list[str], dict[str, str]]:
    """Draw the registered components from which a model can be built; return what to notice, and nothing for the link."""
    found = parts()
    kinds = {name: name for name in dict.fromkeys(found["part"])}
    headline(f"Models are built from {len(found)} interchangeable components.")
    kind = choose("part", kinds, "Part", key="principle_part", hide_label=True)
    rows = found[found["part"] == kind].drop(columns="part").map(escape_markdown)
    st.table(rows.set_index("title").rename_axis(kind).rename(columns=str.capitalize))
    return ["Each is one registered file of the library; a new one appears here, on Train and in the diagram."], {}


MODEL, USUAL_INPUT = "reverse-decoder", "3 7 12"
MAX_NUMBERS = 4
"""Maximum number of input numbers; with the answer they give nine rows."""
COLUMNS_OF_Z = 4


def model_panel() -> tuple[list[str], dict[str, str]]:
    """Draw a head of a trained model; return what to notice, and the input for the link."""
    if MODEL not in models.shipped():
        st.info(f"This step needs the shipped model {MODEL}; `make checkpoints` trains it.")
        return [], {}
    checkpoint = models.checkpoint(MODEL)
    config, place = checkpoint.config, st.container()
    with toolbar():
        source, problem = ask_source(checkpoint)
        every = [(1 + layer, 1 + head) for layer in range(config.n_layers) for head in range(config.n_heads)]
        heads = {f"{layer}.{head}": f"layer {layer} · head {head}" for layer, head in every}
        at = choose("head", heads, "Head", key="principle_head", widget=st.selectbox, width=165, hide_label=True)
        screens.link("attention", "Open on Attention", "grid_view", model=MODEL, input=written(source), head=at)
    run = cached_runs.run(MODEL, source)
    layer, head = (int(number) - 1 for number in at.split("."))
    mixed = head_of(run, layer=layer, head=head)
    row = followed_row(mixed.names, len(source))
    if problem:
        st.error(escape_markdown(problem), icon=":material/edit:")
    with place:
        tell(_finding(mixed, row))
    width, d = mixed.v.shape[1], config.d_head
    drawn = min(COLUMNS_OF_Z, width)
    pictures = [
        *_roles(mixed),
        Shown("S", f"S = Q Kᵀ / √{d}", mixed, "scores", "later tokens −∞", product("Q", "K", divide=math.sqrt(d))),
        Shown("A", "A = softmax(S)", mixed, "weights", "each row sums to 1", softmax("S")),
        Shown("Z", "Z = A V", mixed, "out", f"{drawn} of {width} columns", mix("A", "V"), drawn),
    ]
    footer(CONTEXT, "model", show_matrices(pictures, "model", row))
    return [head_note(run, mixed, layer, head, row)], {"input": written(source)}


def _finding(mixed: Mixed, row: int) -> str:
    """Describe where a row attends most; "" where attention is almost uniform."""
    best = int(mixed.weights[row].argmax())
    weight = mixed.weights[row, best].item()
    if row == 0 or weight < 1 / (row + 1) + CLEAR:
        return ""
    names = [escape_markdown(name) for name in mixed.names]
    return f"At “{names[row]}” this trained head puts {percent(weight, 0)} of its attention on “{names[best]}”."


def ask_source(checkpoint: Checkpoint) -> tuple[tuple[int, ...], str]:
    """Return the typed numbers, or the last valid ones with an error message."""
    if (wanted := take_parameter("input")) is not None:
        st.session_state["principle_input"] = wanted[:60]
    st.session_state.setdefault("principle_input", USUAL_INPUT)
    keep_widget_value("principle_input")
    label = f"Up to {MAX_NUMBERS} numbers"
    text = st.text_input(label, key="principle_input", persist_state="session", width=160, label_visibility="collapsed")
    task = checkpoint.task
    assert task is not None
    try:
        source = task.vocabulary.read(validate_text(text, 60))
        if len(source) > MAX_NUMBERS:
            raise InputError(f"This step reads at most {MAX_NUMBERS} numbers, got {len(source)}.")
        task.example(source, max_len=checkpoint.config.max_len)
    except InputError as error:
        return st.session_state.get("principle_input_last", (3, 7, 12)), str(error)
    st.session_state["principle_input_last"] = tuple(source)
    return tuple(source), ""


def written(source: tuple[int, ...]) -> str:
    return " ".join(str(number) for number in source)


def head_note(run: Reading, mixed: Mixed, layer: int, head: int, row: int) -> str:
    """Describe what to notice in one row of a head."""
    difference = (run[f"{run.attention[layer].path}.pattern"][0, head] - mixed.weights).abs().max().item()
    same = "bit-identical" if difference == 0 else f"equal to within {difference:.1g}"
    note = (
        "q, k and v come from a run of a trained model; the same steps are then applied to them. The model’s own pattern and "
        f"the one drawn here are {same}."
    )
    labelled = (run.example.labels[0] >= 0).nonzero().flatten().tolist()
    if row not in labelled:
        return note
    at = labelled.index(row)
    label, tokens = run.adapter.token_labels, (run.predicted[at], run.answer[at])
    predicted, right = (escape_markdown(label[token]) for token in tokens)
    verdict = "this is correct." if run.right[at] else f"“{right}” would be correct."
    return f"{note} After all layers the model predicts “{predicted}” here ({percent(run.probability[at])}); {verdict}"
