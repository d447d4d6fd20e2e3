"""The models of a sweep in a table: how each of them ended, and its way to every other screen."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from pages.shared import run_weights, screens
from pages.shared.model_choice import choose_model
from pages.train.state import show_run
from xformer.training.stored_sweep import StoredSweep
from xformer.training.sweep_members import words


def members_table(sweep: StoredSweep, outcomes: pd.DataFrame) -> None:
    """Draw it; a ticked row is the model that is opened."""
    judged = ["exact_match", "steps_to_solve"] if sweep.is_judged else []
    shown = outcomes.loc[:, [*sweep.members[0].values, "state", *judged, "loss", "step"]]
    column = st.column_config
    at, beside = st.columns([2.2, 1], gap="medium")
    chosen = chosen_member(sweep)
    key = f"sweep_table_{chosen}"  # a choice that was made elsewhere is another table, else its tick would stay where it was

    def follow() -> None:
        rows = st.session_state[key].selection.rows
        choose_member(sweep.entry.id, rows[0] if rows else None)

    with at:
        st.dataframe(
            shown.rename(columns={name: words(name) for name in sweep.members[0].values}),
            hide_index=True,
            height=min(36 * (len(shown) + 1) + 3, 300),
            row_height=36,
            selection_mode="single-row",
            selection_default={"selection": {"rows": [] if chosen is None else [chosen]}},
            on_select=follow,
            key=key,
            column_config={
                "exact_match": column.ProgressColumn(
                    "exact match",
                    format="percent",
                    min_value=0.0,
                    max_value=1.0,
                    help="As last reported on its held-out inputs; of a finished model, on 2,000 others.",
                ),
                "loss": column.NumberColumn(format="%.3g"),
                "steps_to_solve": column.NumberColumn("solved at step", format="localized"),
                "step": column.NumberColumn(format="localized"),
            },
            placeholder="–",
            alt="The models of this sweep, one per row; choose one to open it.",
        )
    with beside, st.container(key="sweep_open"):
        _open(sweep, outcomes, chosen)


def choose_member(run: str, number: object) -> None:
    """Have this model of a sweep be the one that is opened; None leaves it to the screen."""
    st.session_state["sweep_member"] = (run, number)


def chosen_member(sweep: StoredSweep) -> int | None:
    """Which model of a sweep was clicked, in its map or in the table."""
    run, number = st.session_state.get("sweep_member", ("", None))
    is_one = run == sweep.entry.id and isinstance(number, int) and 0 <= number < len(sweep.members)
    return number if is_one else None


def _open(sweep: StoredSweep, outcomes: pd.DataFrame, row: int | None) -> None:
    """The ways on from a model; without one, from the first that has solved its task."""
    models: list[dict[Any, Any]] = outcomes.to_dict("records")
    if row is None:
        there = [one for one in models if one["run"]]
        if not there:
            st.caption("Each model can be opened on every screen as soon as it has left the stack.")
            return
        model = next((one for one in there if one["solved"] is True), there[0])
        st.caption("Click a map, a cell or a row to open another model.")
    else:
        model = models[row]
    run = model["run"]
    st.text(model["member"])
    steps = run_weights.steps_of(run) if run else []
    if not steps:
        st.caption("It left no weights to look at." if run else "It is still in the stack.")
        return
    with st.container(horizontal=True, gap="xsmall", key="sweep_open_on"):
        for title, page in screens.of_a_model().items():
            if st.button(title, key=f"sweep_open_{title}", type="primary" if title == "Attention" else "secondary"):
                choose_model(f"{run}@{steps[-1]}")
                st.switch_page(page)
        st.button("Its own film", icon=":material/movie:", on_click=show_run, args=(run,), key="sweep_open_film")
