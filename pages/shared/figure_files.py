"""A picture of a screen as a file for a paper or a slide: SVG and PDF, in which text stays text, and PNG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from xformer.viz.export import pdf_of, png_of, svg


@dataclass(frozen=True)
class Figures:
    """What gives charts that belong together, or their Vega-Lite, what stands below them, and the theme they were drawn for."""

    charts: Callable[[], Sequence[Any]]
    caption: Callable[[], Sequence[str]]
    """Lines, asked for when a file is made."""
    dark: bool

    def svg(self) -> str:
        """All of them below each other."""
        return svg(self.charts(), caption="\n".join(self.caption()), dark=self.dark)


def figure_files(figures: Figures, name: str, file: str) -> None:
    """The buttons that get them; each is drawn when it is asked for."""
    made: dict[str, tuple[str, Callable[[str], bytes]]] = {
        "SVG": ("image/svg+xml", str.encode),
        "PDF": ("application/pdf", pdf_of),
        "PNG": ("image/png", png_of),
    }
    for kind, (mime, convert) in made.items():
        st.download_button(
            kind,
            lambda convert=convert: convert(figures.svg()),
            f"{file}-{name}.{kind.lower()}",
            mime,
            icon=":material/download:",
            on_click="ignore",
            key=f"{kind.lower()}_{name}",
            help="This picture for a paper or a slide, with what it shows below it.",
        )
