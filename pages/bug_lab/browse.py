"""Each bug next to the correct model: patterns, answers, diagnosis, training of both, and what to notice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st
import torch

from pages.bug_lab.lab import (
    NAME,
    WORSE,
    Decoded,
    decoded,
    fitting,
    has_effect,
    mistakes,
    moved,
    readings,
    shows_padding,
    state,
)
from pages.components.attention_view import Selection, attention_choice, attention_view, choose_attention
from pages.components.elements import Lane, prediction_strip
from pages.compute import models
from pages.compute.background_job import TICK, BackgroundJob, interruptible_progress
from pages.compute.call import is_dark, picture_call
from pages.compute.models import card_of_model, shown_path
from pages.compute.picture import footer, shown, toolbar
from pages.controls import embed
from pages.controls.text import escape_markdown, headline, what_to_notice
from pages.controls.widgets import choose, choose_unlinked, seed, warn_unknown
from pages.state.inputs import right_places
from pages.state.link import keep_widget_value
from pages.state.session import WANTED
from pages.state.view import View, editing
from xformer import viz
from xformer.doctor.equations.report import mistakes_frame
from xformer.doctor.faults import BUGS, CRASHES, Bug
from xformer.doctor.faults.attention import MASK_BUGS, ROLE_BUGS, SOFTMAX_BUGS
from xformer.doctor.faults.lab import PairedTraining, lab_preset, paired_training
from xformer.doctor.faults.network import COMPONENT_BUGS, END_BUGS, RESIDUAL_BUGS, TRAINING_BUGS, WEIGHT_BUGS
from xformer.errors import XformerError
from xformer.formatting import percent
from xformer.layer_path import LayerPath
from xformer.reading import Reading
from xformer.viz.packing import pack, pattern_layers
from xformer.viz.theme import RIGHT, WRONG, pick
from xformer.viz.training_curves import PAIRED_TRAINING_CURVES

GROUPS: dict[str, tuple[Bug, ...]] = {
    "softmax, scale": SOFTMAX_BUGS,
    "masks": MASK_BUGS,
    "q, k, v, cross": ROLE_BUGS,
    "residual": RESIDUAL_BUGS,
    "weights": WEIGHT_BUGS,
    "positions, loss": END_BUGS,
    "training": TRAINING_BUGS,
    "components": COMPONENT_BUGS,
}
FIRST_BUG = "no_scale"
OWN = "bug_own"
"""The session key for showing the chosen model even where the bug has no effect on it."""
SHOW = {"attention": "Attention", "answer": "Answer", "diagnosis": "Diagnosis", "training": "Train both"}
KEY = "bug_attention"
ICONS = {"error": ":material/error:", "warning": ":material/warning:", "note": ":material/info:"}
_CODE = ["from xformer.doctor.faults.lab import read_both"]
_STYLE = """<style>
.st-key-bug_wrong, .st-key-bug_right { padding: 0.4rem 1rem; border: 1px solid; border-left-width: 6px; border-radius: 0.6rem; }
.st-key-bug_wrong { border-color: %s; }
.st-key-bug_right { border-color: %s; }
</style>"""


def browse(chosen: View, wanted: str | None) -> None:
    """Draw the bug `wanted`, or the one that the visitor chooses, next to the correct model."""
    with st.container(gap="xsmall"):
        finding, controls = st.container(), toolbar()
        pictures, fit = st.container(), st.container()
    with controls:
        bug = _ask_bug(wanted)
    with fit:
        view, own = _ask_fitting(chosen, bug)
    if not bug.applies_to(view.config):
        with pictures:
            needs = f"This model cannot have this bug: it needs {escape_markdown(bug.rule)}."
            st.info(needs, icon=":material/bug_report:")
        chosen.share(bug=bug.name, **own)
        bug_card(bug)
        what_to_notice(bug_hints(bug))
        return
    with controls:
        panels = {name: SHOW[name] for name in ("training", "diagnosis")} if bug.shows == "in training" else SHOW
        name = "loop" if bug.shows == "in training" else "show"
        show = choose(name, panels, "Show", key=f"bug_{name}", hide_label=True)
    both, free_running = _both(view, bug)
    with finding:
        headline(effect_sentence(view, bug, both, free_running) if both else "")
    with pictures, embed.picture():
        if show == "answer" and both:
            _predictions(view, both, free_running, is_own=view.model == chosen.model)
        elif show == "attention" and both:
            attention_panel(view, bug, both)
        elif show == "diagnosis":
            diagnosis_panel(view, bug)
    ticks = show == "training" and _is_training()

    def rest() -> None:
        with embed.picture("training"):
            link = training_panel(view, bug) if show == "training" else {}
        chosen.share(bug=bug.name, **own, **link)
        bug_card(bug)
        job = state().trainings.get(_about(view, bug))
        what_to_notice(bug_notes(bug, both, job and job.latest))
        if show == "training" and _is_training() != ticks:
            st.rerun()  # to start or stop the periodic updates

    st.fragment(rest, run_every=TICK if ticks else None)()
    crashes_panel()


def _ask_bug(wanted: str | None) -> Bug:
    """Ask for a bug; `wanted` is the one in the link."""
    if wanted is not None and wanted not in BUGS:
        warn_unknown("bug")
    if wanted in BUGS or st.session_state.get(NAME) not in BUGS:
        st.session_state[NAME] = wanted if wanted in BUGS else FIRST_BUG
    keep_widget_value(NAME)
    titles = {bug.name: f"{group}: {bug.title}" for group, bugs in GROUPS.items() for bug in bugs}
    ask = partial(st.selectbox, key=NAME, persist_state="session", label_visibility="collapsed", width=380)
    return BUGS[ask("Bug", list(titles), format_func=titles.__getitem__)]


def _ask_fitting(view: View, bug: Bug) -> tuple[View, dict[str, str]]:
    """Return the model and input to show the bug on, and what the link keeps.

    Where the bug has no effect on the chosen model, another one is shown, with the reason and buttons to choose. The model of
    the other screens does not change.
    """
    seed("own", (0, 1), 0, key=OWN)
    name = escape_markdown(models.title_of(view.model))
    other, reason = fitting(view, bug)
    if not reason:
        return view, {}
    is_own, other_name = bool(st.session_state[OWN]), escape_markdown(other.model)
    own = f":material/info: This bug has no effect on {name}: {reason}."
    replaced = f":material/swap_horiz: Shown on **{other_name}**; the bug has no effect on {name}: {reason}."
    words = f"Show it on {other_name}" if is_own else f"Show {name} anyway"
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="bug_fit"):
        st.caption(own if is_own else replaced, width="content")
        if view.task is not None and bug.applies_to(view.config):
            turn = partial(st.session_state.__setitem__, OWN, int(not is_own))
            st.button(words, key="bug_fit_own", on_click=turn)
        if not is_own:
            choose_it, key = partial(st.session_state.__setitem__, WANTED, other.model), f"bug_model_{other.model}"
            st.button(f"Choose {other_name}", key=key, on_click=choose_it)
    return (view, {"own": "1"}) if is_own else (other, {})


def _both(view: View, bug: Bug) -> tuple[list[Reading], Decoded]:
    """Return both readings and the tokens that both models decode; where there are none, show the reason."""
    if bug.shows == "in training":
        return [], []
    if not shows_padding(view, bug):
        st.info("This bug needs padding, and this model’s input has none.", icon=":material/info:")
        return [], []
    try:
        with interruptible_progress("Both models decode") as step:
            return readings(view, bug), decoded(view, bug, step)
    except XformerError as error:
        st.error(escape_markdown(f"The changes of this run do not fit the broken model. {error}"))
        return [], []


def _predictions(view: View, both: list[Reading], free_running: Decoded, *, is_own: bool) -> None:
    """Draw the input, the predictions of both models, and the tokens that both decode free-running."""
    lanes = view.kind.rows(both[0], both[1], "with the bug")
    if math.isnan(both[1].loss):
        lanes[-1] = replace(lanes[-1], tokens=("NaN",) * len(both[1].answer))
    label, answer = view.adapter.token_labels, both[0].answer
    for name, tokens in zip(("free-running", "free-running, bug"), free_running, strict=False):
        if tokens:
            names, right = tuple(label[token] for token in tokens), right_places(tokens, answer)
            lanes.append(Lane(name, names, right, offset=lanes[-1].offset))
    prediction_strip(lanes, key="bug_strip", editing=editing(view) if is_own else None)
    if free_running and not free_running[1]:
        st.caption("Free-running, the broken model decodes nothing: its logits are not finite.")


def bug_card(bug: Bug) -> None:
    """Draw the mistake, and next to each other the wrong and the correct equation."""
    st.html(_STYLE % (pick(WRONG.colour, is_dark()), pick(RIGHT.colour, is_dark())))
    st.text(bug.mistake)
    cards = {
        "bug_wrong": (f"{WRONG.mark} With the bug", bug.equation_wrong),
        "bug_right": (f"{RIGHT.mark} As it should be", bug.equation_right),
    }
    for column, (key, (title, equation)) in zip(st.columns(2, gap="small"), cards.items(), strict=True):
        with column, st.container(key=key, gap="xsmall", height="stretch"):
            st.markdown(f":small[{title}]")
            st.text(equation)


def crashes_panel() -> None:
    """Draw the list of mistakes that raise an error."""
    with st.expander("Mistakes that fail at once"):
        rows = [{"mistake": crash.mistake, "error message": crash.error, "intended": crash.meant} for crash in CRASHES]
        wide = {"mistake": st.column_config.TextColumn(width="large")}
        st.dataframe(rows, hide_index=True, row_height=48, column_config=wide, key="bug_crashes")


def diagnosis_panel(view: View, bug: Bug) -> None:
    """Draw the mistakes that the diagnosis finds in the broken model, beginning with the one that identifies the bug."""
    with st.spinner("Checking both models …"):
        right, wrong = mistakes(view.model, bug.name)
    with st.container(border=True, key="bug_verdict"):
        if not wrong:
            why = "on this model the checks cannot tell its trace from that of a correct model"
            if bug.shows == "in training":
                why = "a bug in the training loop does not change what the model computes"
            st.markdown(f":material/troubleshoot: **The diagnosis finds nothing**: {why}.")
            return
        is_named = any(mistake.kind == bug.name for mistake in wrong)
        how = "identified from its trace and weights" if is_named else "detected in the trace, but not identified"
        st.markdown(f":material/troubleshoot: **The diagnosis**: {how}")
        for mistake in sorted(wrong, key=lambda mistake: mistake.kind != bug.name):
            title = BUGS[mistake.kind].title if mistake.kind in BUGS else mistake.kind.replace("_", " ")
            st.markdown(f"{ICONS[mistake.severity]} **{escape_markdown(title)}**: {escape_markdown(mistake.sentence)}")
            rest = f" and {len(mistake.where) - 4} more" if len(mistake.where) > 4 else ""
            numbers = str(mistakes_frame([mistake])["numbers"].iloc[0])
            measured = f"; measured there: {numbers}" if numbers else ""
            st.caption(escape_markdown(f"at {', '.join(mistake.where[:4])}{rest}{measured}"))
        st.caption(
            "The checks do not know which bug is active; they get the model and one run on a batch of the task’s inputs. "
            f"Without the bug they find {len(right) or 'nothing'}."
        )


def attention_panel(view: View, bug: Bug, both: Sequence[Reading]) -> None:
    """Draw the patterns of both models, at first of the head that changed most."""
    layers, other = (pattern_layers(reading) for reading in both)
    if state().attention_of != (view.model, bug.name):
        state().attention_of = (view.model, bug.name)
        most, paths = _most_changed_head(both), [site.path for site in both[0].layer_paths]
        choose_attention(KEY, Selection() if most is None else Selection(paths.index(most[0]), most[1]))
    is_same = [item.pattern.shape for item in layers] == [item.pattern.shape for item in other]
    if not is_same:
        st.caption("With the bug the pattern has another shape, so only the broken model is drawn.")
    drawn = (layers, other) if is_same else (other,)
    chosen = attention_choice(KEY, drawn[0])
    chosen = attention_view(pack(*drawn, selected=(chosen.layer, chosen.head)), key=KEY)
    calls = [picture_call(viz.attention, run, layer=chosen.layer, head=chosen.head) for run in both]
    footer(view, "bug-attention", calls, remark=_CODE)


def _most_changed_head(both: Sequence[Reading]) -> tuple[str, int] | None:
    """Return the layer path and the head whose pattern changed most."""
    changes = moved(both)
    return max(changes, key=changes.__getitem__) if changes else None


def effect_sentence(view: View, bug: Bug, both: Sequence[Reading], free_running: Decoded) -> str:
    """Describe the number of right tokens and the loss, without the bug and with it."""
    right, wrong = both
    n, is_finite = len(right.answer), math.isfinite(wrong.loss)
    if right.trace.logits.equal(wrong.trace.logits):
        return "The two runs are bit-identical: the bug has no effect on this model."
    words = ""
    if right.has_right_answer:
        words = f"{right.n_correct} of {n} tokens are right without the bug, {wrong.n_correct} with it; "
    words += f"the loss is {right.loss:.4f} nats without it and "
    words += f"{wrong.loss:.4f} with it." if is_finite else "not a number with it."
    guess = math.log(view.shape.vocab_size)
    if bug.shows == "when fresh" and (not is_finite or wrong.loss <= guess + WORSE):
        both_are = f"Both are untrained (uniform guessing: {guess:.3f} nats)"
        words += f" {both_are}: the bug shows in the patterns, not in the loss."
    if free_running and right.has_right_answer and wrong.n_correct == n and free_running[1] != free_running[0]:
        words += " With the bug its tokens are right under teacher forcing, but not free-running."
    return words


def bug_hints(bug: Bug) -> list[str]:
    """Return what to look for, and where the mistake occurs."""
    look_for, seen_in = escape_markdown(bug.look_for), escape_markdown(bug.seen_in)
    return [f"Look for: **{look_for}**", f"Where it occurs: {seen_in}."]


def bug_notes(bug: Bug, both: Sequence[Reading], latest: PairedTraining | None) -> Iterator[str]:
    """Yield what to notice, as Markdown."""
    yield from bug_hints(bug)
    if both:
        yield row_note(both)
    if both and not has_effect(both, bug):
        yield "On this model and input the bug has no effect on the answer: try another input."
    if latest is None or "loss_wrong" not in latest.rows[-1]:
        return
    last = latest.rows[-1]
    yield (
        f"After {latest.step} steps of training the loss is {last['loss_right']:.3f} without the bug and "
        f"{last['loss_wrong']:.3f} with it; {percent(last['tokens_right'], 0)} and {percent(last['tokens_wrong'], 0)} of "
        "the tokens of unseen inputs are right."
    )
    if bug.name == "no_clipping":
        clipped = sum(row["gradient_right"] > 1 for row in latest.rows)
        yield (
            f"The gradient of the correct run was clipped at {clipped} of {len(latest.rows)} reports. AdamW divides each "
            "gradient by its own recent size, which hides most of the effect of a large one."
        )


def row_note(both: Sequence[Reading]) -> str:
    """Describe the row sums and largest weights of the head that changed most; "" where the bug does not change them."""
    if (most := _most_changed_head(both)) is None:
        return ""
    path, head = most
    broken = both[1][f"{path}.pattern"][0, head].isnan().any(dim=-1)  # [query]
    if broken.any():
        return f"{int(broken.sum())} of {len(broken)} rows of `{path}`, head {head + 1}, are not a number."
    (sums_before, peak_before), (sums, peak) = (_sums_and_peak(run, path, head) for run in both)
    words = []
    if sums != sums_before:
        words.append(f"its rows sum to {sums} with the bug and to {sums_before} without")
    if peak != peak_before:
        words.append(f"the largest weight of a row is {peak} on average with the bug and {peak_before} without")
    return f"The head that changes most is `{path}`, head {head + 1}: {'; '.join(words)}." if words else ""


def _sums_and_peak(run: Reading, path: str, head: int) -> tuple[str, str]:
    """Return the range of the row sums and the mean of the rows' largest weights, as text."""
    pattern = run[f"{path}.pattern"][0, head]  # [query, key]
    real = run.trace.real(LayerPath.parse(path).query_stack)
    pattern = pattern if real is None else pattern[: int(real.sum())]
    low, high = (f"{value:.3f}" for value in pattern.sum(dim=-1).aminmax())
    return low if low == high else f"{low} to {high}", f"{torch.amax(pattern, dim=-1).mean().item():.2f}"


