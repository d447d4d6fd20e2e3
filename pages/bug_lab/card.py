"""What the bug is: the mistake in a sentence, the wrong equation beside the right one, and where it is met."""

from __future__ import annotations

import streamlit as st

from pages.shared.layout import is_dark
from xformer.bugs import CRASHES, Bug
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
