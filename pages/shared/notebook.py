"""“⋯” at a picture's heading: the lines of library code that draw what a screen shows, and its data as a file.

    heading("Nearest neighbours")                     # instead of st.subheader
    st.altair_chart(…)
    code_and_data(["import xformer", "xformer.viz.lens(r)"], table, "lens", "reverse")

Most screens leave that to `pages.shared.picture`. The lines end in an expression, the picture, or in something that prints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.shared.figure_files import Figures, figure_files
from pages.shared.script import script
from xformer.training.tables import to_csv

Table = pd.DataFrame | Callable[[], pd.DataFrame]
"""The numbers of a picture, or what makes them once they are asked for."""
_PLACE = "menu_place"


def begin() -> None:
    """Before a screen runs: a heading of a run that was broken off is none any more."""
    st.session_state.pop(_PLACE, None)


def heading(text: str = "") -> None:
    """The heading of a picture; the “⋯” of the next `footer` or `code_and_data` stands at its right.

    Without words it is an empty line for it, above a picture that has its own heading. `text` is Markdown. Both calls belong
    into the same fragment.
    """
    with st.container(
        horizontal=True, wrap=False, vertical_alignment="center", gap="small", horizontal_alignment="distribute"
    ):
        if text:
            st.subheader(text, anchor=False, width="stretch")
        else:
            st.space("stretch")
        st.session_state[_PLACE] = st.container(width="content")


def code_and_data(
    lines: Sequence[str],
    table: Table | None,
    name: str,
    file: str,
    page: Callable[[], str] | None = None,
    figures: Figures | None = None,
) -> None:
    """The “⋯” of a picture, at the last `heading` that has none yet, else here: call it after the picture, or before.

    It holds all the lines that draw the picture, as a script that shows it (see `script`), and its data as `file`-`name`.csv
    where there is a table; its `figures` as SVG, PDF and PNG, and what can live in a page of its own as HTML.
    """
    with menu(name):
        st.code(script(lines), language="python", width=900)
        with st.container(horizontal=True, gap="small", key=f"files_{name}"):
            if table is not None:
                csv(table, name, file)
            if figures is not None:
                figure_files(figures, name, file)
            if page is not None:
                html(page, name, file)


def menu(name: str) -> DeltaGenerator:
    """The “⋯” itself, for what else belongs to a picture."""
    place = st.session_state.pop(_PLACE, None)
    with place or st.container(horizontal=True, horizontal_alignment="right", key=f"below_{name}"):
        return st.popover(
            ":material/more_horiz:", help="Code and data of this picture", type="tertiary", key=f"footer_{name}"
        )


def csv(table: Table, name: str, file: str, words: str = "Data as CSV") -> None:
    """The button that gets the numbers of a picture as a file; a table that takes a while is made when it is asked for."""
    st.download_button(
        words,
        lambda: to_csv(table() if callable(table) else table),
        f"{file}-{name}.csv",
        "text/csv",
        icon=":material/download:",
        on_click="ignore",
        key=f"csv_{name}",
        help="The numbers of this picture.",
    )


def html(page: Callable[[], str], name: str, file: str) -> None:
    """The button that gets a picture as a page that stands alone."""
    st.download_button(
        "This view as HTML",
        lambda: page().encode(),
        f"{file}-{name}.html",
        "text/html",
        icon=":material/download:",
        on_click="ignore",
        key=f"html_{name}",
        help="One file that opens anywhere, with the network off: everything here can still be pointed at.",
    )
