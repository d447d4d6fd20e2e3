"""What carries the difference: parts of one player's run copied into the other's, one at a time, in both directions."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from pages.compare.comparison import Comparison, state
from pages.shared.background_job import progress
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link_widgets import choose
from pages.shared.notebook import heads_from_1
from pages.shared.picture import footer, shown
from xformer import viz
from xformer.analysis.activation_patching import copying
from xformer.reading import Reading

AT_ONCE = 1.2
"""Seconds that the panel may take before it says how far it is."""
WORTH_A_WORD = 0.1
"""A part that restores less than this share carries nothing worth a sentence."""
WHERE = {"here": "at the deciding position", "everywhere": "at all positions"}


def patching_panel(comparison: Comparison, step: int, two: Sequence[Reading]) -> dict[str, str]:
    """Draw both directions and the table; or say in one sentence why nothing can be copied."""
    where = choose("copied", WHERE, "here", "Copied", key="compare_copied", label_visibility="collapsed")
    frame = _frame(comparison, step, two, where)
    if frame is None:
        return {"copied": where}
    st.markdown(result(frame))
    options = {"everywhere": where == "everywhere", "table": frame}
    calls = [Call(viz.patching, (two,), {**options, "out_of": out_of}) for out_of in (0, 1)]
    for place, call in zip(st.columns(2, gap="medium"), calls, strict=True):
        with place:
            shown(comparison, call, f"compare_patch_{call.options['out_of']}")
    st.caption(
        "Share of the logit difference between the two answers that a copy restores: 0 leaves the run as it was, 1 makes it "
        "the other's; beyond both ends is possible. ⇒ marks a copy that turns the answer."
    )
    st.dataframe(
        frame.drop(columns="difference"),
        hide_index=True,
        height=260,
        column_config={"restored": st.column_config.NumberColumn(format="%+.4f", help="The share that it carries.")},
        key="compare_patch_table",
    )
    footer(comparison, "patching", calls, heads_from_1(frame, 1))
    return {"copied": where}


def result(frame: pd.DataFrame) -> str:
    """What the copies say, in one sentence: the smallest part each way that carries most, where one carries anything."""
    words = []
    for _, part in frame.groupby(["source", "into"], sort=False):
        heads = part[part["component"] != "residual"]
        best = (heads if len(heads) else part).iloc[0]
        a, b = str(best["source"])[0], str(best["into"])[0]
        if abs(best["restored"]) < WORTH_A_WORD:
            words.append(
                f"no part of {a} but the whole stream restores as much as {WORTH_A_WORD:g} of the difference in {b}"
            )
            continue
        turns = (
            f" and turns the answer to {escape_markdown(str(best['says']))}"
            if best["turns"]
            else " and does not turn the answer"
        )
        words.append(
            f"**{best['part']}** of {a} copied into {b} restores {best['restored']:+.2f} of the difference{turns}"
        )
    sentence = "; ".join(words) + "."
    return sentence[0].upper() + sentence[1:]


def _frame(comparison: Comparison, step: int, two: Sequence[Reading], where: str) -> pd.DataFrame | None:
    """The frame of both directions; None while it is being made, and where it cannot be, which is said."""
    about = "|".join([comparison.about, str(step), *(reading.subject.name for reading in two), where])
    job = state().work_on("patching", about, lambda: copying(two, everywhere=where == "everywhere"), AT_ONCE)
    if job.problem:
        st.info(escape_markdown(job.problem), icon=":material/content_copy:")
        return None
    report = job.latest
    if report is not None and report.frame is not None:
        return report.frame
    done, total = (0, 1) if report is None else (report.done, report.total)
    progress(job, "compare_patch", done / total, f"{done} of {total} copies")
    return None
