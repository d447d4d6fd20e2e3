"""The vectors that a run begins with: each token's numbers as a row, and how alike two of them are."""

from __future__ import annotations

from typing import Any

import streamlit as st
import torch
from jaxtyping import Float
from torch import Tensor

from pages.shared.picture import heading, picture
from pages.shared.row_window import ask_window, every_nth, window_words
from pages.shared.view import View
from pages.shared.widgets import choose
from xformer import viz
from xformer.analysis.embeddings import input_vectors, mean_cosines
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.embeddings import every

SHOWN = {"tokens": "token vectors", "positions": "positions", "sum": "sum: enters layer 1"}
ROWS_AT_A_TIME = 32
"""Of a longer input, so many positions are drawn at a time: more rows could not be read."""
_SAME = {"tokens": "token vectors are", "positions": "positions are", "sum": "sum is"}
_ROWS = {
    "tokens": "A row is what one {one} is to the model; equal {many} have equal rows.",
    "positions": "A row is what is added to the {one} that stands there.",
    "sum": "A row is what enters layer 1: the {one}’s own vector plus its position’s.",
}
_MIXED = "A row is what enters layer 1, which the model makes of the {one}’s own vector and its position’s."


def ask_part(parts: list[str]) -> str:
    """Which of a run's vectors to look at."""
    return choose("part", {name: SHOWN[name] for name in parts}, "tokens", "Vectors", label_visibility="collapsed")


def vectors_panel(view: View, part: str, stack: str | None) -> None:
    """Draw one part (of `SHOWN`) of what enters a stack, and beside it what a change makes of it."""
    original, changed = view.original(), view.changed()
    before = input_vectors(original, stack)
    after = before if changed is None else input_vectors(changed, stack)
    every_one = [vectors.flatten() for vectors in (*before.values(), *after.values())]
    limit = theme.signed_limit(torch.cat(every_one).numpy())  # one scale for all of them
    n = len(before[part])
    shown = ask_window(n, ROWS_AT_A_TIME, "vectors_from")
    look = {"part": part, "stack": stack, "positions": None if len(shown) == n else shown}
    if changed is None or after[part].equal(before[part]):
        if changed is not None:
            st.info(
                f"With {view.what_changed()} these vectors stay as they are: the {_SAME[part]} the same in both runs.",
                icon=":material/equal:",
            )
        left, right = st.columns([3, 2], gap="large")
        with left:
            _numbers(view, original, "", look, shown, limit)
        with right:
            _angles(view, original, "", look)
        return
    runs = [(" · the model’s own run", original), (f" · {view.what_changed()}", changed)]
    for column, (name, run) in zip(st.columns(2, gap="large"), runs, strict=True):
        with column:
            _numbers(view, run, name, look, shown, limit)
    for column, (name, run) in zip(st.columns(2, gap="large"), runs, strict=True):
        with column:
            _angles(view, run, name, look)


def _numbers(view: View, run: Reading, name: str, look: dict[str, Any], shown: range, limit: float) -> None:
    """The vectors of one run as a heatmap."""
    part = look["part"]
    n, d = input_vectors(run, look["stack"])[part].shape
    heading(f"{SHOWN[part].partition(':')[0].capitalize()}{name}")
    picture(view, _file("vectors", view, run), viz.vectors, run, limit=limit, **look)
    one, many = ("patch", "patches") if view.shape.image else ("token", "tokens")
    parts = input_vectors(run, look["stack"])
    row = _MIXED if part == "sum" and view.task is None and not _is_the_sum(parts) else _ROWS[part]
    st.caption(
        f"{window_words(shown, n)} × {d} numbers{every_nth(every(len(shown), d))}. {row.format(one=one, many=many)} "
        f"One colour scale for every part, ±{limit:.3g}."
    )


def _is_the_sum(parts: dict[str, Float[Tensor, "pos d_model"]]) -> bool:
    """Whether nothing but the two is added up: some models normalise that, or map it to another width."""
    tokens, positions, whole = (parts[name] for name in ("tokens", "positions", "sum"))
    return tokens.shape == whole.shape and bool(torch.allclose(tokens + positions, whole, atol=1e-5))


def _angles(view: View, run: Reading, name: str, look: dict[str, Any]) -> None:
    """The cosine of every two of the vectors on show."""
    heading(f"How alike they are{name}")
    picture(view, _file("cosines", view, run), viz.cosines, run, **look)
    st.caption(_about_angles(input_vectors(run, look["stack"])[look["part"]]))


def _file(name: str, view: View, run: Reading) -> str:
    return name if run.recipe == view.original().recipe else f"{name}-changed"


def _about_angles(vectors: Float[Tensor, "pos d_model"]) -> str:
    """The cosine of neighbours beside that of all pairs, measured; where there are no vectors to speak of, that."""
    if not vectors.any():
        return "All these vectors are zero here, so they point nowhere: each cosine is given as 0."
    if len(vectors) < 3:
        return "Cosines: 1 is the same direction, 0 a right angle, −1 the opposite direction."
    beside, all_pairs = mean_cosines(vectors)
    return (
        f"Cosines: 1 is the same direction, 0 a right angle. Of two positions side by side {beside:.3f} on average, of any "
        f"two {all_pairs:.3f}."
    )
