"""“Rollout”: how much of each input token could have reached each position after every layer of a stack."""

from __future__ import annotations

import streamlit as st

from pages.shared.layout import caption, is_dark
from pages.shared.notebook import footer
from pages.shared.view import View
from xformer.analysis.rollout import rollout
from xformer.reading import Reading
from xformer.viz.rollout import MOST, rollout_chart, rollout_frame


def rollout_panel(view: View, run: Reading) -> None:
    """Draw the rollout of each stack that the model has."""
    caption(
        "Half of a stream passes by each attention, half is mixed by the mean of its heads (Abnar & Zuidema 2020). "
        "Rollout multiplies these through the layers: it shows where information could have come from, by the patterns "
        "alone; what values, norms and feed-forward layers do to it is not in it."
    )
    for stack in ("encoder", "decoder") if view.is_pair else (None,):
        names = view.reads(run, stack)
        frame = rollout_frame(rollout(run.trace, stack).numpy(force=True), names)
        if len(names) > MOST:
            st.caption(f"{len(names)} tokens: neighbours are drawn as one, {len(names)} in at most {MOST} rows.")
        st.altair_chart(rollout_chart(frame, dark=is_dark()), key=f"rollout_{stack}", width="content")
        footer(
            view,
            [
                "from xformer.analysis.rollout import rollout",
                "from xformer.viz.rollout import rollout_chart, rollout_frame",
                f"rollout_chart(rollout_frame(rollout(trace, {stack!r}).numpy(), {names!r}))",
            ],
            frame,
            f"rollout{'' if stack is None else '-' + stack}",
        )
