"""The panels of a bug: its equations, the diagnosis, the attention of both models, and what to notice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import streamlit as st
import torch

from pages.bug_lab.choice import WORSE, Written, has_effect, moved, n_padding, state
from pages.components.attention_view import Selection, attention_choice, attention_view, choose_attention
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import is_dark
from pages.shared.picture import footer
from pages.shared.view import View
from xformer import viz
from xformer.bugs import BUGS, CRASHES, Bug
from xformer.bugs.lab import Lesson
from xformer.diagnosis.case import Finding
from xformer.diagnosis.diagnose import findings_frame
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.site import Site
from xformer.viz.packing import pack, pattern_layers
from xformer.viz.theme import RIGHT, WRONG

KEY = "bug_attention"
ICONS = {"error": ":material/error:", "warning": ":material/warning:", "note": ":material/info:"}
_STYLE = """<style>
.st-key-bug_wrong, .st-key-bug_right { padding: 0.4rem 1rem; border: 1px solid; border-left-width: 6px; border-radius: 0.6rem; }
.st-key-bug_wrong { border-color: %s; }
.st-key-bug_right { border-color: %s; }
</style>"""


def bug_card(bug: Bug) -> None:
    """The mistake, and two cards of one height: the wrong equation and the right one."""
    st.html(_STYLE % (WRONG.colour[is_dark()], RIGHT.colour[is_dark()]))
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
    """The mistakes that raise an error."""
    with st.expander("Mistakes that fail at once"):
        st.caption("These stop a program with an error, so there is nothing to see in a pattern.")
        st.dataframe(
            [{"mistake": crash.mistake, "what Python says": crash.error, "meant": crash.meant} for crash in CRASHES],
            hide_index=True,
            row_height=48,
            column_config={"mistake": st.column_config.TextColumn(width="large")},
            key="bug_crashes",
        )


def diagnosis_panel(bug: Bug, right: list[Finding], wrong: list[Finding]) -> None:
    """The findings of the diagnosis for the broken model, the one that names the bug first."""
    with st.container(border=True, key="bug_verdict"):
        if not wrong:
            st.markdown(":material/troubleshoot: **The diagnosis finds nothing**")
            st.caption(
                "This bug is in the training loop: the model is right at every step, so no check of a run can find it."
                if bug.shows == "in training"
                else "On this model the checks cannot tell the trace from that of a right model."
            )
            return
        is_named = any(finding.kind == bug.name for finding in wrong)
        how = "named from its trace and its weights" if is_named else "found in the trace, though not by this name"
        st.markdown(f":material/troubleshoot: **The diagnosis**, {how}")
        for finding in sorted(wrong, key=lambda finding: finding.kind != bug.name):
            title = BUGS[finding.kind].title if finding.kind in BUGS else finding.kind.replace("-", " ")
            st.markdown(f"{ICONS[finding.severity]} **{escape_markdown(title)}**: {escape_markdown(finding.sentence)}")
            rest = f" and {len(finding.where) - 4} more" if len(finding.where) > 4 else ""
            numbers = str(findings_frame([finding])["numbers"].iloc[0])
            measured = f"; measured there: {numbers}" if numbers else ""
            st.caption(escape_markdown(f"at {', '.join(finding.where[:4])}{rest}{measured}"))
        without = f"they find {len(right)}" if right else "they find nothing"
        st.caption(
            "The checks do not know which bug is switched on: they get the model and one run on a batch of the task’s inputs. "
            f"Without the bug {without}."
        )


def attention_panel(view: View, bug: Bug, both: Sequence[Reading]) -> None:
    """Draw the patterns of both models, at first the head that changed most."""
    layers, other = (pattern_layers(reading) for reading in both)
    about = (view.model, bug.name)
    if state().attention_of != about:
        state().attention_of = about
        most = _moved_most(both)
        paths = [site.path for site in both[0].sites]
        choose_attention(KEY, Selection() if most is None else Selection(paths.index(most[0]), most[1]))
    is_same = [item.pattern.shape for item in layers] == [item.pattern.shape for item in other]
    if not is_same:
        st.caption("With the bug a pattern has other axes, so only the broken model is drawn.")
    shown = (layers, other) if is_same else (other,)
    chosen = attention_choice(KEY, shown[0])
    chosen = attention_view(pack(*shown, selected=(chosen.layer, chosen.head)), key=KEY)
    calls = [Call(viz.attention, (run,), {"layer": chosen.layer, "head": chosen.head}) for run in both]
    footer(view, "bug-attention", calls, remark=["from xformer.bugs.lab import read_both"])


def _moved_most(both: Sequence[Reading]) -> tuple[str, int] | None:
    """The layer path and head whose pattern changed most."""
    far = moved(both)
    return max(far, key=far.__getitem__) if far else None


def hints(bug: Bug) -> list[str]:
    """What to look for, and where people make the mistake."""
    return [
        f"Look for: **{escape_markdown(bug.look_for)}**",
        f"Where people meet it: {escape_markdown(bug.seen_in)}.",
    ]


def bug_notes(bug: Bug, both: Sequence[Reading], lesson: Lesson | None) -> Iterator[str]:
    """What to notice, as Markdown."""
    yield from hints(bug)
    if both:
        if note := rows(both):
            yield note
        if not has_effect(both, bug):
            yield "On this model and input the bug has no effect on the answer: try another input."
    elif bug.shows == "in training":
        yield "This bug is in the training loop, so a run of the model is the same: **Train both** shows its effect."
    if lesson is not None and "loss_wrong" in lesson.rows[-1]:
        yield from _lesson_notes(bug, lesson)


def _lesson_notes(bug: Bug, lesson: Lesson) -> Iterator[str]:
    last = lesson.rows[-1]
    yield (
        f"After {lesson.step} steps of training the loss is {last['loss_right']:.3f} without the bug and "
        f"{last['loss_wrong']:.3f} with it; {percent(last['tokens_right'], 0)} and {percent(last['tokens_wrong'], 0)} of "
        "the tokens of unseen inputs are right."
    )
    if last["tokens_right"] < 0.5:
        yield (
            "So few steps are not enough for this model even without the bug. Train for longer, or choose "
            "`reverse-mirror`, which learns its task in a few dozen steps."
        )
    if bug.name != "no-clipping":
        return
    clipped = sum(row["gradient_right"] > 1 for row in lesson.rows)
    if clipped:
        yield (
            f"The gradient of the right run was longer than 1, and so was clipped, at {clipped} of {len(lesson.rows)} reports. "
            "AdamW divides each gradient by its own recent size, which hides most of the effect of a long one."
        )
    else:
        yield "The gradient of the right run was never longer than 1, so nothing was clipped: choose ten times the rate."


def effect(view: View, bug: Bug, both: Sequence[Reading], alone: Written) -> str:
    """The number of right tokens and the loss, without the bug and with it."""
    right, wrong = both
    n, is_finite = len(right.answer), math.isfinite(wrong.loss)
    if right.trace.logits.equal(wrong.trace.logits):
        return "The two runs are equal to the last bit: the bug has no effect on this model."
    words = ""
    if right.has_right_answer:
        words = f"{right.n_correct} of {n} tokens are right without the bug, {wrong.n_correct} with it; "
    words += f"the loss is {right.loss:.4f} nats without it and "
    words += f"{wrong.loss:.4f} with it." if is_finite else "not a number with it."
    if bug.shows == "when fresh":
        guess = math.log(view.shape.vocab_size)
        words += f" Both are untrained; guessing costs ln(vocabulary) = {guess:.3f}."
        if not is_finite or wrong.loss <= guess + WORSE:
            words += " The bug is in the patterns, not in the loss."
    if padding := n_padding(right):
        words += f" The input is padded with {padding} positions."
    if alone and right.has_right_answer and wrong.n_correct == n and alone[1] != alone[0]:
        words += " Under teacher forcing its tokens are right; free-running they are not."
    return words


def rows(both: Sequence[Reading]) -> str:
    """The row sums and largest weights of the head that changed most; "" where they are the same with the bug."""
    (right, wrong), most = both, _moved_most(both)
    if most is None:
        return ""
    path, head = most
    empty = wrong[f"{path}.pattern"][0, head].isnan().any(dim=-1)  # [query]
    if empty.any():
        lost = [site.path for site in wrong.sites if wrong[f"{site.path}.pattern"].isnan().all()]
        spread = f" In `{lost[0]}` every row is." if lost else ""
        return f"{int(empty.sum())} of {len(empty)} rows of `{path}`, head {head + 1}, are not a number.{spread}"
    sums, peak = _sums_and_peak(wrong, path, head)
    sums_before, peak_before = _sums_and_peak(right, path, head)
    words = []
    if sums != sums_before:
        words.append(f"its rows sum to {sums} with the bug and to {sums_before} without")
    if peak != peak_before:
        words.append(f"the largest weight of a row is {peak} on average with the bug and {peak_before} without")
    return f"The head that changes most is `{path}`, head {head + 1}: {'; '.join(words)}." if words else ""


def _sums_and_peak(run: Reading, path: str, head: int) -> tuple[str, str]:
    """The range of the row sums and the mean of the rows' largest weights, as text."""
    pattern = run[f"{path}.pattern"][0, head]  # [query, key]
    real = run.trace.real(Site.parse(path).query_stack)
    pattern = pattern if real is None else pattern[: int(real.sum())]
    sums = pattern.sum(dim=-1)  # [query]
    low, high = f"{sums.min().item():.3f}", f"{sums.max().item():.3f}"
    return low if low == high else f"{low} to {high}", f"{torch.amax(pattern, dim=-1).mean().item():.2f}"
