"""The vectors that a run begins with: each token's numbers as a row, and how alike two of them are."""

from __future__ import annotations

import streamlit as st
import torch

from pages.shared.ask import choose
from pages.shared.layout import is_dark
from pages.shared.notebook import footer, heading
from pages.shared.row_window import ask_window, every_nth, window_words
from pages.shared.view import View
from xformer.analysis import embeddings as analysis
from xformer.reading import Reading
from xformer.viz import embeddings as viz
from xformer.viz import theme

SHOWN = {"tokens": "token vectors", "positions": "positions", "sum": "sum: enters layer 1"}
ROWS = 32
"""Of a longer input, so many positions are drawn at a time: more rows could not be read."""
_SAME = {"tokens": "token vectors are", "positions": "positions are", "sum": "sum is"}
_ROWS = {
    "tokens": "A row is what one {token} is to the model; equal {token}s have equal rows.",
    "positions": "A row is what is added to the {token} that stands there.",
    "sum": "A row is what enters layer 1: the {token}’s own vector plus its position’s.",
}


def vectors_panel(view: View, part: str, side: str | None) -> None:
    """Draw one part (of `SHOWN`) of what enters a stack, and beside it what a change makes of it."""
    original, changed = view.original(), view.changed()
    before = analysis.input_vectors(original.trace, side)
    after = before if changed is None else analysis.input_vectors(changed.trace, side)
    limit = theme.signed_limit(torch.cat([*before.values(), *after.values()]).numpy())  # one scale for all of them
    n = len(before[part])
    shown = ask_window(n, ROWS, "vectors_from")
    runs = [("", original)]
    if changed is not None and after[part].equal(before[part]):
        st.info(
            f"With {view.what_changed()} these vectors stay as they are: the {_SAME[part]} the same in both runs.",
            icon=":material/equal:",
        )
    elif changed is not None:
        runs = [("the model’s own run", original), (view.what_changed(), changed)]
    if len(runs) == 1:
        left, right = st.columns([3, 2], gap="large")
        with left:
            _rows(view, original, part, side, shown, limit)
        with right:
            _angles(view, original, part, side, shown)
    else:
        for draw in (_rows, _angles):
            for column, (name, run) in zip(st.columns(2, gap="large"), runs, strict=True):
                with column:
                    more = {"limit": limit} if draw is _rows else {}
                    draw(view, run, part, side, shown, name=name, is_changed=run is changed, **more)


def _lines(labels: list[str], part: str, side: str | None, shown: range) -> list[str]:
    return [
        "from xformer.analysis import embeddings as analysis",
        "from xformer.viz import embeddings as viz",
        f"labels = {labels}",
        f'vectors = analysis.input_vectors(trace, {side!r})["{part}"][{shown.start}:{shown.stop}]',
    ]


def _rows(
    view: View,
    run: Reading,
    part: str,
    side: str | None,
    shown: range,
    limit: float,
    name: str = "",
    is_changed: bool = False,
) -> None:
    """The vectors of one run as a heatmap."""
    every_vector = analysis.input_vectors(run.trace, side)[part]  # [pos, d_model]
    (n, d), labels = every_vector.shape, view.reads(run, side)[shown.start : shown.stop]
    table = analysis.vector_table(every_vector[shown.start : shown.stop], labels, shown.start)
    suffix, dark = "-changed" if is_changed else "", is_dark()
    heading(f"{SHOWN[part].partition(':')[0].capitalize()}{f' · {name}' if name else ''}")
    st.altair_chart(viz.vector_heatmap(table, dark=dark, limit=limit), width="stretch", key=f"vectors{suffix}")
    drawn = every_nth(viz.every(len(shown), d))
    token = "patch" if view.task.rule.is_image else "token"
    words = _ROWS[part].format(token=token).replace("patchs", "patches")
    st.caption(f"{window_words(shown, n)} × {d} numbers{drawn}. {words} One colour scale for every part, ±{limit:.3g}.")
    draw = f"viz.vector_heatmap(analysis.vector_table(vectors, labels, {shown.start}), dark={dark}, limit={limit!r})"
    footer(view, [*_lines(labels, part, side, shown), draw], table, f"vectors{suffix}", changed=is_changed)


def _angles(
    view: View, run: Reading, part: str, side: str | None, shown: range, name: str = "", is_changed: bool = False
) -> None:
    """The cosine of every two of the vectors on show."""
    every_vector = analysis.input_vectors(run.trace, side)[part]
    labels = view.reads(run, side)[shown.start : shown.stop]
    table = analysis.cosine_table(every_vector[shown.start : shown.stop], labels, shown.start)
    suffix, dark = "-changed" if is_changed else "", is_dark()
    heading(f"How alike they are{f' · {name}' if name else ''}")
    st.altair_chart(viz.cosine_heatmap(table, dark=dark), width="stretch", key=f"cosines{suffix}")
    st.caption(_about_angles(every_vector))
    draw = f"viz.cosine_heatmap(analysis.cosine_table(vectors, labels, {shown.start}), dark={dark})"
    footer(view, [*_lines(labels, part, side, shown), draw], table, f"cosines{suffix}", changed=is_changed)


def _about_angles(vectors: torch.Tensor) -> str:
    """The cosine of neighbours beside that of all pairs, measured; where there are no vectors to speak of, that."""
    if not vectors.any():
        return "All these vectors are zero here, so they point nowhere: each cosine is given as 0."
    if len(vectors) < 3:
        return "Cosines: 1 is the same direction, 0 a right angle, −1 the opposite direction."
    beside, all_pairs = analysis.mean_cosines(vectors)
    return (
        f"Cosines: 1 is the same direction, 0 a right angle. Of two positions side by side {beside:.3f} on average, of any "
        f"two {all_pairs:.3f}."
    )


def ask_part(parts: list[str]) -> str:
    """Which of a run's vectors to look at."""
    return choose("part", {name: SHOWN[name] for name in parts}, "tokens", "Vectors", label_visibility="collapsed")
