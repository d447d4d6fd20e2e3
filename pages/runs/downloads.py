"""A run to take along: its weights as one file, and the metrics of all chosen runs as a table or for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pages.shared import run_store, run_weights
from xformer.training.entry import Entry
from xformer.training.metric_files import event_files, folder_name, metrics_csv
from xformer.training.transfer import to_file


def downloads(entry: Entry, entries: Sequence[Entry], names: dict[str, str]) -> None:
    """The buttons of the selected run; metrics are those of all chosen `entries`, called by their `names`."""
    store = run_store.store()
    file = folder_name(entry.name)
    if steps := run_weights.steps_of(entry.id):
        st.download_button(
            f"Weights of step {steps[-1]:,}",
            lambda: to_file(store, entry.id),
            f"{file}.safetensors",
            "application/octet-stream",
            on_click="ignore",
            key=f"runs_weights_{entry.id}",
            help="One safetensors file with settings, curve and figures; Import takes it in again, here or elsewhere.",
            width="stretch",
        )
    together = len(entries) > 1
    which = f", all {len(entries)} chosen" if together else ""
    called = {f"{names[one.id]} {one.id}": one for one in entries}
    st.download_button(
        f"Metrics, CSV{which}",
        lambda: metrics_csv({name: store.rows(one.id) for name, one in called.items()}),
        f"{'runs' if together else file}.csv",
        "text/csv",
        on_click="ignore",
        key="runs_csv",
        width="stretch",
    )
    st.download_button(
        f"Metrics for TensorBoard{which}",
        lambda: event_files(
            {name: store.rows(one.id) for name, one in called.items()},
            {name: one.created for name, one in called.items()},
        ),
        f"{'runs' if together else file}-tensorboard.zip",
        "application/zip",
        on_click="ignore",
        key="runs_events",
        help="Unpack it and run: tensorboard --logdir FOLDER",
        width="stretch",
    )
