"""Residual: when is the answer decided, and which parts decide it? The stream read after every sublayer."""

from __future__ import annotations

from pages.residual.attribution import attribution_panel
from pages.residual.lens import lens_panel
from pages.residual.norms import norms_panel
from pages.shared import frame
from pages.shared.link_widgets import choose
from pages.shared.picture import panel
from pages.shared.prediction import prediction_panel
from pages.shared.session import open_sidebar
from pages.shared.view import View

PICTURES = {"lens": "When it is decided", "parts": "Who adds what", "norms": "How long the stream is"}
PANELS = {"lens": lens_panel, "parts": attribution_panel, "norms": norms_panel}


def page() -> None:
    open_sidebar("Residual", "When is the answer decided?").on_each_change(_residual)


def _residual(view: View) -> None:
    prediction_panel(view)
    # The pictures that are not shown are not computed.
    picture = choose("picture", PICTURES, "lens", "Picture", key="residual_picture", label_visibility="collapsed")
    with frame.picture():
        panel(PANELS[picture], view)
    view.share()


page()
