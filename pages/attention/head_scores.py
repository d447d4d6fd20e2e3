"""“Scores of all heads”: what each head attends to, as a table, and the effect of ablating it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TypedDict

import pandas as pd
import streamlit as st

from pages.attention.heads import KEY
from pages.components.attention_view import Selection, choose_attention
from pages.compute.background_job import BackgroundJob, describe_estimates, follow_measuring, measuring_job
from pages.compute.call import heads_from_1, picture_call
from pages.compute.picture import footer, shown, table
from pages.controls.text import escape_markdown
from pages.controls.widgets import choose
from pages.state.inputs import set_random_input
from pages.state.view import View
from xformer import analysis, viz
from xformer.adapters import Input
from xformer.analysis import minimal_pairs
from xformer.analysis.ablation import HeadEffects, estimate_head_effects
from xformer.analysis.attention_patterns import SCORES, TASK
from xformer.formatting import at_most, percent
from xformer.layer_path import head_title
from xformer.reading import Reading
from xformer.viz.activation_patching import score_title

SCOPES = {"answer": "from the answer to the source", "source": "within the source"}
_HELP = {
    "diagonal": "Weight on the token itself: key = query.",
    "anti_diagonal": "Weight on the mirrored token: key = length − 1 − query.",
    "previous": "Weight on the previous token, averaged over the queries that have one.",
    "next": "Weight on the next token, averaged over the queries that have one.",
    "first": "Weight on the first token.",
    "induction": "Weight on the token after an earlier occurrence of the query’s token, averaged over the queries that "
    "have one.",
}
_WITHOUT = "Change of the loss or margin when this head is ablated: measured in a run, or estimated from a gradient."
_ENTROPY = "−Σ p log₂ p of a row: 0 bits for a single key, log₂(keys) for equal weights."
SINKS = {"in": "counts like any other", "out": "is left out"}
_TWICE = "Random tokens, then the same tokens again: induction heads stand out."
CLEAR = 0.4
"""Scores below this share of a head’s attention are too low to describe the head by them."""


class ScoreOptions(TypedDict, total=False):
    """The options of `analysis.head_scores`."""

    look: str
    without_first: bool


class EffectOptions(TypedDict, total=False):
    """The options of `analysis.head_effects`: the output whose margin is measured; without it, the loss is."""

    position: int


def _ranked(found: pd.DataFrame, effects: pd.DataFrame) -> pd.DataFrame:
    """Join the scores with the effects of ablation, sorted by size with the measured effects first."""
    both = found.merge(effects, on=["layer", "head"])
    both = both.sort_values(["measured", "estimated"], ascending=False, kind="stable", key=lambda sizes: sizes.abs())
    first = ["layer", "head", "measured", "estimated"]
    return pd.DataFrame(both[first + [name for name in both if name not in first]]).reset_index(drop=True)


def scores_panel(view: View, run: Reading, chosen: Selection) -> None:
    """Draw the scores of every head of `run` and the effects of ablating it. Clicking a row selects its head."""
    with st.popover("More", key="scores_more"):
        effect_options = ask_effects(run)
        options = _ask_scores(run, view.input)
    found = table(view, analysis.head_scores, run, **options)
    if bool((found["induction"] >= CLEAR).any()):
        best = found.loc[found["induction"].idxmax()]
        name = head_title(best["layer"], best["head"], is_encoder_decoder=view.is_encoder_decoder)
        share = f"{percent(best['induction'], 0)} of its attention on what followed the same token earlier"
        st.markdown(f"Induction: **{name}** scores highest, with {share}.")
    if effect_options is not None and (job := effects_of(view, run, effect_options, chosen)).latest is not None:
        found = _ranked(found, effects_part(view, run, job, found, effect_options, options))
    ticked = _draw_table(view, found)
    followed = (ticked, view.model)
    if ticked is not None and st.session_state.get("scores_followed") != followed:
        st.session_state["scores_followed"] = followed
        row = found.iloc[ticked]
        layer = [site.path for site in run.layer_paths].index(row["layer"])
        choose_attention(KEY, Selection(layer, int(row["head"])))
        st.rerun()
    footer(view, "scores", [picture_call(analysis.head_scores, run, **options)])


def _ask_scores(run: Reading, inputs: Input) -> ScoreOptions:
    """Ask which attention counts, where this makes a difference."""
    options: ScoreOptions = {}
    if inputs.scored_positions(run.example, "answer") != inputs.scored_positions(run.example, "source"):
        options["look"] = choose("look", SCOPES, "Attention")
    is_text = not run.adapter.shape.image and not run.is_encoder_decoder and not run.has_right_answer
    if is_text and len(run.tokens) > 2:  # the first token may be an attention sink
        if choose("sink", SINKS, "The first token") == "out":
            options["without_first"] = True
        if inputs.is_open_ended:
            draw = partial(set_random_input, inputs)
            st.button("Random tokens, twice", on_click=draw, key="say_twice", help=_TWICE)
    first = "and the first one " if options.get("without_first") else ""
    st.caption(f"Shares are averaged over the {inputs.units} of this input; special tokens {first}are excluded.")
    return options


def _draw_table(view: View, found: pd.DataFrame) -> int | None:
    """Draw the scores as bars and the effects as numbers; return the index of the ticked row."""
    shown = found.assign(head=found["head"] + 1).drop(columns="layer")
    shown.insert(0, "where", [view.layer_title(path) for path in found["layer"]])
    shown = shown.dropna(axis="columns", how="all")
    helps = dict(_HELP)
    if (task := view.task) is not None:
        name, target = task.rule.score_name.capitalize(), task.rule.score_meaning
        helps[TASK] = f"{name}: how much of its attention {target}. The task requires this pattern."
    column = st.column_config
    bar = partial(column.ProgressColumn, width=95, min_value=0.0, max_value=1.0, format="%.3f")
    bars = {name: bar(score_title(name), help=text) for name, text in helps.items()}
    entropy = column.NumberColumn("entropy (bits)", width=95, format="%.2f", help=_ENTROPY)
    without = column.NumberColumn(width=95, format="%+.3f", help=_WITHOUT)
    look = bars | {"entropy": entropy} | dict.fromkeys(("estimated", "measured"), without)
    # a new order is a new table, without the old selection
    key = f"scores_{found['measured'].count()}" if "measured" in found else "scores"
    draw = partial(st.dataframe, shown, hide_index=True, column_config=look)
    event = draw(key=key, on_select="rerun", selection_mode="single-row")
    return next((row for row in event.selection.rows if row < len(found)), None)  # another model may have fewer heads


MEASURES = {"no": "not shown", "loss": "on the loss", "lead": "on one answer’s margin"}


def ask_effects(run: Reading) -> EffectOptions | None:
    """Ask which effect to measure; return the options of `analysis.head_effects`, or None for no effects."""
    if not run.has_logits or run.logits.shape[-1] < 2:
        return None
    measures = MEASURES if run.target_positions else {name: MEASURES[name] for name in ("no", "lead")}
    goal = choose("without", measures, "Effect of ablating each head (set to zero)", help="Ranks all heads.")
    if goal != "lead":
        return None if goal == "no" else {}
    open_outputs = [] if run.open_output is None else [run.open_output]
    outputs = [*run.target_positions, *open_outputs] or [run.logits.shape[1] - 1]
    best, label = run.logits[0].topk(2).indices.tolist(), run.adapter.token_labels
    names = {at: f"{at}: {label[best[at][0]]} over {label[best[at][1]]}" for at in outputs}
    key, position = "effects_at", outputs[-1]
    at = choose("at", names, "Output", default=position, widget=st.selectbox, width=320, key=key, called="position")
    return {"position": at}


def effects_of(view: View, run: Reading, options: EffectOptions, chosen: Selection) -> BackgroundJob[HeadEffects]:
    """Return the job that measures the effects. The enlarged head is always measured."""

    def work() -> Iterator[HeadEffects]:  # a generator, so that an exception becomes the problem of the job
        yield from estimate_head_effects(run, **options).measure_all()

    job = measuring_job("head_effects_job", f"{view.model}|{run.code}|{options}", work)
    found, head = job.latest, (chosen.layer, chosen.head)
    if found is not None and head in found.estimated:
        found.measure_heads(head)
    return job


def effects_part(
    view: View,
    run: Reading,
    job: BackgroundJob[HeadEffects],
    scores: pd.DataFrame,
    options: EffectOptions,
    look: ScoreOptions,
) -> pd.DataFrame:
    """Plot the effect of ablating each head against one of its scores, under a summary.

    Args:
        view: The view.
        run: The run whose heads are ablated.
        job: The job that measures.
        scores: The table of `analysis.head_scores` with the options `look`.
        options: The options of `analysis.head_effects`.
        look: The options of the scores.

    Returns:
        The plotted table of `analysis.head_effects`.
    """
    found = job.latest
    assert found is not None
    names = (TASK, "induction", *SCORES[:-1])
    kinds = {name: score_title(name) for name in names if bool(scores[name].notna().any())}
    kind = choose("score", kinds, "Plotted against the score", widget=st.selectbox, width=200)
    best = scores.loc[scores[kind].astype(float).idxmax()]
    found.measure_heads(([site.path for site in run.attention].index(str(best["layer"])), int(best["head"])))
    goal = minimal_pairs.title(run, found.measure)
    table, exact = found.table(), True if found.is_final else sorted(found.measured)
    frame = table.merge(scores[["layer", "head", kind]], on=["layer", "head"])
    cells = zip(frame["layer"], frame["head"], strict=True)
    names = [head_title(path, head, is_encoder_decoder=run.is_encoder_decoder) for path, head in cells]
    st.markdown(effect_summary(frame.assign(name=names), kind, escape_markdown(goal), found.before))
    st.markdown(describe_estimates(table, "heads"))
    follow_measuring(job, "head_effects_bar", "heads")
    call = picture_call(viz.head_effects, run, **options, **look, score=kind, exact=exact, table=table)
    shown(view, call, "head_effects")
    footer(view, "head_effects", [call], lambda: heads_from_1(frame))
    st.caption(
        f"Filled points are measured in a run with the head’s z set to 0 (before: {escape_markdown(goal)} {found.before:.3f}); "
        "hollow points are estimated from one gradient. Heads that back each other up show no effect."
    )
    return table


LEAST, WORTH = 0.02, 0.05
"""Smaller changes of the measure, absolute and relative to its value, count as no effect."""


def effect_summary(frame: pd.DataFrame, kind: str, goal: str, before: float) -> str:
    """Describe the largest effect, and the effect of the head with the highest score.

    Only measured effects above `LEAST` and `WORTH` count.

    Args:
        frame: The columns of `analysis.head_effects`, a score in the column `kind`, and `name`, the title of each head.
        kind: The column of the score.
        goal: The display name of the measure.
        before: The measure with all heads.
    """
    measured = frame.dropna(subset="measured")
    worth = max(LEAST, WORTH * abs(before))
    among = "" if len(measured) == len(frame) else f" among the {len(measured)} measured heads (of {len(frame)})"
    best = measured.loc[measured["measured"].abs().idxmax()]
    if abs(best["measured"]) < worth:
        most = at_most(abs(best["measured"]), 3)
        text = f"No single head{among} is needed: ablating any one changes the {goal} by {most} at most."
    else:
        now = before + best["measured"]
        text = f"Without **{best['name']}** the {goal} goes from {before:.3f} to {now:.3f}, the largest effect{among}."
    highest = frame.loc[frame[kind].astype(float).idxmax()]
    share, moved, name = float(highest[kind]), float(highest["measured"]), f"**{highest['name'].capitalize()}**"
    if share < CLEAR:
        return text
    best_score = f"the highest {score_title(kind)} score, {percent(share, 0)}"
    if abs(moved) >= worth and highest["name"] == best["name"]:
        return f"{text} It also has {best_score}."
    if abs(moved) >= worth:
        return f"{text} {name}, with {best_score}, is also needed: {moved:+.3f}."
    if abs(moved) < worth / 2:
        return f"{text} {name} has {best_score}, but is not needed here: {moved:+.3f} without it."
    return text
