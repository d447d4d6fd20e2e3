"""“Scores of all heads”: how much of what each head looks at, as a table that leads to the head of a row."""

from __future__ import annotations

import streamlit as st

from pages.shared.components.attention_view import Selection, choose_attention
from pages.shared.notebook import footer
from pages.shared.resources import Run
from pages.shared.view import View
from xformer.analysis.heads import head_scores
from xformer.viz.attention import layer_title

SCOPES = ("from the answer back to the source", "within the source")
_HELP = {
    "diagonal": "Weight on the token itself: key = query.",
    "anti-diagonal": "Weight on the mirrored token: key = length − 1 − query. Reversal needs this.",
    "previous": "Weight on the token before, over the queries that have one.",
    "next": "Weight on the token after, over the queries that have one.",
    "first": "Weight on the first token.",
    "induction": "Weight on what followed an earlier occurrence of the same token, over the queries whose token came before.",
}
_ENTROPY = "How spread out a row is: −Σ p log₂ p. 0 bits is a single key; log₂(keys) is all alike."


def scores_panel(view: View, run: Run, attention: str) -> None:
    """The scores of every head of `run`; choosing a row chooses that head in the attention view of that key."""
    n = len(run.example.source)
    positions, keys = range(n), None
    if patches := view.checkpoint.config.n_patches:
        positions = range(1, 1 + patches)  # the class token is left out
    if view.task.rule.goes_on:  # all of it is read, and all of it is asked for
        positions = range(min(run.example.stream.shape[1], run.example.labels.shape[1]))
    elif view.task.config.architecture == "decoder":
        where = st.segmented_control("Look", SCOPES, default=SCOPES[0], required=True, key="scope")
        if where == SCOPES[0]:  # the output that says the answer's i-th token stands at n + i
            positions, keys = view.task.answer_queries(n), range(n)
    st.caption(
        f"Shares of a head's attention, averaged over the {view.task.rule.unit} of this input; special tokens are left out"
        f"{f', with {view.what_changed()}' if view.is_changed else ''}. Choose a row to enlarge that head; "
        "click a column to sort."
    )
    table = head_scores(run.trace, positions, keys)
    if table["induction"].isna().all():
        table = table.drop(columns="induction")
    table.insert(0, "where", [layer_title(path, is_pair=view.is_pair) for path in table["layer"]])
    table["head"] += 1
    share = {
        name: st.column_config.ProgressColumn(name, width=95, min_value=0.0, max_value=1.0, format="%.3f", help=text)
        for name, text in _HELP.items()
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
    rows = event.selection.rows
    if rows and st.session_state.get("scores_followed") != (rows[0], view.model):
        st.session_state["scores_followed"] = (rows[0], view.model)
        row = table.iloc[rows[0]]
        layer = list(run.trace.attention_layers()).index(row["layer"])
        choose_attention(attention, Selection(layer, int(row["head"]) - 1))
        st.rerun()
    lines = [
        "from xformer.analysis.heads import head_scores",
        f"head_scores(trace, {positions!r}" + (")" if keys is None else f", {keys!r})"),
    ]
    footer(view, lines, table, "scores")
