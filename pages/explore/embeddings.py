"""Embeddings: what vector does each token become? The vectors themselves, their angles, and the whole vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import streamlit as st
import torch
from torch import Tensor

from pages.shared import resources
from pages.shared.notebook import footer
from pages.shared.session import View, open_page
from xformer.analysis import embeddings as analysis
from xformer.viz import embeddings as viz
from xformer.viz import theme

SHOWN = {"tokens": "token vectors", "positions": "positions", "sum": "sum: enters layer 1"}
SIDES = {"encoder": "source", "decoder": "target"}
_NOUNS = {"tokens": "token vectors are", "positions": "positions are", "sum": "sum is"}
AXES = {"2": "2-D", "3": "3-D"}


def page() -> None:
    view = open_page("Embeddings", "What vector does each token become?")
    original, changed = view.original(), view.changed()
    is_pair = view.checkpoint.config.architecture == "encoder-decoder"
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        side = _choose("side", SIDES, "encoder", "Which side", "segmented") if is_pair else None
        parts = analysis.input_vectors(original.trace, side)
        part = _choose("part", {name: SHOWN[name] for name in parts}, "tokens", "Show", "segmented")
    st.caption(_where_from(view, side, parts))

    limit = theme.signed_limit(torch.cat(list(parts.values())).numpy())  # one scale for all parts and both runs
    _vectors(view, original, part, side, limit, "" if changed is None else "the model’s own run")
    if changed is not None:
        if analysis.input_vectors(changed.trace, side)[part].equal(parts[part]):
            st.info(
                f"With {view.what_changed()} these vectors stay as they are: the {_NOUNS[part]} the same in both runs.",
                icon=":material/equal:",
            )
        else:
            _vectors(view, changed, part, side, limit, view.what_changed(), is_changed=True)

    vectors = _vocabulary(view.model, side or view.checkpoint.config.architecture)
    tokens = _tokens(changed or original, side)
    left, right = st.columns([3, 2], gap="large")
    with right:
        near = _neighbours(view, vectors, tokens, side)
    with left:
        axes = _projection(view, vectors, tokens, side, near)
    _what_to_notice(view, original, parts, vectors, side)
    view.share(part=part, axes=axes, near=near, **({"side": side} if side else {}))


def _vectors(
    view: View,
    run: resources.Run,
    part: str,
    side: str | None,
    limit: float,
    name: str,
    *,
    is_changed: bool = False,
) -> None:
    """One run: its vectors and their cosines, side by side."""
    parts = analysis.input_vectors(run.trace, side)
    labels = _labels(view, run, side)
    vectors = analysis.vector_table(parts[part], labels)
    angles = analysis.cosine_table(parts[part], labels)
    suffix = "-changed" if is_changed else ""
    lines = [
        "from xformer.analysis import embeddings as analysis",
        "from xformer.viz import embeddings as viz",
        f"labels = {labels}",
        f'vectors = analysis.input_vectors(trace, {side!r})["{part}"]',
    ]
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.subheader(f"{SHOWN[part].partition(':')[0].capitalize()}{f' · {name}' if name else ''}", anchor=False)
        chart = viz.vector_heatmap(vectors, dark=_dark(), limit=limit)
        st.altair_chart(chart, width="stretch", key=f"vectors{suffix}")
        n, d = parts[part].shape
        drawn = viz.MOST_CELLS // n
        st.caption(
            f"{n} tokens × {d} numbers{f', the first {drawn} drawn' if drawn < d else ''}: a row is what one token is to "
            "the model. Equal tokens have equal rows until positions are added. One colour scale for every part, "
            f"±{limit:.3g}."
        )
        footer(
            view,
            [*lines, "viz.vector_heatmap(analysis.vector_table(vectors, labels), dark=False)"],
            vectors,
            f"vectors{suffix}",
            changed=is_changed,
        )
    with right:
        st.subheader("How alike two of them are", anchor=False)
        st.altair_chart(viz.cosine_heatmap(angles, dark=_dark()), width="stretch", key=f"cosines{suffix}")
        st.caption(_about_angles(part))
        footer(
            view,
            [*lines, "viz.cosine_heatmap(analysis.cosine_table(vectors, labels), dark=False)"],
            angles,
            f"cosines{suffix}",
            changed=is_changed,
        )


def _projection(view: View, vectors: Tensor, tokens: list[int], side: str | None, near: str) -> str:
    st.subheader("The whole vocabulary", anchor=False)
    axes = _choose("axes", AXES if vectors.shape[1] > 2 else {"2": "2-D"}, "2", "Axes", "segmented")
    found = _pca(view.model, side or view.checkpoint.config.architecture)
    explained = found.explained.tolist()
    label = view.task.vocabulary.labels
    table = analysis.projection_table(found, label, tokens)
    if axes == "3":
        st.plotly_chart(
            viz.projection_3d(table, explained, dark=_dark()),
            width="stretch",
            theme="streamlit",
            key="projection_3d",
            config={"displaylogo": False},
        )
    else:
        chart = viz.projection(table, explained, dark=_dark(), chosen=label.index(near))
        st.altair_chart(chart, width="stretch", key="projection", on_select=_follow_click, selection_mode="point")
    st.caption(
        f"{len(vectors)} vectors of {vectors.shape[1]} numbers, seen along the {axes} directions in which they differ most: "
        f"{sum(explained[: int(axes)]):.1%} of their variance, so {1 - sum(explained[: int(axes)]):.1%} is not in the "
        "picture. The input’s tokens are large; hover for their positions"
        + ("." if axes == "3" else ", click a token for its neighbours (ringed).")
    )
    draw = "projection_3d" if axes == "3" else "projection"
    footer(
        view,
        [
            "from xformer.analysis import embeddings as analysis",
            "from xformer.viz import embeddings as viz",
            f"found = analysis.pca(analysis.vocabulary_vectors(checkpoint.model, {side or 'encoder'!r}), 3)",
            f"table = analysis.projection_table(found, checkpoint.task.vocabulary.labels, {tokens})",
            f"viz.{draw}(table, found.explained.tolist(), dark=False)",
        ],
        table,
        "projection",
    )
    return axes


def _neighbours(view: View, vectors: Tensor, tokens: list[int], side: str | None) -> str:
    st.subheader("Nearest neighbours", anchor=False)
    label = view.task.vocabulary.labels
    names = {
        label[token]: f"{label[token]}{' · in the input' if token in tokens else ''}" for token in range(len(label))
    }
    near = _choose("near", names, label[tokens[0]], "of token", "select")
    token = label.index(near)
    table = analysis.neighbours(vectors, label, token)
    st.dataframe(
        table.drop(columns="id"),
        hide_index=True,
        key="neighbours",
        column_config={
            "cosine": st.column_config.NumberColumn(format="%.6f", help="1: the same direction; 0: at right angles."),
            "distance": st.column_config.NumberColumn(format="%.6f", help="Length of the difference."),
        },
    )
    others = analysis.cosines(vectors)[token]
    usual = (others.abs().sum() - others[token].abs()) / max(1, len(others) - 1)
    st.caption(
        f"By cosine, over the whole vocabulary. |cosine| of {near} with the others is {usual:.3f} on average; directions "
        f"drawn at random in {vectors.shape[1]} dimensions have {analysis.random_cosine(vectors.shape[1]):.3f}."
    )
    footer(
        view,
        [
            "from xformer.analysis import embeddings as analysis",
            f"vectors = analysis.vocabulary_vectors(checkpoint.model, {side or 'encoder'!r})",
            f"analysis.neighbours(vectors, checkpoint.task.vocabulary.labels, {token})",
        ],
        table,
        "neighbours",
    )
    return near


def _follow_click() -> None:
    """The token that was clicked in the projection becomes the one whose neighbours are shown."""
    for point in st.session_state["projection"]["selection"].get("point", []):
        st.session_state["near"] = point["token"]


def _what_to_notice(
    view: View, run: resources.Run, parts: dict[str, Tensor], vectors: Tensor, side: str | None
) -> None:
    symbols = view.task.vocabulary.symbols
    share, chance = analysis.next_door(vectors, 1, symbols)
    usual, errors = analysis.mean_alikeness(vectors[1 : symbols + 1])
    random = analysis.random_cosine(vectors.shape[1])
    with st.container(border=True):
        st.markdown("**What to notice**")
        st.markdown(
            f"For {share:.0%} of the {symbols} numbers the nearest other number is one more or one less "
            f"(chance: {chance:.0%}). "
            + (
                "The model was never told that 7 comes before 8: this task made it **put the numbers in order**."
                if share * symbols > chance * symbols + 3 * math.sqrt(symbols * chance * (1 - chance))
                else "So nearness says nothing about their **order** here: each number just has a direction of its own."
            )
        )
        st.markdown(
            f"Two different numbers have |cosine| {usual:.3f} on average; random directions in {vectors.shape[1]} "
            f"dimensions have {random:.3f}. "
            + (
                "That is no more and no less than chance makes it."
                if abs(errors) < 3
                else f"Training has {'drawn some of them together' if errors > 0 else 'pushed them apart'}: "
                f"{abs(errors):.1f} standard errors {'above' if errors > 0 else 'below'} chance."
            )
        )
        if "positions" in parts:
            token, added = (parts[name].double().norm(dim=-1).mean().item() for name in ("tokens", "positions"))
            st.markdown(
                f"A token’s vector has a length of {token:.3f} on average, a position’s {added:.3f}: "
                f"{added / token:.1f} times as much. Switch to **positions**, then to **sum**, and see which pattern wins."
            )
        if note := _about_repeats(view, run, parts, side):
            st.markdown(note)


def _about_repeats(view: View, run: resources.Run, parts: dict[str, Tensor], side: str | None) -> str:
    """What adding positions does to the first token that comes twice."""
    tokens = _tokens(run, side)
    for first, token in enumerate(tokens):
        if token in tokens[first + 1 :] and "sum" in parts:
            second = tokens.index(token, first + 1)
            before, after = (analysis.cosines(parts[name])[first, second].item() for name in ("tokens", "sum"))
            return (
                f"Positions {first} and {second} hold the same token. Their vectors are one and the same (cosine "
                f"{before:.3f}); with positions added the cosine is {after:.3f}: now the model can **tell them apart**."
            )
    return "" if "sum" not in parts else "Type a number twice: its two rows are equal until positions are added."


def _where_from(view: View, side: str | None, parts: dict[str, Tensor]) -> str:
    config = view.checkpoint.config
    said = []
    if side:
        said.append(
            "Source and target **share** one embedding matrix."
            if config.tied_source
            else "Source and target have **their own** embedding matrices."
        )
    said.append(
        "The output reads its logits with the same matrix."
        if config.tied_output
        else "The output has a matrix of its own."
    )
    if "positions" not in parts:
        kind = {"rotary": "rotary positions turn queries and keys instead", "alibi": "ALiBi biases the scores instead"}
        why = kind.get(config.positions, "nothing tells it where a token is")
        said.append(f"This model adds no positions: {why}, so what enters layer 1 is the token vectors alone.")
    scale = f" × √{config.d_model}" if config.scale_embeddings else ""
    return f"A token looks up its row of a learned matrix [{config.vocab_size} × {config.d_model}]{scale}. {' '.join(said)}"


def _about_angles(part: str) -> str:
    return {
        "tokens": "Cosines of the token vectors: 1 on the diagonal and wherever a token comes twice.",
        "positions": "Cosines of the positions: neighbours are alike, whatever stands there.",
        "sum": "Cosines of what enters layer 1: token and place together.",
    }[part]


def _tokens(run: resources.Run, side: str | None) -> list[int]:
    stream = run.example.target if side == "decoder" else run.example.stream
    assert stream is not None
    return stream[0].tolist()


def _labels(view: View, run: resources.Run, side: str | None) -> list[str]:
    return [view.task.vocabulary.labels[token] for token in _tokens(run, side)]


def _dark() -> bool:
    return st.context.theme.type == "dark"


@st.cache_resource(max_entries=16, show_spinner=False)
def _vocabulary(name: str, stack: str) -> Tensor:
    return analysis.vocabulary_vectors(resources.checkpoint(name).model, stack)


@st.cache_resource(max_entries=16, show_spinner=False)
def _pca(name: str, stack: str) -> analysis.Pca:
    return analysis.pca(_vocabulary(name, stack), 3)


def _choose(key: str, options: dict[str, str], default: str, label: str, kind: str) -> str:
    """One of `options` (value: what a person reads); a link chooses it on the first run, if it asks for one there is."""
    if st.session_state.get(key) not in options:
        asked = None if key in st.session_state else st.query_params.get(key)
        if asked is not None and asked not in options:
            st.warning(
                f"The link asks for a {key} that is not here, so the usual one is shown.", icon=":material/link_off:"
            )
        st.session_state[key] = asked if asked in options else default
    widget: Callable[..., Any] = st.selectbox if kind == "select" else st.segmented_control
    return widget(
        label,
        list(options),
        format_func=options.__getitem__,
        key=key,
        persist_state="session",
        **({} if kind == "select" else {"required": True}),
    )


page()
