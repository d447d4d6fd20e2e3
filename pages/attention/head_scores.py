"""“Scores of all heads”: how much of what each head looks at, as a table that leads to the head of a row."""

from __future__ import annotations

import streamlit as st

from pages.components.attention_view import Selection, choose_attention
from pages.shared.call import Call
from pages.shared.link_widgets import choose
from pages.shared.picture import footer, table
from pages.shared.view import View
from xformer import analysis
from xformer.analysis.heads import TASK
from xformer.names import layer_title
from xformer.reading import Reading

SCOPES = {"answer": "from the answer back to the source", "source": "within the source"}
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
    of, options = view.input, {}
    if of.scored(run.example, "answer") != of.scored(run.example, "source"):
        options["look"] = choose("look", SCOPES, "answer", "Look")
    st.caption(
        f"Shares of a head's attention, averaged over the {of.many} of this input; special tokens are left out"
        f"{f', with {view.what_changed()}' if view.is_changed else ''}. Choose a row to enlarge that head; "
        "click a column to sort."
    )
    found = table(view, analysis.head_scores, run, **options)
    shown = found.assign(head=found["head"] + 1).drop(columns="layer")
    shown.insert(0, "where", [layer_title(path, is_pair=view.is_pair) for path in found["layer"]])
    if bool(shown["induction"].isna().all()):
        shown = shown.drop(columns="induction")
    helps = dict(_HELP)
    if view.task is None:
        shown = shown.drop(columns=TASK)
    else:
        rule = view.task.rule
        helps[TASK] = (
            f"{rule.score_name.capitalize()}: how much of its attention {rule.score_says}. The task needs this."
        )
    share = {
        name: st.column_config.ProgressColumn(name, width=95, min_value=0.0, max_value=1.0, format="%.3f", help=text)
        for name, text in helps.items()
    }
    entropy = st.column_config.NumberColumn("entropy (bits)", width=95, format="%.2f", help=_ENTROPY)
    event = st.dataframe(
        shown,
        hide_index=True,
        column_config=share | {"entropy": entropy},
        on_select="rerun",
        selection_mode="single-row",
        key="scores",
    )
    rows = [row for row in event.selection.rows if row < len(found)]  # another model may have fewer heads
    followed = (rows[0] if rows else None, view.model)
    if rows and st.session_state.get("scores_followed") != followed:
        st.session_state["scores_followed"] = followed
        row = found.iloc[rows[0]]
        layer = [site.path for site in run.sites].index(row["layer"])
        choose_attention(attention, Selection(layer, int(row["head"])))
        st.rerun()
    footer(view, "scores", [Call(analysis.head_scores, (run,), options)])
