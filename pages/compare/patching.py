"""What carries the difference: parts of one player's run copied into the other's, one at a time, in both directions."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from pages.compare.code import footer
from pages.compare.match import Match
from pages.shared.ask import choose
from pages.shared.background_job import Job
from pages.shared.layout import chart_spec, is_dark
from pages.shared.literal import literal
from pages.shared.notebook import heads_from_1
from xformer.analysis.deciding import Moment
from xformer.analysis.patching import Copied, copying
from xformer.viz.patching import patching_chart

JOB = "compare_copying"
AT_ONCE = 1.2
"""Seconds that the panel may take before it says how far it is."""
SOME = 0.1
"""A part that restores less than this share carries nothing worth a sentence."""
WHERE = {"here": "at the deciding position", "everywhere": "at all positions"}


def patching_panel(match: Match, step: int, one: Moment, other: Moment) -> dict[str, str]:
    """Draw both directions and the table; or say in one sentence why nothing can be copied."""
    where = choose("copied", WHERE, "here", "Copied", key="compare_copied", label_visibility="collapsed")
    link = {"copied": where}
    frame = _frame(match, step, one, other, where)
    if frame is None:
        return link
    st.markdown(result(frame, one, other))
    dark = is_dark()
    for index, (place, (source, into)) in enumerate(
        zip(st.columns(2, gap="medium"), ((one, other), (other, one)), strict=True)
    ):
        part = _direction(frame, source)
        names = [at.name.split(" ")[0] for at in (source, into)]

        def draw(part: pd.DataFrame = part, names: list[str] = names) -> Any:
            short = part.assign(source=names[0], into=names[1])
            return patching_chart(short, dark=dark, title=f"Out of {names[0]}, into {names[1]}")

        spec = chart_spec(("compare patch", match.order, step, source.name, into.name, where, dark), draw)
        place.vega_lite_chart(spec, theme="streamlit", width="stretch", key=f"compare_patch_{index}")
    st.caption(
        "Share of the logit difference between the two answers that a copy restores: 0 leaves the run as it was, 1 makes it "
        "the other's; beyond both ends is possible. ⇒ marks a copy that turns the answer."
    )
    shown = frame.drop(columns="difference")
    st.dataframe(
        shown,
        hide_index=True,
        height=260,
        column_config={"restored": st.column_config.NumberColumn(format="%+.4f", help="The share that it carries.")},
        key="compare_patch_table",
    )
    a, b = (match.names.index(at.name) for at in (one, other))
    lines = [
        "from xformer.analysis.deciding import moment",
        "from xformer.analysis.patching import patching_both_ways",
        "from xformer.viz.patching import patching_chart",
        "import altair as alt",
        f"one, other = moment(plays[{a}], {step}), moment(plays[{b}], {step})",
        f"frame = patching_both_ways(one, other, everywhere={where == 'everywhere'})",
        "ways = [frame[frame['source'] == at.name] for at in (one, other)]",
        "alt.hconcat(*[patching_chart(way, dark=False) for way in ways]).resolve_scale(x='independent', y='independent')",
    ]
    footer(match, lines, heads_from_1(frame, 1), "patching")
    return link


def result(frame: pd.DataFrame, one: Moment, other: Moment) -> str:
    """What the copies say, in one sentence: the smallest part each way that carries most, where one carries anything."""
    words = []
    for source, into in ((one, other), (other, one)):
        part = _direction(frame, source)
        heads = part[part["component"] != "residual"]
        best = (heads if len(heads) else part).iloc[0]
        a, b = (at.name.split(" ")[0] for at in (source, into))
        if abs(best["restored"]) < SOME:
            words.append(f"no part of {a} but the whole stream restores as much as {SOME:g} of the difference in {b}")
            continue
        turns = (
            f" and turns the answer to {literal(str(best['says']))}"
            if best["turns"]
            else " and does not turn the answer"
        )
        words.append(
            f"**{best['part']}** of {a} copied into {b} restores {best['restored']:+.2f} of the difference{turns}"
        )
    told = "; ".join(words) + "."
    return told[0].upper() + told[1:]


def is_copying(match: Match) -> bool:
    """Whether copies are being made for these players, and looked at."""
    job = st.session_state.get(JOB)
    is_seen = st.session_state.get("compare_panel") == "patching"
    return isinstance(job, Job) and job.is_running and job.about.startswith(f"{match.order}|{match.names}|") and is_seen


def _frame(match: Match, step: int, one: Moment, other: Moment, where: str) -> pd.DataFrame | None:
    """The frame of both directions; None while it is being made, and where it cannot be, which is said."""
    about = f"{match.order}|{match.names}|{step}|{one.name}|{other.name}|{where}"
    job = st.session_state.get(JOB)
    if not isinstance(job, Job) or job.about != about:
        work = copying([(one, other), (other, one)], everywhere=where == "everywhere")
        job = st.session_state[JOB] = Job(work, about)
        job.advance(AT_ONCE)
    else:
        job.advance()
    if job.problem:
        st.info(literal(job.problem), icon=":material/content_copy:")
        return None
    report: Copied | None = job.latest
    if report is not None and report.frame is not None:
        return report.frame
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="compare_patch_wait"):
        done, total = (0, 1) if report is None else (report.done, report.total)
        st.progress(done / total, f"{done} of {total} copies", width=300)
        if job.cancelled:
            st.button("Go on", icon=":material/play_arrow:", key="compare_patch_on", on_click=_resume, args=(job,))
        else:
            st.button("Cancel", key="compare_patch_cancel", on_click=job.cancel)
    return None


def _resume(job: Job[Copied]) -> None:
    job.cancelled = False


def _direction(frame: pd.DataFrame, source: Moment) -> pd.DataFrame:
    return frame.loc[frame["source"] == source.name].reset_index(drop=True)