STEPS = (200, 800)
MAX_KEPT = 6
BUDGET = 0.35
"""Seconds spent training in one run of the page."""
RATES = {1: "usual rate", 10: "10 × usual rate"}


def training_panel(view: View, bug: Bug) -> dict[str, str]:
    """Draw the button, the progress and the curves; return what the link keeps."""
    seed("rate", list(RATES), 10 if bug.name == "no_clipping" else 1, key=_rate_key(bug))
    seed("steps", STEPS, STEPS[0], key="bug_steps")
    job: BackgroundJob[PairedTraining] | None = state().trainings.get(_about(view, bug))
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="bug_train_bar"):
        start, is_off = partial(_start, view, bug), job is not None and job.is_running
        button = partial(st.button, "Train both", type="primary", icon=":material/play_arrow:")
        button(key="bug_train", on_click=start, disabled=is_off)
        choose_unlinked("Steps", {steps: f"{steps} steps" for steps in STEPS}, "bug_steps")
        choose_unlinked("Rate", RATES, _rate_key(bug))
        if job is not None and job.is_running:
            job.advance(BUDGET)
        if job is not None and job.latest is not None:
            st.progress(job.latest.step / job.latest.steps, f"step {job.latest.step} of {job.latest.steps}", width=220)
            if job.is_running:
                st.button("Cancel", key="bug_train_cancel", on_click=job.cancel)
    if job is not None and job.latest is not None:
        _show(view, bug, job.latest)
    elif job is not None and job.problem:
        st.info(escape_markdown(job.problem), icon=":material/error:")
    else:
        st.caption("Two new models of this size, with the same initial weights and batches: one correct, one broken.")
    return {"rate": str(st.session_state[_rate_key(bug)]), "steps": str(st.session_state["bug_steps"])}


