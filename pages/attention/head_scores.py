"""“Scores of all heads”: how much of what each head looks at, as a table that leads to the head of a row."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.components.attention_view import Selection, choose_attention
from pages.shared import estimates
from pages.shared.background_job import Job, follow
from pages.shared.call import Call, heads_from_1
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link import chose
from pages.shared.picture import footer, shown, table
from pages.shared.view import View
from pages.shared.widgets import choose, seed
from xformer import analysis, viz
from xformer.adapters import Input
from xformer.analysis import minimal_pairs
from xformer.analysis.ablation import SilencedHeads, silenced_heads
from xformer.analysis.attention_patterns import SCORES, TASK
from xformer.formatting import at_most, percent
from xformer.reading import Reading
from xformer.site import head_title, layer_title
from xformer.viz.ablation import score_title

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
    words = MEASURES if run.target_positions else {name: MEASURES[name] for name in ("no", "lead")}
    goal = choose("without", words, "no", "What silencing each head does", help="All heads are ranked by it.")
    if goal != "lead":
        return None if goal == "no" else {}
    opened = [] if run.open_output is None else [run.open_output]
    outputs = [*run.target_positions, *opened] or [run.logits.shape[1] - 1]
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


LEAST, WORTH = 0.02, 0.05
"""What moves the measure by less than this, and less than this share of it, is not needed."""


def sentence(frame: pd.DataFrame, kind: str, goal: str, before: float) -> str:
    """`frame` has the columns of `analysis.head_effects`, a score in the column `kind`, and each head's name; `before` is what
    `goal`, the measure, was with all heads."""
    there = frame.dropna(subset="measured")
    worth = max(LEAST, WORTH * abs(before))
    among = "" if len(there) == len(frame) else f" of the {len(there)} heads of {len(frame)} that are measured"
    best = there.loc[there["measured"].abs().idxmax()]
    if abs(best["measured"]) < worth:
        said = [
            f"No head{among} is needed for itself: without one the {goal} moves by {at_most(abs(best['measured']), 3)} at most."
        ]
    else:
        said = [
            f"Without **{best['name']}** the {goal} goes from {before:.3f} to {before + best['measured']:.3f}, further than "
            f"without any other{among}."
        ]
    alike = frame.loc[frame[kind].astype(float).idxmax()]
    share, moved = float(alike[kind]), float(alike["measured"])
    if share >= CLEAR:
        looks = f"the highest {score_title(kind)} score, {percent(share, 0)}"
        if alike["name"] == best["name"] and abs(moved) >= worth:
            said.append(f"It has {looks}, too.")
        elif abs(moved) >= worth:
            said.append(f"**{alike['name'].capitalize()}**, with {looks}, is needed as well: {moved:+.3f}.")
        elif abs(moved) < worth / 2:
            said.append(
                f"**{alike['name'].capitalize()}** has {looks}, and is not needed here: {moved:+.3f} without it."
            )
    return " ".join(said)
