"""The vectors that a run begins with: each token's numbers as a row, beside how alike two of them are."""

from __future__ import annotations

import streamlit as st
import torch

from pages.shared.layout import is_dark
from pages.shared.notebook import footer, heading
from pages.shared.resources import Run
from pages.shared.view import View
from xformer.analysis import embeddings as analysis
from xformer.viz import embeddings as viz
from xformer.viz import theme

SHOWN = {"tokens": "token vectors", "positions": "positions", "sum": "sum: enters layer 1"}
_NOUNS = {"tokens": "token vectors are", "positions": "positions are", "sum": "sum is"}
_ANGLES = {
    "tokens": "Cosines of the token vectors: 1 on the diagonal and wherever a token comes twice.",
    "positions": "Cosines of the positions: neighbours are alike, whatever stands there.",
    "sum": "Cosines of what enters layer 1: token and place together.",
}


def vectors_panel(view: View, part: str, side: str | None) -> None:
    """Draw one part (of `SHOWN`) of what enters a stack, and where a change moved it, that too."""
    original, changed = view.original(), view.changed()
    parts = analysis.input_vectors(original.trace, side)
    limit = theme.signed_limit(torch.cat(list(parts.values())).numpy())  # one scale for all parts and both runs
    _vectors(view, original, part, side, limit, "" if changed is None else "the model’s own run")
    if changed is None:
        return
    if analysis.input_vectors(changed.trace, side)[part].equal(parts[part]):
        st.info(
            f"With {view.what_changed()} these vectors stay as they are: the {_NOUNS[part]} the same in both runs.",
            icon=":material/equal:",
        )
    else:
        _vectors(view, changed, part, side, limit, view.what_changed(), is_changed=True)


def _vectors(
    view: View, run: Run, part: str, side: str | None, limit: float, name: str, *, is_changed: bool = False
) -> None:
    """One run: its vectors and their cosines, side by side."""
    shown = analysis.input_vectors(run.trace, side)[part]  # [pos, d_model]
    labels = view.reads(run, side)
    vectors = analysis.vector_table(shown, labels)
    angles = analysis.cosine_table(shown, labels)
    suffix = "-changed" if is_changed else ""
    lines = [
        "from xformer.analysis import embeddings as analysis",
        "from xformer.viz import embeddings as viz",
        f"labels = {labels}",
        f'vectors = analysis.input_vectors(trace, {side!r})["{part}"]',
    ]
    left, right = st.columns([3, 2], gap="large")
    with left:
        heading(f"{SHOWN[part].partition(':')[0].capitalize()}{f' · {name}' if name else ''}")
        chart = viz.vector_heatmap(vectors, dark=is_dark(), limit=limit)
        st.altair_chart(chart, width="stretch", key=f"vectors{suffix}")
        n, d = shown.shape
        drawn = viz.MOST_CELLS // n
        st.caption(
            f"{n} tokens × {d} numbers{f', the first {drawn} drawn' if drawn < d else ''}: a row is what one token is to "
            "the model. Equal tokens have equal rows until positions are added. One colour scale for every part, "
            f"±{limit:.3g}."
        )
        draw = "viz.vector_heatmap(analysis.vector_table(vectors, labels), dark=False)"
        footer(view, [*lines, draw], vectors, f"vectors{suffix}", changed=is_changed)
    with right:
        heading("How alike two of them are")
        st.altair_chart(viz.cosine_heatmap(angles, dark=is_dark()), width="stretch", key=f"cosines{suffix}")
        st.caption(_ANGLES[part])
        draw = "viz.cosine_heatmap(analysis.cosine_table(vectors, labels), dark=False)"
        footer(view, [*lines, draw], angles, f"cosines{suffix}", changed=is_changed)
