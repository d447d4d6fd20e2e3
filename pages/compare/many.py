"""Over many inputs: how often each player is right, by position and length, what it says instead, how often two agree."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.compare.comparison import Comparison, state
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link_widgets import seed
from pages.shared.picture import footer, shown
from xformer import analysis, viz
from xformer.analysis.scoring import Agreement, count_agreement
from xformer.words import percent

SAMPLES = (1000, 5000, 20000)
DRAW = 1
"""The seed of the inputs: the same for everybody, so that a link shows the same numbers."""
PICTURES = (("position", "token"), ("position", "exact"), ("length", "exact"))


def many_panel(comparison: Comparison) -> dict[str, str]:
    """Count a little in every run of the page, and draw what has been counted so far."""
    seed("samples", SAMPLES, SAMPLES[0], key="compare_samples")
    job = state().job("many", comparison.players)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="compare_many_bar"):
        samples = st.segmented_control(
            "Inputs",
            SAMPLES,
            format_func=lambda n: f"{n:,} inputs",
            required=True,
            key="compare_samples",
            persist_state="session",
            label_visibility="collapsed",
            width="content",
        )
        st.button(
            "Count",
            type="primary",
            key="compare_count",
            on_click=_start,
            args=(comparison,),
            icon=":material/functions:",
        )
        if job is not None and job.is_running:
            job.advance()
        report: Agreement | None = None if job is None else job.latest
        if job is not None and report is not None:
            st.progress(report.done / report.samples, f"{report.done:,} of {report.samples:,}", width=240)
            if job.is_running:
                st.button("Cancel", key="compare_count_cancel", on_click=job.cancel)
    if job is not None and job.problem:
        st.info(escape_markdown(job.problem), icon=":material/functions:")
    elif report is None:
        st.caption(
            f"Fresh inputs of the task {comparison.input.name}, none of them trained on, the same for all. Each player’s "
            "likeliest token is counted, given the right answer so far; no dice are thrown and no tokens replaced."
        )
    else:
        _show(comparison, report)
    return {"samples": str(samples)}


def _start(comparison: Comparison) -> None:
    samples = int(st.session_state["compare_samples"])
    work = count_agreement(comparison.contenders(), samples=samples, seed=DRAW)
    state().begin("many", comparison.players, work)


def _show(comparison: Comparison, counted: Agreement) -> None:
    st.markdown(_summary(counted, has_right_answer=comparison.has_right_answer))
    calls = [Call(viz.accuracy, (counted,), {"by": by, "measure": measure}) for by, measure in PICTURES]
    for index, (place, call) in enumerate(zip(st.columns(3, gap="medium"), calls, strict=True)):
        with place:
            shown(comparison, call, f"compare_share_{index}")
    footer(comparison, "accuracy", calls, lambda: _whole(counted))
    st.caption(
        "Bands are 95 % intervals (Wilson 1927). Left: each token by its place in the answer; middle: all right up to "
        "there; right: whole answers by length."
    )
    st.markdown("**How often two say the same**")
    st.dataframe(
        analysis.same_answers(counted),
        hide_index=True,
        column_config={name: st.column_config.NumberColumn(format="percent") for name in ("share", "low", "high")},
        key="compare_pairs",
    )
    footer(comparison, "pairs", [Call(analysis.same_answers, (counted,))])
    st.markdown("**What is said for what is right**")
    calls = [Call(viz.confusion, (counted,), {"player": name}) for name in comparison.names]
    for index, (place, call) in enumerate(zip(st.columns(len(calls), gap="small"), calls, strict=True)):
        with place:
            st.markdown(f"**{escape_markdown(comparison.names[index])}**")
            shown(comparison, call, f"compare_confusion_{index}")
    footer(comparison, "confusion", calls, lambda: analysis.confusion(counted))


def _whole(counted: Agreement) -> pd.DataFrame:
    """Every accuracy in one table."""
    by = {
        by: analysis.accuracy(counted, by).rename(columns={by: "at"}).assign(by=by)
        for by in ("all", "position", "length")
    }
    return pd.concat(by.values(), ignore_index=True)


def _summary(counted: Agreement, *, has_right_answer: bool) -> str:
    """Accuracies and agreement in words; of texts how often it is the very next token, which nobody calls right."""
    measure = "exact" if has_right_answer else "token"
    figures, pairs = (
        frame.loc[frame["measure"] == measure].to_dict("records")
        for frame in (analysis.accuracy(counted), analysis.same_answers(counted))
    )
    words = [
        f"**{row['player'][0]}** {percent(row['share'], 1)} ({percent(row['low'], 1)} to {percent(row['high'], 1)})"
        for row in figures
    ]
    together = [f"{row['one'][0]} and {row['other'][0]} {percent(row['share'], 1)}" for row in pairs]
    what = (
        "Whole answers right of"
        if has_right_answer
        else "The next token of the text, likeliest of all to them, in windows:"
    )
    agree = "The same answer" if has_right_answer else "The same token"
    return f"{what} {counted.done:,}: {', '.join(words)}. {agree}: {', '.join(together)}."
