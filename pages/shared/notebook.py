"""“The code for this picture”: the lines of library code that draw what a screen shows, and its data as a file.

footer(view, ["from xformer.viz import heatmaps", "heatmaps.vectors(trace)"], table, "embeddings")
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from pages.shared.models import shown_path
from pages.shared.resources import MASKS, Run
from pages.shared.view import View
from xformer.interventions import join


def preamble(view: View, *, changed: bool | None = None) -> list[str]:
    """The lines that load the model and record the run on the screen as `trace`; run them in the project's folder.

    `changed` chooses between the model's own run and the one under the mask and interventions (where there are some).
    """
    changed = view.is_changed if changed is None else changed
    run = view.changed() if changed else view.original()
    assert run is not None
    lines = ["import torch, xformer", f'checkpoint = xformer.load("{shown_path(view.model)}")']
    changes = []
    if changed and view.mask != MASKS[0]:
        changes.append(f"xformer.edits.set_causal({view.mask == 'causal'})")
    if changed and view.interventions:
        lines.append("from xformer.interventions import all_edits, parse")
        changes.append(f'*all_edits(parse("{join(view.interventions)}", checkpoint.config))')
    return [*lines, f"trace = {recording(run, changes)}"]


def recording(run: Run, changes: Sequence[str] = ()) -> str:
    """The expression that records a run again, given the expressions of its edits."""
    arguments = [f"torch.tensor({run.example.stream.tolist()})"]
    if run.example.target is not None:
        arguments.append(f"torch.tensor({run.example.target.tolist()})")
    if changes:
        arguments.append(f"edits=[{', '.join(changes)}]")
    return f"xformer.record(checkpoint.model, {', '.join(arguments)})"


def footer(
    view: View, lines: Sequence[str], table: pd.DataFrame | None, name: str, *, changed: bool | None = None
) -> None:
    """Under a picture of the view: its code, and its data as CSV. `lines` follow the preamble and end in the picture."""
    code_and_data([*preamble(view, changed=changed), *lines], table, name, view.model)


def code_and_data(lines: Sequence[str], table: pd.DataFrame | None, name: str, file: str) -> None:
    """Under any picture: all the lines that draw it in a notebook, and its data as `file`-`name`.csv where there is a table."""
    with st.container(horizontal=True, gap="small", key=f"footer_{name}"):
        with st.popover(
            "Code", icon=":material/code:", help="The lines that draw this picture in a notebook.", width=110
        ):
            st.code("\n".join(lines), language="python", width=900)
        if table is not None:
            st.download_button(
                "CSV",
                lambda: table.to_csv(index=False).encode(),
                f"{file}-{name}.csv",
                "text/csv",
                icon=":material/download:",
                on_click="ignore",
                key=f"csv_{name}",
                help="The numbers of this picture.",
            )
