"""“The most active neurons of one token”: what they say, and what happens when each is silenced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from pages.feed_forward.activations import layer_reads
from pages.feed_forward.notes import table_notes
from pages.shared import resources
from pages.shared.ask import seed
from pages.shared.layout import is_dark, what_to_notice
from pages.shared.link import chose
from pages.shared.notebook import footer, heading
from pages.shared.position_window import is_judged
from pages.shared.view import ORIGINAL, View
from xformer.analysis.neurons import neuron_table, promoted, speaks_directly
from xformer.reading import Reading
from xformer.viz.feed_forward import MOST_TOKENS, promotion_chart

GO = "ff_go"
"""Which picture the screen is to turn to."""
_COLUMNS: dict[str, Any] = {
    "neuron": st.column_config.NumberColumn("neuron", format="%d", width=60),
    "activation": st.column_config.NumberColumn("activation", format="%.3f", width=80),
    "originally": st.column_config.NumberColumn("originally", format="%.3f", width=80),
    "promotes": st.column_config.TextColumn(
        "promotes", width=90, help="The three logits that it raises most, on the direct path."
    ),
    "suppresses": st.column_config.TextColumn("suppresses", width=90, help="The three that it lowers most."),
    "loss_change": st.column_config.NumberColumn(
        "if silenced", format="%+.1e", width=85, help="By how many nats the loss changes; the model was run for it."
    ),
    "flips": st.column_config.NumberColumn(
        "flips", format="%d", width=50, help="How many of the likeliest tokens become others."
    ),
}
_DIRECT = {
    "post": "This direct path ignores the norms and layers that follow, so signs tell more than sizes.",
    "pre": "This direct path ignores the last norm and the layers that follow.",
    "none": "This direct path ignores the layers that follow.",
}


def token_neurons_panel(view: View, runs: Mapping[str, Reading], path: str) -> None:
    """Ask for a position, show its neurons in the run that is shown, and say whether one of them matters."""
    heading("The most active neurons of one token")
    run = runs[view.shown]
    reads = layer_reads(view, run, path)
    seed("pos", range(len(reads)), 0, key="ff_pos", called="position")
    position = st.select_slider(
        "Position",
        range(len(reads)),
        format_func=lambda at: f"{at}: reads {reads[at]}",
        key="ff_pos",
        persist_state="session",
    )
    chose("pos", str(position))
    table = _table(*view.key(view.shown), path, position)
    shown = table if bool(table["flips"].any()) else table.drop(columns="flips")
    if view.is_changed:
        before = runs[ORIGINAL].trace[f"{path}.post"][0, position]
        shown = shown.copy()
        shown.insert(2, "originally", [before[neuron].item() for neuron in shown["neuron"]])
    speaks = speaks_directly(view.checkpoint.model, path)
    if not speaks:
        shown = shown.drop(columns=["promotes", "suppresses"])
    left, right = st.columns([3, 2] if view.is_changed else [5, 4]) if speaks else (st.container(), None)
    with left:
        _rows(view, shown, path, position)
    if right is not None:
        with right:
            _promotion(view, table, path)
    else:
        st.caption(
            "These neurons stand in the encoder: what they write reaches the output only through the decoder’s "
            "cross-attention, so no tokens can be read off them directly."
        )
    lines = [
        "from xformer.analysis.neurons import neuron_table, promoted",
        "labels = checkpoint.task.vocabulary.labels",
        f"answers = torch.tensor({run.example.labels[0].tolist()})",
        f'table = neuron_table(checkpoint.model, trace, "{path}", {position}, labels, answers)',
    ]
    if speaks:
        lines += [
            "from xformer.viz.feed_forward import promotion_chart",
            'neurons = table["neuron"].tolist()',
            f'effect = promoted(checkpoint.model, "{path}")[neurons].numpy() * table["activation"].to_numpy()[:, None]',
            f"[table, promotion_chart(effect, neurons, labels, dark={is_dark()})]",
        ]
    else:
        lines.append("table")
    footer(view, lines, shown, "neurons")
    if notes := table_notes(table, position, judged=is_judged(view)):
        what_to_notice(notes)


def _rows(view: View, shown: pd.DataFrame, path: str, position: int) -> None:
    """The table; choosing a row chooses that neuron for the panel below."""
    event = st.dataframe(
        shown,
        hide_index=True,
        column_config={name: _COLUMNS[name] for name in shown.columns},
        on_select="rerun",
        selection_mode="single-row",
        key="ff_table",
    )
    rows = event.selection.rows
    ticket = (tuple(rows), path, position, view.model)
    if rows and st.session_state.get("ff_table_followed") != ticket:
        st.session_state["ff_table_followed"] = ticket
        st.session_state["ff_neuron"] = int(shown["neuron"].iloc[rows[0]])
        st.session_state[GO] = "neuron"
        st.rerun()
    where = f"With {view.shown}, position" if view.is_changed else "Position"
    st.caption(f"{where} {position}. Choose a row to look closer at that neuron.")


def _promotion(view: View, table: pd.DataFrame, path: str) -> None:
    neurons = table["neuron"].tolist()
    effect = promoted(view.checkpoint.model, path)[neurons].numpy(force=True)  # [neuron, vocab]
    scaled = effect * table["activation"].to_numpy()[:, None]
    chart = promotion_chart(scaled, neurons, view.task.vocabulary.labels, dark=is_dark())
    st.altair_chart(chart, theme="streamlit", width="stretch", key="promotion")
    n = len(view.task.vocabulary)
    few = f" Shown are the {MOST_TOKENS} of {n:,} tokens that change most." if n > MOST_TOKENS else ""
    st.caption(
        "Activation × its row of W₂, through the unembedding: what it adds to each logit here. "
        + _DIRECT[view.checkpoint.config.norm]
        + few
    )


@st.cache_data(max_entries=256, show_spinner=False)
def _table(model: str, source: tuple[int, ...], mask: str, changes: str, path: str, position: int) -> pd.DataFrame:
    checkpoint, run = resources.checkpoint(model), resources.run(model, source, mask, changes)
    assert checkpoint.task is not None
    labels = checkpoint.task.vocabulary.labels
    return neuron_table(checkpoint.model, run.trace, path, position, labels, run.example.labels[0])
