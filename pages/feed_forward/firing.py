"""“How many of them fire”: the shares of each layer's neurons that fire and that are dead, here and over a sample."""

from __future__ import annotations

from typing import Any

import streamlit as st

from pages.feed_forward.choices import Choice
from pages.feed_forward.sample import surveyed
from pages.shared.layout import what_to_notice
from pages.shared.picture import heading, picture
from pages.shared.view import View
from pages.shared.widgets import choose
from xformer import analysis, viz
from xformer.formatting import percent

MEASURES = {
    "written": "Activity is |activation| × the norm of the vector that a neuron writes.",
    "activation": "The vectors that the neurons of this model write are out of reach, so activity is |activation| here.",
}
FIRES = (
    "A neuron fires where its activity is more than a millionth of the layer’s mean peak (the largest activity of each neuron, "
    "averaged); one that fires nowhere is dead."
)
OVER = {"sample": "many inputs", "input": "this input"}


def firing_panel(view: View, choice: Choice) -> None:
    """Draw the shares of all layers, on this input or over the sample, and say how it stands with the chosen layer."""
    heading("How many of them fire")
    options = {name: words for name, words in OVER.items() if name == "input" or view.task is not None}
    over = choose("over", options, next(iter(options)), "Counted over", key="ff_over")
    place, original, changed = st.container(), view.original(), view.changed()
    counted, said, which = changed or original, "this input alone", ""
    before: dict[str, Any] = {} if changed is None else {"before": original}
    relu = " The 0 of a ReLU writes nothing." if view.shape.activation == "relu" else ""
    mean_of = " The mean peak is that of the first of them." if over == "sample" else ""
    if over == "sample":
        found = surveyed(view)
        if found is None:
            return
        tokens = next(iter(found.n_positions.values()))
        kind = "test images" if view.shape.image else "inputs sampled from the task"
        said = (
            f"{found.n_inputs:,} {kind} (seed {found.seed}; {tokens:,} tokens in the first layer), the model as trained"
        )
        counted, before = found, {}
    elif changed is not None:
        which = f", {view.shown}"
    with place:
        picture(view, "activity", viz.firing, counted, **before)
        row = analysis.firing(counted).set_index("layer").loc[choice.site.path].to_dict()
        st.caption(f"{MEASURES[row['measure']]} {FIRES}{relu} Counted on {said}.{mean_of}")
    what_to_notice([firing_note(row, choice.title, which, view.input.one)])


def firing_note(row: dict[str, Any], title: str, which: str = "", one: str = "token") -> str:
    """How one layer stands, from its row of `analysis.firing`; `one` is what stands at a position."""
    dead = "none" if row["dead"] == 0 else f"**{row['dead']:,}**"
    verb = "is" if row["dead"] <= 1 else "are"
    return (
        f"In {title}, {dead} of {row['neurons']:,} neurons {verb} dead on {row['over']}{which}, "
        f"and at an average {one} **{percent(row['share_at_once'], 0)}** fire at once."
    )
