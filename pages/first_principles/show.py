"""How a first principle is shown: matrices side by side with aligned rows, whose calls are the code of the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import streamlit as st

from pages.shared.call import Call
from pages.shared.picture import shown
from xformer import viz
from xformer.analysis.principles import Mixed, matrix


class NoModel(NamedTuple):
    """Where a picture of this screen stands, in place of a `View`: no model is looked at."""

    model: str = "first-principles"


PLACE = NoModel()


@dataclass(frozen=True, eq=False)
class Picture:
    """One matrix of an attention, with its heading and a word about it."""

    title: str
    mixed: Mixed
    which: str
    about: str = ""
    n_columns: int | None = None

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return list(matrix(self.mixed, which=self.which, n_columns=self.n_columns)["column"].unique())


def show_matrices(pictures: Sequence[Picture], name: str, row: int | None = None) -> list[Call]:
    """Draw matrices of the same rows from left to right, the first with the names of the rows; `row` is framed in all."""
    columns = [picture.columns for picture in pictures]
    widths = [len(names) + (0.5 if index else 2.4) for index, names in enumerate(columns)]
    longest = max(len(column) for names in columns for column in names)
    calls = []
    for index, (place, picture) in enumerate(zip(st.columns(widths, gap="small"), pictures, strict=True)):
        look = {"row": row, "named": not index, "extent": min(28 + 5 * longest, 76)}
        options = {"which": picture.which, "n_columns": picture.n_columns, **look}
        calls.append(Call(viz.matrix, (picture.mixed,), options))
        with place:
            st.markdown(f"**{picture.title}**" + (f"  \n:small[{picture.about}]" if picture.about else ""))
            shown(PLACE, calls[-1], f"{name}_{index}")
    return calls
