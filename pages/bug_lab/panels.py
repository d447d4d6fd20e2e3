"""What the bug is: the mistake in a sentence, the wrong equation beside the right one, and where it is met."""

from __future__ import annotations

import math
from collections.abc import Sequence

import streamlit as st
import torch

from pages.bug_lab.choice import WORSE, Written, moved, n_padding, shows_something, state
from pages.components.attention_view import Selection, attention_choice, attention_view, choose_attention
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import is_dark
from pages.shared.picture import footer
from pages.shared.view import View
from xformer import viz
from xformer.bugs import BUGS, CRASHES, Bug
from xformer.bugs.lesson import Lesson
from xformer.diagnosis.case import Finding
from xformer.diagnosis.diagnose import findings_frame
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.site import Site
from xformer.viz.packing import pack, pattern_layers
from xformer.viz.theme import RIGHT, WRONG

_STYLE = """<style>
.st-key-bug_wrong, .st-key-bug_right {
  padding: 0.2rem 1rem; border-radius: 0.6rem; border: 1px solid; border-left-width: 6px; }
.st-key-bug_wrong { border-color: %s; }
.st-key-bug_right { border-color: %s; }
.st-key-bug_wrong [data-testid=stText], .st-key-bug_right [data-testid=stText] { font-size: 1.15rem; white-space: pre-wrap; }
</style>"""


def bug_card(bug: Bug) -> None:
    """The mistake, its equation and the right one."""
    st.html(_STYLE % (WRONG.colour[is_dark()], RIGHT.colour[is_dark()]))
    st.text(bug.mistake)
    left, right = st.columns(2, gap="small")
    for place, key, name, equation in (
        (left, "bug_wrong", f"{WRONG.mark} with the bug", bug.equation_wrong),
        (right, "bug_right", f"{RIGHT.mark} as it should be", bug.equation_right),
    ):
        with place, st.container(key=key, horizontal=True, vertical_alignment="center", gap="small", height="stretch"):
            st.caption(name, width="content")
            st.text(equation, width="content")


def crashes_panel() -> None:
    """The mistakes that nobody has to look for, since Python finds them."""
    with st.expander("Mistakes that fail at once"):
        st.caption("These stop a program with an error, so there is nothing to see in a pattern.")
        st.dataframe(
            [{"mistake": crash.mistake, "what Python says": crash.error, "meant": crash.meant} for crash in CRASHES],
            hide_index=True,
            row_height=48,
            column_config={"mistake": st.column_config.TextColumn(width="large")},
            key="bug_crashes",
        )


ICONS = {"error": ":material/error:", "warning": ":material/warning:", "note": ":material/info:"}


def verdict_panel(bug: Bug, right: list[Finding], wrong: list[Finding]) -> None:
    """The finding that names the bug first, then the others; and what the same checks find without the bug."""
    with st.container(border=True, key="bug_verdict"):
        if not wrong:
            st.markdown(":material/troubleshoot: **The diagnosis finds nothing**")
            st.caption(
                "This bug is in the training loop: the model is sound at every step, so no check of a run can find it."
                if bug.shows == "in training"
                else "On this model the bug leaves no trace that the checks can tell from a right model’s."
            )
            return
        named = any(finding.kind == bug.name for finding in wrong)
        how = "named from its trace and its weights" if named else "found in the trace, though not by this name"
        st.markdown(f":material/troubleshoot: **The diagnosis**, {how}")
        for finding in sorted(wrong, key=lambda finding: finding.kind != bug.name):
            title = BUGS[finding.kind].title if finding.kind in BUGS else finding.kind.replace("-", " ")
            st.markdown(f"{ICONS[finding.severity]} **{escape_markdown(title)}**: {escape_markdown(finding.sentence)}")
            st.caption(escape_markdown(_where(finding)))
        st.caption(
            "The checks know nothing of the switch above: they got the model and one run of a batch of the task’s inputs. "
            + (
                "Of the model without the bug they find nothing."
                if not right
                else f"Without the bug they find {len(right)}."
            )
        )


def _where(finding: Finding) -> str:
    places = ", ".join(finding.where[:4]) + (f" and {len(finding.where) - 4} more" if len(finding.where) > 4 else "")
    numbers = str(findings_frame([finding])["numbers"].iloc[0])
    return f"at {places}" + (f"; measured there: {numbers}" if numbers else "")


KEY = "bug_attention"


def attention_panel(view: View, bug: Bug, both: Sequence[Reading]) -> None:
    """Draw both, beginning with the head that moved most."""
    layers, other = (pattern_layers(reading) for reading in both)
    about = (view.model, bug.name)
    if state().attention_of != about:
        state().attention_of = about
        choose_attention(KEY, _moved_most(both))
    chosen = attention_choice(KEY, layers)
    same = [item.pattern.shape for item in layers] == [item.pattern.shape for item in other]
    if same:
        chosen = attention_view(pack(layers, other, selected=(chosen.layer, chosen.head)), key=KEY)
    else:
        st.caption("With the bug a pattern has other axes than without it, so the broken one stands alone here.")
        chosen = attention_choice(KEY, other)
        chosen = attention_view(pack(other, selected=(chosen.layer, chosen.head)), key=KEY)
    calls = [Call(viz.attention, (run,), {"layer": chosen.layer, "head": chosen.head}) for run in both]
    footer(view, "bug-attention", calls, remark=["from xformer.bugs.read import read_both"])


