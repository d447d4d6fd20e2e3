"""“Over the image”: what the class token, or any patch, looks at in every layer and head, laid over the pixels."""

from __future__ import annotations

import numpy as np
import streamlit as st

from pages.shared.ask import choose
from pages.shared.layout import is_dark, run_title
from pages.shared.notebook import footer
from pages.shared.view import ORIGINAL, View
from xformer.analysis.rollout import rollout
from xformer.reading import Reading
from xformer.viz.attention import layer_title
from xformer.viz.images import overlay_chart, overlay_frame

LAID = {"heads": "attention of every head", "rollout": "rollout"}
CROWDED = 6
"""From so many heads on, a picture is called “2.3” for layer 2, head 3."""


def over_image_panel(view: View) -> None:
    """Draw it for every run."""
    names = view.task.position_names([])
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        what = choose("laid", LAID, "heads", "Laid over the image")
        who = choose("from", {name: name for name in names}, names[0], "Looking from", widget=st.selectbox, width=160)
    query = names.index(who)
    for name, run in view.runs().items():
        if view.is_changed:
            st.markdown(f"**{run_title(name)}**")
        _picture(view, run, query, who, what, is_changed=name != ORIGINAL)
    if what == "rollout":
        st.caption(
            f"How much of each patch could have reached **{who}** after each layer, by the patterns alone: half of a stream "
            "passes by each attention, half is mixed by the mean of its heads (Abnar & Zuidema 2020). What values, norms and "
            "feed-forward layers do is not in it."
        )
    else:
        st.caption(
            f"Where **{who}** looks: one row per layer, one column per head, last their mean. Tiles are the patches' shares "
            "(from 0 to 1, spaced by the square root), squares the ink, and above each picture is what goes to the class token."
        )


def _picture(view: View, run: Reading, query: int, who: str, what: str, *, is_changed: bool) -> None:
    pixels = run.example.stream[0].numpy()
    panels = _rollout(run, query) if what == "rollout" else _heads(view, run, query)
    frame = overlay_frame(pixels, panels, view.checkpoint.config.patch)
    label = "share" if what == "rollout" else "attention"
    suffix = "-changed" if is_changed else ""
    st.altair_chart(
        overlay_chart(frame, dark=is_dark(), what=label, query=who), width="content", key=f"over_image{suffix}"
    )
    values = (
        ["from xformer.analysis.rollout import rollout",
         f'panels = [[(f"after layer {{n}}", r[{query}].numpy()) for n, r in enumerate(rollout(trace), 1)]]']
        if what == "rollout"
        else [f"panels = [[(f\"{{path}}, head {{n}}\", p[{query}].numpy()) for n, p in enumerate(pattern[0], 1)]\n"
              "          for path, pattern in trace.patterns().items()]"]
    )  # fmt: skip
    lines = [
        "from xformer.viz.images import overlay_chart, overlay_frame",
        *values,
        f"frame = overlay_frame(trace.tokens[0].numpy(), panels, {view.checkpoint.config.patch})",
        f'overlay_chart(frame, dark=False, what="{label}", query="{who}")',
    ]
    footer(view, lines, frame, f"over-image{suffix}", changed=is_changed)


def _heads(view: View, run: Reading, query: int) -> list[list[tuple[str, np.ndarray]]]:
    panels = []
    for path, pattern in run.trace.patterns().items():
        rows = pattern[0, :, query].numpy(force=True)  # [head, key]
        title = layer_title(path, is_pair=False)
        of_layer, head_word = (f"{title} · ", "head ") if len(rows) < CROWDED else (f"{len(panels) + 1}.", "")
        line = [(f"{of_layer}{head_word}{head + 1}", row) for head, row in enumerate(rows)]
        panels.append([*line, (f"{of_layer}mean", rows.mean(axis=0))] if len(rows) > 1 else line)
    return panels


def _rollout(run: Reading, query: int) -> list[list[tuple[str, np.ndarray]]]:
    reached = rollout(run.trace)[:, query].numpy(force=True)  # [layer, key]
    return [[(f"after layer {layer + 1}", row) for layer, row in enumerate(reached)]]
