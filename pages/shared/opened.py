"""What the sidebar of a screen has opened, and what is drawn of it again when only the changes in the run are others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.shared import link, models, notebook
from pages.shared.picture import panel
from pages.shared.view import View, ask_mask, interventions_on, show_chips


@dataclass(frozen=True)
class Opened:
    """The model and the input that the sidebar has, before it is asked what is changed in their run.

    It names the model and does not hold it, as Streamlit keeps what a fragment is given for as long as the visit lasts.
    """

    model: str
    source: tuple[int, ...]
    mask_at: DeltaGenerator
    sidebar: tuple[object, ...]
    """What the sidebar said when it was drawn."""

    def view(self) -> View:
        """Draw the choice of a mask and the chips of what is changed."""
        subject = models.subject(self.model)
        with self.mask_at:
            mask = ask_mask(subject.shape)
        view = View(self.model, self.source, mask, subject, interventions_on(subject.shape))
        show_chips(view)
        return view

    def on_each_change(self, draw: Callable[[View], None]) -> None:
        """Draw all that is below the heading, as a fragment: a toggle or another picture runs it alone."""
        st.fragment(self._draw, key="on_each_change")(draw)

    def _draw(self, draw: Callable[[View], None]) -> None:
        # A click here chose another input, or the model is gone.
        if self.sidebar != said_in_sidebar() or models.usable(self.model):
            st.rerun()
        notebook.begin()
        link.begin_part()
        panel(lambda: draw(self.view()))


def said_in_sidebar() -> tuple[object, ...]:
    """What chooses the model and the input."""
    return tuple(st.session_state.get(name) for name in ("model", "model_step", "input"))
