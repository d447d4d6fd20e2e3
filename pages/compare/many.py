"""Over many inputs: how often each player is right, by position and length, what it says instead, how often two agree."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from pages.compare.code import footer
from pages.compare.match import Match
from pages.shared.ask import seed
from pages.shared.background_job import Job
from pages.shared.layout import chart_spec, is_dark
from pages.shared.literal import literal
from xformer.analysis.agreement import Agreement, agreement
from xformer.viz.agreement import confusion_chart, share_chart
from xformer.words import percent

JOB = "compare_counting"
SAMPLES = (1000, 5000, 20000)
DRAW = 1
"""The seed of the inputs: the same for everybody, so that a link shows the same numbers."""


def many_panel(match: Match) -> dict[str, str]:
    """Count a little in every run of the page, and draw what has been counted so far."""
    seed("samples", SAMPLES, SAMPLES[0], key="compare_samples")
    about = _about(match)
    job = st.session_state.get(JOB)
    if isinstance(job, Job) and job.about != about:
        job = None
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
            args=(match, about),
            icon=":material/functions:",
        )
        if job is not None and job.is_running:
            job.advance()
        report: Agreement | None = None if job is None else job.latest
        if job is not None and report is not None:
            st.progress(report.done / report.samples, f"{report.done:,} of {report.samples:,}", width=240)
            if job.is_running:
                st.button("Cancel", key="compare_count_cancel", on_click=job.cancel)
    link = {"samples": str(samples)}
    if job is not None and job.problem:
        st.info(literal(job.problem), icon=":material/functions:")
    elif report is None:
        st.caption(
            f"Fresh inputs of the task {match.task.config.name}, none of them trained on, the same for all. Each player’s "
            "likeliest token is counted, given the right answer so far; no dice are thrown and no tokens replaced."
        )
    else:
        _show(match, report, f"{about}|{report.done}|{report.samples}")
    return link


def is_counting(match: Match) -> bool:
    """Whether something is being counted of these players, and looked at."""
    job = st.session_state.get(JOB)
    is_seen = st.session_state.get("compare_panel") == "many"
    return isinstance(job, Job) and job.is_running and job.about == _about(match) and is_seen


def _about(match: Match) -> str:
    return "|".join(seat.text for seat in match.seats)


def _start(match: Match, about: str) -> None:
    samples = int(st.session_state["compare_samples"])
    work = agreement(match.players(), samples=samples, seed=DRAW, task=match.task)
    st.session_state[JOB] = Job(work, about)


def _show(match: Match, counted: Agreement, about: str) -> None:
    figures, pairs = counted.figures(), counted.pairs()
    st.markdown(_told(figures, pairs, counted.done, has_right_answer=match.has_right_answer))
    dark = is_dark()
    tables = {"position": (counted.by_position(), "exact"), "length": (counted.by_length(), "exact")}
    tables_shown = [("position", "token"), ("position", "exact"), ("length", "exact")]
    for index, (place, (group, measure)) in enumerate(zip(st.columns(3, gap="medium"), tables_shown, strict=True)):
        table = tables[group][0]

        def draw(table: pd.DataFrame = table, group: Any = group, measure: Any = measure) -> Any:
            short = table.assign(player=[name.split(" ")[0] for name in table["player"]])
            return share_chart(short, group, measure, dark=dark)

        spec = chart_spec(("compare share", about, *match.names, group, measure, dark), draw)
        place.vega_lite_chart(spec, theme="streamlit", width="stretch", key=f"compare_share_{index}")
    make = f"*_, counted = agreement(players, samples={counted.samples}, seed={DRAW})"
    start = [
        "from xformer.analysis.agreement import agreement",
        "from xformer.viz.agreement import confusion_chart, share_chart",
    ]
    every = pd.concat([table.assign(by=group).rename(columns={group: "at"}) for group, (table, _) in tables.items()])
    whole = pd.concat([figures.assign(by="all"), every], ignore_index=True)
    footer(
        match,
        [
            "import altair as alt",
            *start,
            make,
            "position, length = counted.by_position(), counted.by_length()",
            "shares = [share_chart(position, 'position', measure, dark=False) for measure in ('token', 'exact')]",
            "alt.hconcat(*shares, share_chart(length, 'length', 'exact', dark=False))",
        ],
        whole,
        "accuracy",
        plays=False,
    )
    st.caption(
        "Bands are 95 % intervals (Wilson 1927). Left: each token by its place in the answer; middle: all right up to "
        "there; right: whole answers by length."
    )
    st.markdown("**How often two say the same**")
    st.dataframe(
        pairs,
        hide_index=True,
        column_config={name: st.column_config.NumberColumn(format="percent") for name in ("share", "low", "high")},
        key="compare_pairs",
    )
    footer(match, [*start, make, "counted.pairs()"], pairs, "pairs", plays=False)
    st.markdown("**What is said for what is right**")
    confusion = counted.confusion()
    for index, (place, name) in enumerate(zip(st.columns(len(match.names), gap="small"), match.names, strict=True)):
        place.markdown(f"**{literal(name)}**")

        def draw_one(name: str = name) -> Any:
            return confusion_chart(confusion, name, counted.labels, dark=dark)

        spec = chart_spec(("compare confusion", about, name, *match.names, dark), draw_one)
        place.vega_lite_chart(spec, theme="streamlit", width="stretch", key=f"compare_confusion_{index}")
    each = "[confusion_chart(counted.confusion(), p.name, counted.labels, dark=False, title=p.name) for p in players]"
    lines = [
        "import altair as alt",
        *start,
        make,
        f"alt.hconcat(*{each}).resolve_scale(x='independent', y='independent')",
    ]
    footer(match, lines, confusion, "confusion", plays=False)


def _told(figures: pd.DataFrame, pairs: pd.DataFrame, done: int, *, has_right_answer: bool = True) -> str:
    """Accuracies and agreement in words; of texts how often it is the very next token, which nobody calls right."""
    measure = "exact" if has_right_answer else "token"
    exact = figures.loc[figures["measure"] == measure].to_dict("records")
    words = [
        f"**{row['player'].split(' ')[0]}** {percent(row['share'], 1)} "
        f"({percent(row['low'], 1)} to {percent(row['high'], 1)})"
        for row in exact
    ]
    same = pairs.loc[pairs["measure"] == measure].to_dict("records")
    together = [
        f"{row['one'].split(' ')[0]} and {row['other'].split(' ')[0]} {percent(row['share'], 1)}" for row in same
    ]
    what = (
        "Whole answers right of"
        if has_right_answer
        else "The next token of the text, likeliest of all to them, in windows:"
    )
    agree = "The same answer" if has_right_answer else "The same token"
    return f"{what} {done:,}: {', '.join(words)}. {agree}: {', '.join(together)}."
