"""“Scores of all heads”: how much of what each head looks at, as a table that leads to the head of a row."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd
import streamlit as st

from pages.attention.head_effects import ask_effects, effects_of, effects_part
from pages.components.attention_view import Selection, choose_attention
from pages.shared.call import Call
from pages.shared.picture import footer, table
from pages.shared.view import View
from pages.shared.widgets import choose
from xformer import analysis
from xformer.adapters import Input
from xformer.analysis.attention_patterns import TASK
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.site import head_title, layer_title

SCOPES = {"answer": "from the answer back to the source", "source": "within the source"}
_HELP = {
    "diagonal": "Weight on the token itself: key = query.",
    "anti_diagonal": "Weight on the mirrored token: key = length − 1 − query.",
    "previous": "Weight on the token before, over the queries that have one.",
    "next": "Weight on the token after, over the queries that have one.",
    "first": "Weight on the first token.",
    "induction": "Weight on what followed an earlier occurrence of the same token, over the queries whose token came before.",
}
_WITHOUT = "What silencing this head adds to what it is judged by: by a run without it, and by a gradient."
_ENTROPY = "How spread out a row is: −Σ p log₂ p. 0 bits is a single key; log₂(keys) is all alike."


SINKS = {"in": "counts like any other", "out": "is left out"}
_TWICE = "Types arbitrary tokens and says them again: heads that look at what followed last time stand out."
_TITLES = {TASK: "the task’s", "anti_diagonal": "anti-diagonal"}
"""Column titles that are not the column's name."""
CLEAR = 0.4
"""A head with less of its attention there is no sign of induction."""


def _may_leave_out(run: Reading) -> bool:
    """Nobody wants to in a model of images, or between two streams."""
    return not run.subject.shape.image and not run.is_pair and not run.has_right_answer and len(run.tokens) > 2


def _say_twice(of: Input) -> None:
    st.session_state["input"] = of.random(random.getrandbits(32))


def _strongest(run: Reading, found: pd.DataFrame, view: View) -> None:
    """Name the head with the most induction, where it clearly has some."""
    if bool(found["induction"].isna().all()):
        return
    best = found.loc[found["induction"].idxmax()]
    if best["induction"] < CLEAR:
        return
    name = head_title(str(best["layer"]), int(best["head"]), is_pair=view.is_pair)
    st.markdown(
        f"Induction: **{name}** has the most, {percent(float(best['induction']), 0)} of its attention is on what followed an "
        f"earlier occurrence of the same {view.input.one}."
    )


def _ranked(found: pd.DataFrame, effects: pd.DataFrame) -> pd.DataFrame:
    """With what silencing each head does after its name: first the measured ones, the largest effect first, then the others."""
    both = found.merge(effects, on=["layer", "head"])
    sizes = both.assign(measured=both["measured"].abs(), estimated=both["estimated"].abs())
    order = sizes.sort_values(["measured", "estimated"], ascending=False, kind="stable", na_position="last").index
    first = ["layer", "head", "measured", "estimated"]
    return pd.DataFrame(both.loc[order][first + [name for name in both if name not in first]]).reset_index(drop=True)


def _first(options: dict[str, Any]) -> str:
    return "and the first one " if options.get("without_first") else ""


def scores_panel(view: View, run: Reading, chosen: Selection, attention: str) -> None:
    """The scores of every head of `run`, and what becomes of it without each; choosing a row chooses that head in the attention
    view of that key."""
    of = view.input
    options: dict[str, Any] = {}
    if of.scored(run.example, "answer") != of.scored(run.example, "source"):
        options["look"] = choose("look", SCOPES, "answer", "Look")
    if _may_leave_out(run):
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            sink = choose("sink", SINKS, "in", "The first token")
            if view.input.goes_on:
                st.button("Random tokens, twice", on_click=_say_twice, args=(view.input,), key="say_twice", help=_TWICE)
        if sink == "out":
            options["without_first"] = True
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        asked = ask_effects(run)
    st.caption(
        f"Shares of a head's attention, averaged over the {of.many} of this input; special tokens {_first(options)}are left out"
        f"{f', with {view.what_changed()}' if view.is_changed else ''}. Choose a row to enlarge that head; "
        "click a column to sort."
    )
    found = table(view, analysis.head_scores, run, **options)
    _strongest(run, found, view)
    if asked is not None and (job := effects_of(view, run, asked, chosen)).latest is not None:
        found = _ranked(found, effects_part(view, run, job, found, asked, options))
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
        name: st.column_config.ProgressColumn(
            _TITLES.get(name, name), width=95, min_value=0.0, max_value=1.0, format="%.3f", help=text
        )
        for name, text in helps.items()
    }
    entropy = st.column_config.NumberColumn("entropy (bits)", width=95, format="%.2f", help=_ENTROPY)
    without = st.column_config.NumberColumn(width=95, format="%+.3f", help=_WITHOUT)
    event = st.dataframe(
        shown,
        hide_index=True,
        column_config=share | {"entropy": entropy} | dict.fromkeys(("estimated", "measured"), without),
        on_select="rerun",
        selection_mode="single-row",
        key=f"scores_{found['measured'].count()}"
        if "measured" in found
        else "scores",  # another order is another table
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
