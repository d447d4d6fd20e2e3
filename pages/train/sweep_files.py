"""The code of a sweep's pictures, and their numbers as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import streamlit as st

from pages.shared.notebook import csv, menu
from pages.shared.script import script
from pages.train.sweep_pictures import Drawn
from xformer.training.stored_sweep import StoredSweep


def sweep_files(sweep: StoredSweep, outcomes: pd.DataFrame, drawn: Sequence[Drawn]) -> None:
    """The “⋯” of the pictures."""
    run = sweep.entry.id
    pictures = [
        replace(call, readings=call.readings[:1]).written({id(call.readings[0]): source}) for call, source in drawn
    ]
    lines = [
        "import os, xformer",
        "from xformer.training.run_store import RunStore",
        "from xformer.training.stored_sweep import StoredSweep",
        'runs = os.environ.get("XFORMER_RUNS", "checkpoints/runs")  # where this app keeps what it trains',
        f'sweep = StoredSweep(RunStore(runs), "{run}")',
        "[" + ",\n ".join(pictures) + "]",
    ]
    with menu("sweep"):
        st.code(script(lines), language="python", width=900)
        csv(outcomes, "outcome", run, "Outcome as CSV")
        csv(sweep.rows, "metrics", run, "All curves as CSV")
