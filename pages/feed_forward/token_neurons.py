"""“The most active neurons of one token”: what they promote, and what happens when each is silenced."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from pages.feed_forward.choices import Choice, look_at
from pages.shared.call import Call
from pages.shared.layout import what_to_notice
from pages.shared.link import chose
from pages.shared.picture import footer, heading, shown, table
from pages.shared.view import View
from pages.shared.widgets import seed
from xformer import analysis, viz
from xformer.analysis.feed_forward import speaks_directly
from xformer.viz.feed_forward import MOST_TOKENS_DRAWN

LITTLE_LOSS = 0.01
"""A change of the loss, in nats, below which silencing a neuron does next to nothing."""
_NUMBER, _TEXT = st.column_config.NumberColumn, st.column_config.TextColumn
_COLUMNS: dict[str, Any] = {
    "neuron": _NUMBER("neuron", format="%d", width=60),
    "activation": _NUMBER("activation", format="%.3f", width=80),
    "activity": _NUMBER(
        "activity",
        format="%.3f",
        width=70,
        help="|activation| × the norm of the vector that it writes; |activation| where that vector is out of reach.",
    ),
    "originally": _NUMBER("originally", format="%.3f", width=80),
    "promotes": _TEXT("promotes", width=90, help="The three logits that it raises most, on the direct path."),
    "suppresses": _TEXT("suppresses", width=90, help="The three that it lowers most."),
    "loss_change": _NUMBER(
        "if silenced", format="%+.1e", width=85, help="By how many nats the loss changes; the model was run for it."
    ),
    "flips": _NUMBER("flips", format="%d", width=50, help="How many of the likeliest tokens become others."),
}
_DIRECT = {
    "post": "This direct path ignores the norms and layers that follow, so signs tell more than sizes.",
    "pre": "This direct path ignores the last norm and the layers that follow.",
    "none": "This direct path ignores the layers that follow.",
}


def token_neurons_panel(view: View, choice: Choice) -> None:
    """Ask for a position, show its neurons in the run that is shown, and say whether one of them matters."""
    heading(f"The most active neurons of one {view.input.one}")
    original, changed = view.original(), view.changed()
    run = changed or original
    reads = run.tokens_of(choice.site.stack)
    seed("pos", range(len(reads)), 0, key="ff_pos", called="position")
    position = st.select_slider(
        "Position",
        range(len(reads)),
        format_func=lambda at: f"{at}: reads {reads[at]}",
        key="ff_pos",
        persist_state="session",
    )
    chose("pos", str(position))
    of = {"layer": choice.layer, "position": position}
    before = {} if changed is None else {"before": original}
    calls = [Call(analysis.neurons, (run,), {**of, **before})]
    frame = table(view, analysis.neurons, run, **of, **before)
    if speaks_directly(run, choice.layer) and "promotes" in frame:
        calls.append(Call(viz.promotion, (run,), of))
        left, right = st.columns([5, 4] if changed is None else [3, 2])
        with left:
            _rows(view, frame, position)
        with right:
            shown(view, calls[1], "promotion")
            n = len(view.subject.labels)
            few = (
                f" Shown are the {MOST_TOKENS_DRAWN} of {n:,} tokens that change most." if n > MOST_TOKENS_DRAWN else ""
            )
            st.caption(
                "Activation × its row of W₂, through the unembedding: what it adds to each logit here. "
                f"{_DIRECT[view.shape.norm]}{few}"
            )
    elif not run.has_logits:
        _rows(view, frame, position)
        st.caption(
            "This model has no logits: no tokens can be read off its neurons, and there is no loss to measure what "
            "silencing one does."
        )
    elif "promotes" not in frame and speaks_directly(run, choice.layer):
        _rows(view, frame, position)
        st.caption(
            "No single matrix leads from these neurons to the logits, so no tokens can be read off them directly."
        )
    else:
        _rows(view, frame, position)
        st.caption(
            "These neurons stand in the encoder: what they write reaches the output only through the decoder’s "
            "cross-attention, so no tokens can be read off them directly."
        )
    footer(view, "neurons", calls, frame)
    if notes := silencing_notes(frame, position, judged=view.original().has_right_answer):
        what_to_notice(notes)


def _rows(view: View, frame: pd.DataFrame, position: int) -> None:
    """The table; choosing a row turns to that neuron."""

    def follow() -> None:
        for row in st.session_state["ff_table"].selection.rows:
            look_at(int(frame["neuron"].iloc[row]))

    unknown = [] if bool(frame["flips"].any()) else ["flips"]
    unknown += ["loss_change"] if bool(frame["loss_change"].isna().all()) else []
    st.dataframe(
        frame.drop(columns=unknown),
        hide_index=True,
        column_config=_COLUMNS,
        on_select=follow,
        selection_mode="single-row",
        key="ff_table",
    )
    where = f"With {view.shown}, position" if view.is_changed else "Position"
    st.caption(f"{where} {position}. Choose a row to look closer at that neuron.")


def silencing_notes(frame: pd.DataFrame, position: int, *, judged: bool) -> list[str]:
    """What silencing the neurons of `analysis.neurons` does; nothing where that is not known."""
    known = frame.loc[frame["loss_change"].notna()]
    if known.empty or not bool((known["activity"] > 0).any()):
        return [] if bool((frame["activity"] > 0).any()) else [f"No neuron writes anything at position {position}."]
    biggest = known.loc[known["loss_change"].abs().idxmax()]
    change, flips = float(biggest["loss_change"]), int(biggest["flips"])
    said = f"{change:+.2g} nats".replace("-", "−")
    outputs = "answers" if judged else "predictions"
    moved = f" and changes {flips} {outputs[:-1] if flips == 1 else outputs}" if flips else ""
    first = (
        f"Of the {len(known)} most active neurons at position {position}, silencing **#{int(biggest['neuron'])}** moves the "
        f"loss the most, by {said}{moved}."
    )
    if not known["flips"].any() and abs(change) < LITTLE_LOSS:
        first += " So none of them matters by itself on this input. Mute the whole layer for comparison."
    return [first]
