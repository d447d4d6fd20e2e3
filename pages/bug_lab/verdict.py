"""What the diagnosis says of the broken model: the bug by its name, the reason and the numbers, read off a trace alone."""

from __future__ import annotations

import streamlit as st

from pages.shared.escape_markdown import escape_markdown
from xformer.bugs import BUGS, Bug
from xformer.diagnosis.case import Finding
from xformer.diagnosis.diagnose import findings_frame

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
