"""How a first principle is shown: matrices side by side with aligned rows, and under them their code and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import streamlit as st
from torch import Tensor

from pages.shared.layout import chart_spec, is_dark
from xformer.analysis.principles import matrix_frame
from xformer.viz.principles import frame_row, matrix_chart


@dataclass(frozen=True, eq=False)
class Picture:
    """One matrix with its heading and the names of its rows and columns."""

    title: str
    matrix: Tensor
    rows: Sequence[str]
    columns: Sequence[str]
    kind: Literal["signed", "share"] = "signed"
    about: str = ""
    struck: bool = False

    @property
    def key(self) -> tuple:
        """All that its drawing depends on, as plain values."""
        numbers = self.matrix.contiguous().numpy().tobytes()
        return "principle", numbers, tuple(self.rows), tuple(self.columns), self.kind, self.struck

    @property
    def frame(self) -> pd.DataFrame:
        return matrix_frame(self.matrix, self.rows, self.columns)


def show_matrices(
    pictures: Sequence[Picture],
    name: str,
    *,
    chosen: str = "",
    limit: float | None = None,
    all_named: bool = False,
) -> pd.DataFrame:
    """Draw matrices of the same rows from left to right, the first with the names of the rows; returns all their numbers."""
    names = 2.4
    widths = [len(p.columns) + (names if all_named or not index else 0.5) for index, p in enumerate(pictures)]
    longest = max(len(name) for picture in pictures for name in picture.columns)
    extent = min(28 + 5 * longest, 76)
    for index, (place, picture) in enumerate(zip(st.columns(widths, gap="small"), pictures, strict=True)):
        with place:
            st.markdown(f"**{picture.title}**" + (f"  \n:small[{picture.about}]" if picture.about else ""))
            limits = limit if picture.kind == "signed" else None
            look = {"dark": is_dark(), "limit": limits, "named": all_named or not index, "extent": extent}

            def draw(picture: Picture = picture, look: dict[str, Any] = look) -> Any:
                return matrix_chart(picture.frame, kind=picture.kind, struck=picture.struck, **look)

            spec = chart_spec((*picture.key, *look.values()), draw)
            framed = frame_row(spec, chosen if chosen in picture.rows else "")
            st.vega_lite_chart(framed, theme="streamlit", width="stretch", key=f"{name}_{index}")
    return pd.concat([picture.frame.assign(matrix=picture.title) for picture in pictures], ignore_index=True)
