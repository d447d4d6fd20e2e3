"""What a model says that does not go on with a text: what it puts in the gaps, or writes to a source, with the alternatives."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.components.prediction_strip import prediction_strip
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import caption
from pages.shared.view import View

MOST_GAPS, MOST_TOKENS = 4, 8


def filled_panel(view: View) -> None:
    """The lanes, and for each of the first gaps the likeliest tokens with their probabilities."""
    original, changed = view.original(), view.changed()
    run = changed or original
    prediction_strip(view.kind.rows(original, changed, f"says, {view.what_changed()}"), key="prediction")
    if not run.asked:
        return
    if view.is_pair:
        caption("The model ran just now and wrote this, its likeliest token each time; a bar shows how sure it was.")
        return
    if run.answer == tuple(run.ids()[position] for position in run.asked):
        caption(
            "Nothing is missing from this text: at each place stands the token that the model finds likeliest there."
        )
        return
    shown = run.asked[:MOST_GAPS]
    for column, position in zip(st.columns(max(2, len(shown))), shown, strict=False):
        p = run.logits[0, position].softmax(dim=-1).topk(min(MOST_TOKENS, view.shape.vocab_size))
        names = [view.subject.labels[token] for token in p.indices.tolist()]
        with column:
            st.markdown(f"**Position {position}**, which reads {escape_markdown(run.tokens[position])}")
            st.dataframe(
                pd.DataFrame({"token": names, "probability": p.values.tolist()}),
                hide_index=True,
                column_config={
                    "probability": st.column_config.ProgressColumn(min_value=0.0, max_value=1.0, format="percent")
                },
                key=f"gap_{position}",
            )
    left = len(run.asked) - len(shown)
    more = f" {left} more gaps are not shown." if left else ""
    caption(f"The model ran just now and says what is missing; nobody knows what is right.{more}")
