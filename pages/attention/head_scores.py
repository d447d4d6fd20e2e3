"""“Scores of all heads”: how much of what each head looks at, as a table that leads to the head of a row."""

from __future__ import annotations

import streamlit as st

from pages.components.attention_view import Selection, choose_attention
from pages.shared.ask import choose
from pages.shared.notebook import footer, heads_from_1
from pages.shared.view import View
from xformer.analysis.heads import head_scores
from xformer.reading import Reading
from xformer.viz.attention import layer_title

SCOPES = {"answer": "from the answer back to the source", "source": "within the source"}
NEEDED = "the task’s"
"""The column of the number that the notes of this screen speak of."""
_HELP = {
    "diagonal": "Weight on the token itself: key = query.",
    "anti-diagonal": "Weight on the mirrored token: key = length − 1 − query.",
    "previous": "Weight on the token before, over the queries that have one.",
    "next": "Weight on the token after, over the queries that have one.",
    "first": "Weight on the first token.",
    "induction": "Weight on what followed an earlier occurrence of the same token, over the queries whose token came before.",
}
_ENTROPY = "How spread out a row is: −Σ p log₂ p. 0 bits is a single key; log₂(keys) is all alike."


def scores_panel(view: View, run: Reading, attention: str) -> None:
    """The scores of every head of `run`; choosing a row chooses that head in the attention view of that key."""
    n = len(run.example.source)
    positions, keys = range(n), None
    if patches := view.checkpoint.config.n_patches:
        positions = range(1, 1 + patches)  # the class token is left out
    if view.task.rule.is_open_ended:  # all of it is read, and all of it is asked for
        positions = range(min(run.example.stream.shape[1], run.example.labels.shape[1]))
    elif view.task.config.architecture == "decoder" and choose("look", SCOPES, "answer", "Look") == "answer":
        positions, keys = (
            view.task.answer_queries(n),
            range(n),
        )  # the output that says the answer's i-th token is at n + i
    rule = view.task.rule
    what = "patches" if rule.is_image else rule.unit if rule.is_open_ended else "tokens"
    st.caption(
        f"Shares of a head's attention, averaged over the {what} of this input; special tokens are left out"
        f"{f', with {view.what_changed()}' if view.is_changed else ''}. Choose a row to enlarge that head; "
        "click a column to sort."
    )
    table = head_scores(run.trace, positions, keys)
    if bool(table["induction"].isna().all()):
        table = table.drop(columns="induction")
    asked = view.task.head_scores(run.trace, run.example)
    needs = [
        asked[path][head] if path in asked else None for path, head in zip(table["layer"], table["head"], strict=True)
    ]
    table.insert(2, NEEDED, needs)
    table.insert(0, "where", [layer_title(path, is_pair=view.is_pair) for path in table["layer"]])
    table["head"] += 1
    needed = f"{view.task.score_name.capitalize()}: how much of its attention {view.task.rule.score_says}. The task needs this."
    share = {
        name: st.column_config.ProgressColumn(name, width=95, min_value=0.0, max_value=1.0, format="%.3f", help=text)
        for name, text in {NEEDED: needed, **_HELP}.items()
    }
    entropy = st.column_config.NumberColumn("entropy (bits)", width=95, format="%.2f", help=_ENTROPY)
    event = st.dataframe(
        table.drop(columns="layer"),
        hide_index=True,
        column_config=share | {"entropy": entropy},
        on_select="rerun",
        selection_mode="single-row",
        key="scores",
    )
    rows = [row for row in event.selection.rows if row < len(table)]  # another model may have fewer heads
    followed = (rows[0] if rows else None, view.model)
    if rows and st.session_state.get("scores_followed") != followed:
        st.session_state["scores_followed"] = followed
        row = table.iloc[rows[0]]
        layer = list(run.trace.attention_layers()).index(row["layer"])
        choose_attention(attention, Selection(layer, int(row["head"]) - 1))
        st.rerun()
    lines = [
        "from xformer.analysis.heads import head_scores",
        f"table = head_scores(trace, {positions!r}" + (")" if keys is None else f", {keys!r})"),
        'table.assign(head=table["head"] + 1)  # counted from 1, as on the screen',
    ]
    footer(view, lines, heads_from_1(table, 1), "scores")
