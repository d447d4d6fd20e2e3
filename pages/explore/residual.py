"""Residual: when is the answer decided, and which parts decide it? The stream read after every sublayer."""

from __future__ import annotations

from pages.shared.panels.attribution import ask_output, attribution_panel
from pages.shared.panels.lens import lens_panel
from pages.shared.panels.norms import norms_panel
from pages.shared.panels.prediction import prediction_panel
from pages.shared.panels.residual_notes import residual_notes
from pages.shared.session import open_page


def page() -> None:
    view = open_page("Residual", "When is the answer decided?")
    runs = view.runs()
    prediction_panel(view)
    frames = lens_panel(view, runs)
    position, goal = ask_output(view)
    view.share(pos=str(position), goal=goal)
    parts = attribution_panel(view, runs, position, goal)
    norms_panel(view, runs)
    residual_notes(frames, parts, position)


page()