def _rate_key(bug: Bug) -> str:
    """Return the key of the rate. Without clipping it defaults to ten times the usual rate, to get large gradients."""
    return "bug_rate_unclipped" if bug.name == "no_clipping" else "bug_rate"


def _is_training() -> bool:
    return any(job.is_running for job in state().trainings.values())


def _about(view: View, bug: Bug) -> str:
    rate, steps = st.session_state.get(_rate_key(bug), 1), st.session_state.get("bug_steps", STEPS[0])
    return f"{view.model}|{bug.name}|{rate}|{steps}"


def _start(view: View, bug: Bug) -> None:
    """Start a training. All others of this visit are cancelled; the last `MAX_KEPT` stay available."""
    jobs, about, steps = state().trainings, _about(view, bug), st.session_state["bug_steps"]
    for job in jobs.values():
        job.cancel()
    jobs.pop(about, None)
    while len(jobs) >= MAX_KEPT:
        jobs.pop(next(iter(jobs)))
    preset = lab_preset(view.config, view.own.task.config, steps, **_recipe(view, bug))
    jobs[about] = BackgroundJob(paired_training(preset, bug, steps), about)


def _recipe(view: View, bug: Bug) -> dict[str, Any]:
    """Return the learning rate of the model’s training times the chosen factor, and a small batch size."""
    recipe, rate = card_of_model(view.model).get("train", {}), st.session_state[_rate_key(bug)]
    return {"peak_lr": recipe.get("peak_lr", 3e-3) * rate, "batch_size": min(32, recipe.get("batch_size", 32))}


def _show(view: View, bug: Bug, latest: PairedTraining) -> None:
    how = {"steps": latest.steps, **_recipe(view, bug)} | ({} if latest.is_final else {"until": latest.step})
    arguments = ", ".join(f"{name}={value!r}" for name, value in how.items())
    latest = replace(latest, code=f"train_both({shown_path(view.model)!r}, {bug.name!r}, {arguments})")
    calls = [picture_call(viz.paired_training_curves, latest, what=what) for what in PAIRED_TRAINING_CURVES]
    for place, call, curves in zip(st.columns(3, gap="medium"), calls, PAIRED_TRAINING_CURVES.values(), strict=True):
        with place:
            st.markdown(f"**{curves.title}**")
            shown(view, call, f"bug_{call.options['what']}")
    if latest.problem:
        st.info(f"With the bug: {escape_markdown(latest.problem)}", icon=":material/error:")
    code = ["from xformer.doctor.faults.lab import train_both"]
    footer(view, "training", calls, pd.DataFrame(latest.rows), remark=code)
