"""“Without each head”: what silencing each does on this input, measured for all heads where that is quick."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.attention.effects_said import sentence
from pages.components.attention_view import Selection
from pages.shared import estimates
from pages.shared.background_job import Job, follow
from pages.shared.call import Call, heads_from_1
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link import chose
from pages.shared.picture import footer, shown
from pages.shared.view import View
from pages.shared.widgets import choose, seed
from xformer import viz
from xformer.analysis import minimal_pairs
from xformer.analysis.ablation import SilencedHeads, silenced_heads
from xformer.analysis.attention_patterns import SCORES, TASK
from xformer.reading import Reading
from xformer.site import head_title
from xformer.viz.ablation import score_title

MEASURES = {"no": "not shown", "loss": "to the loss", "lead": "to one output’s lead"}
AT_ONCE = 1.2
"""Seconds of measuring before the page shows how far it is."""
OLD_SCORES = {"the task’s": TASK, "anti-diagonal": "anti_diagonal"}
"""What older links call a score."""
BUDGET = 0.6
"""Seconds of it in one run of the page."""


def ask_effects(run: Reading) -> dict[str, Any] | None:
    """What every head is judged by, as options of `analysis.head_effects`; None where nobody asked, or nothing is predicted."""
    if not run.has_logits or run.logits.shape[-1] < 2:
        return None
    words = MEASURES if run.asked else {name: MEASURES[name] for name in ("no", "lead")}
    goal = choose("without", words, "no", "What silencing each head does", help="All heads are ranked by it.")
    if goal != "lead":
        return None if goal == "no" else {}
    opened = [] if run.open_output is None else [run.open_output]
    outputs = [*run.asked, *opened] or [run.logits.shape[1] - 1]
    best, label = run.logits[0].topk(2).indices.tolist(), run.subject.labels
    seed("at", outputs, outputs[-1], key="effects_at", called="position")
    position = st.selectbox(
        "Output",
        outputs,
        format_func=lambda at: f"{at}: {label[best[at][0]]} over {label[best[at][1]]}",
        key="effects_at",
        width=320,
    )
    chose("at", str(position))
    return {"position": position}


def effects_of(view: View, run: Reading, options: dict[str, Any], chosen: Selection) -> Job[SilencedHeads]:
    """The work of measuring, as far as it is; the enlarged head is always measured."""
    about = f"{view.model}|{run.recipe}|{options}"
    job: Job[SilencedHeads] | None = st.session_state.get("head_effects")
    if job is None or job.about != about:
        job = st.session_state["head_effects"] = Job(_work(run, options), about)
        estimates.begin(job, AT_ONCE)
    found, head = job.latest, (chosen.layer, chosen.head)
    if found is not None and head in found.estimated:
        found.silence(head)
    if job.problem:
        st.info(escape_markdown(job.problem), icon=":material/info:")
    return job


def _work(run: Reading, options: dict[str, Any]) -> Iterator[SilencedHeads]:
    yield from silenced_heads(run, **options).silence_all()


def effects_part(
    view: View,
    run: Reading,
    job: Job[SilencedHeads],
    scores: pd.DataFrame,
    options: dict[str, Any],
    look: dict[str, Any],
) -> pd.DataFrame:
    """Which head is needed most, whether the head with the highest score is, how good the estimates are, and the picture.

    What comes back is the table of `analysis.head_effects` that all this is about: meanwhile more may be measured.
    `scores` are those of `analysis.head_scores` with the options `look`.
    """
    found = job.latest
    assert found is not None
    names = (TASK, "induction", *SCORES[:-1])
    kinds = {name: score_title(name) for name in names if bool(scores[name].notna().any())}
    kind = choose(
        "score", kinds, next(iter(kinds)), "Held against the score", widget=st.selectbox, width=200, old=OLD_SCORES
    )
    alike = scores.loc[scores[kind].astype(float).idxmax()]
    found.silence(([site.path for site in run.attention].index(str(alike["layer"])), int(alike["head"])))
    goal = minimal_pairs.title(run, found.measure)
    table, exact = found.frame(), True if found.is_final else sorted(found.measured)
    frame = table.merge(scores[["layer", "head", kind]], on=["layer", "head"])
    cells = zip(frame["layer"], frame["head"], strict=True)
    names = [head_title(path, head, is_pair=run.is_pair) for path, head in cells]
    st.markdown(sentence(frame.assign(name=names), kind, escape_markdown(goal), found.before))
    st.markdown(estimates.how_far_to_trust(table, "heads"))
    follow(job, partial(estimates.bar, job, "head_effects_bar", "heads"), BUDGET)
    call = Call(viz.head_effects, (run,), {**options, **look, "score": kind, "exact": exact, "table": table})
    shown(view, call, "head_effects")
    footer(view, "head_effects", [call], lambda: heads_from_1(frame))
    st.caption(
        f"Filled points are measured: the model runs again with the head’s z at 0, and the {escape_markdown(goal)} is compared "
        f"with {found.before:.3f}. Hollow ones are not measured, but estimated from one gradient. One head at a time: where "
        "several do the same work, each alone may seem idle."
    )
    return table