def _moved_most(both: Sequence[Reading]) -> Selection:
    far = moved(both)
    if not far:
        return Selection()
    path, head = max(far, key=far.__getitem__)
    return Selection([site.path for site in both[0].sites].index(path), head)


def look_for(bug: Bug) -> str:
    """What to look at, as a hint: whether it is so here, the numbers say."""
    return f"Look for: **{escape_markdown(bug.look_for)}**"


def seen_in(bug: Bug) -> str:
    """Where the mistake is met."""
    return f"Where people meet it: {escape_markdown(bug.seen_in)}."


def bug_notes(view: View, bug: Bug, both: Sequence[Reading], alone: Written, lesson: Lesson | None) -> list[str]:
    """One paragraph each."""
    notes = [look_for(bug), seen_in(bug)]
    if both:
        notes.append(effect(view, bug, both, alone))
        if note := rows(both):
            notes.append(note)
        if not shows_something(both, bug):
            notes.append("On this model and input nothing of the bug is to be seen in the answer: try another input.")
    elif bug.shows == "in training":
        notes.append(
            "This bug is in the training loop. In one run there is nothing to see of it, because the model is the same: "
            "**Train both** shows what it does."
        )
    if lesson is not None and "loss_wrong" in lesson.rows[-1]:
        last = lesson.rows[-1]
        notes.append(
            f"After {lesson.step} steps of training the loss is {last['loss_right']:.3f} without the bug and "
            f"{last['loss_wrong']:.3f} with it; {percent(last['tokens_right'], 0)} and {percent(last['tokens_wrong'], 0)} of "
            "the tokens of unseen inputs are right."
        )
        if last["tokens_right"] < 0.5:
            notes.append(
                "So few steps are not enough for this model even without the bug. Train for longer, or choose "
                "`reverse-mirror`, which learns its task in a few dozen steps."
            )
        if bug.name == "no-clipping":
            cut = sum(row["gradient_right"] > 1 for row in lesson.rows)
            if cut:
                notes.append(
                    f"The gradient of the right run was longer than 1, and so was cut, at {cut} of {len(lesson.rows)} reports. "
                    "AdamW divides each gradient by its own recent size, which hides most of what a long one would do."
                )
            else:
                notes.append(
                    "At none of the reports was the gradient of the right run longer than 1, so there was nothing to cut: "
                    "choose ten times the rate."
                )
    return notes


def effect(view: View, bug: Bug, both: Sequence[Reading], alone: Written) -> str:
    """How many tokens are right and what the loss is, without and with."""
    right, wrong = both
    n = len(right.answer)
    if right.trace.logits.equal(wrong.trace.logits):
        return "The two runs are equal to the last bit: this model does the same with this bug as without it."
    words = ""
    if right.has_right_answer:
        words = f"{right.n_correct} of {n} tokens are right without the bug, {wrong.n_correct} with it; "
    words += f"the loss is {right.loss:.4f} nats without it and "
    words += f"{wrong.loss:.4f} with it." if math.isfinite(wrong.loss) else "with it no number at all."
    if bug.shows == "when fresh":
        guess = math.log(view.shape.vocab_size)
        words += f" Both are untrained, so neither can know; guessing costs ln(vocabulary) = {guess:.3f}."
        if not math.isfinite(wrong.loss) or wrong.loss <= guess + WORSE:
            words += " The bug is in the patterns, not in the loss."
    if padding := n_padding(right):
        words += f" {padding} cells of padding stand behind the input."
    if alone and right.has_right_answer and wrong.n_correct == n and alone[1] != alone[0]:
        words += " Read with the right answer before it, it looks sound; writing alone, it is not."
    return words


def rows(both: Sequence[Reading]) -> str:
    """What the rows of the head that moved most sum to, and how sharp they are; "" where that is the same with the bug."""
    right, wrong = both
    far = moved(both)
    if not far:
        return ""
    path, head = max(far, key=far.__getitem__)
    empty = wrong[f"{path}.pattern"][0, head].isnan().any(dim=-1)  # [query]
    if empty.any():
        lost = [site.path for site in wrong.sites if wrong[f"{site.path}.pattern"].isnan().all()]
        spread = f" In `{lost[0]}` every row is." if lost else ""
        return f"{int(empty.sum())} of {len(empty)} rows of `{path}`, head {head + 1}, are not a number.{spread}"
    low, high, peak = _rows(wrong, path, head)
    low_before, high_before, peak_before = _rows(right, path, head)
    words = []
    if (with_it := _span(low, high)) != (without := _span(low_before, high_before)):
        words.append(f"its rows sum to {with_it} with the bug and to {without} without")
    if f"{peak:.2f}" != f"{peak_before:.2f}":
        words.append(f"the largest weight of a row is {peak:.2f} on average with the bug and {peak_before:.2f} without")
    if not words:
        return ""
    return f"The head that changes most is `{path}`, head {head + 1}: {'; '.join(words)}."


def _rows(run: Reading, path: str, head: int) -> tuple[float, float, float]:
    pattern = run[f"{path}.pattern"][0, head]  # [query, key]
    real = run.trace.real(Site.parse(path).query_stack)
    pattern = pattern if real is None else pattern[: int(real.sum())]
    sums = pattern.sum(dim=-1)
    return sums.min().item(), sums.max().item(), torch.amax(pattern, dim=-1).mean().item()


def _span(low: float, high: float) -> str:
    return f"{low:.3f}" if f"{low:.3f}" == f"{high:.3f}" else f"{low:.3f} to {high:.3f}"
