"""“How many of them fire”: the shares of each layer's neurons that fire and that are dead, here and over a sample."""

from __future__ import annotations

from typing import Any

import streamlit as st

from pages.feed_forward.choices import Choice
from pages.feed_forward.sample import surveyed
from pages.shared.layout import what_to_notice
from pages.shared.link_widgets import choose
from pages.shared.notebook import heading
from pages.shared.picture import picture
from pages.shared.view import View
from xformer import analysis, viz
from xformer.words import percent

OVER = {"sample": "many inputs", "input": "this input"}


def firing_panel(view: View, choice: Choice) -> None:
    """Draw the shares of all layers, on this input or over the sample, and say how it stands with the chosen layer."""
    heading("How many of them fire")
    options = {name: words for name, words in OVER.items() if name == "input" or view.task is not None}
    over = choose("over", options, next(iter(options)), "Counted over", key="ff_over")
    place, original, changed = st.container(), view.original(), view.changed()
    counted, said, which = changed or original, "this input alone", ""
    before: dict[str, Any] = {} if changed is None else {"before": original}
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
        st.caption(f"A neuron fires where its activation is above 0, and is dead where it never does: on {said}.")
    row = analysis.firing(counted).set_index("layer").loc[choice.site.path].to_dict()
    what_to_notice([firing_note(row, choice.title, which)])


def firing_note(row: dict[str, Any], title: str, which: str = "") -> str:
    """How one layer stands, from its row of `analysis.firing`."""
    dead = "none" if row["dead"] == 0 else f"**{row['dead']:,}**"
    verb = "is" if row["dead"] <= 1 else "are"
    return (
        f"In {title}, {dead} of {row['neurons']:,} neurons {verb} dead on {row['over']}{which}, "
        f"and at an average token **{percent(row['share_at_once'], 0)}** fire at once."
    )
