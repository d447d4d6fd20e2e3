"""The sampled inputs at which a neuron writes most: of texts the tokens around the position, of images the patch framed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from pages.components.prediction_strip import Lane, prediction_strip
from pages.feed_forward.choices import Choice
from pages.shared.call import Call
from pages.shared.layout import is_dark
from pages.shared.picture import footer
from pages.shared.view import View
from xformer import analysis
from xformer.analysis.feed_forward import Survey
from xformer.viz.images import picture

TOKENS_AROUND = 12
"""Of a long exciting input, so many tokens before the position and as many from it on are shown."""
IMAGES_IN_A_ROW = 4


def exciting_inputs(view: View, choice: Choice, found: Survey) -> None:
    """Show them, the most exciting first, with the lines that find them."""
    call = Call(analysis.exciting_inputs, (found,), {"layer": choice.layer, "neuron": choice.neuron})
    table = call.make()
    if table.empty and not found.is_final:
        st.info(
            f"It writes nothing on the {found.n_inputs:,} inputs that were run so far.", icon=":material/hourglass:"
        )
        return
    if table.empty:
        on = "them" if view.shape.image else "the sample"
        st.info(
            f"It writes nothing on any {view.input.sampled}: this neuron is dead on {on}.",
            icon=":material/do_not_disturb_on:",
        )
        return
    if view.shape.image:
        _images(view, found, table)
    else:
        _texts(view, choice, found, table)
    footer(view, "exciting", [call])


def _texts(view: View, choice: Choice, found: Survey, table: pd.DataFrame) -> None:
    labels, texts, lanes, is_cut = found.subject.labels, found.read_by(choice.site), [], False
    for row in table.to_dict("records"):
        whole = texts[row["input"]]
        start = max(0, min(row["position"] - TOKENS_AROUND, len(whole) - 2 * TOKENS_AROUND))
        piece = range(start, min(len(whole), start + 2 * TOKENS_AROUND))
        is_cut = is_cut or len(piece) < len(whole)
        tokens = tuple(labels[whole[at]] for at in piece)
        lanes.append(Lane(f"{row['activation']:.3f}", tokens, moved=tuple(at == row["position"] for at in piece)))
    prediction_strip(lanes, key="exciting")
    more = " The tokens are those that the decoder reads." if texts is found.targets else ""
    more += f" Of long inputs the {2 * TOKENS_AROUND} tokens around that position are shown." if is_cut else ""
    st.caption(f"Searched {found.n_inputs:,} inputs of the task, seed {found.seed}; each input counts once.{more}")


def _images(view: View, found: Survey, table: pd.DataFrame) -> None:
    size, rows = view.shape.patch * 12, table.to_dict("records")
    for start in range(0, len(rows), IMAGES_IN_A_ROW):
        columns = st.columns(IMAGES_IN_A_ROW)
        for column, row in zip(columns, rows[start : start + IMAGES_IN_A_ROW], strict=False):
            with column:
                image = picture(np.array(found.inputs[row["input"]]), dark=is_dark(), scale=12)
                st.image(framed(image, row["position"] - 1, size) if row["position"] else image, width=96)
                st.caption(f"{row['activation']:.3f} at {row['token']}")
    which = "all " if found.is_final else ""
    st.caption(
        f"Searched {which}{found.n_inputs:,} test images; each counts once. “class” stands for no place: the class token."
    )


def framed(image: np.ndarray, number: int, size: int) -> np.ndarray:
    """The picture with a frame around its patch of that number."""
    row, column = divmod(number, image.shape[1] // size)
    top, left = row * size, column * size
    out = image.copy()
    inside = out[top + 2 : top + size - 2, left + 2 : left + size - 2].copy()
    out[top : top + size, left : left + size] = (214, 94, 0)
    out[top + 2 : top + size - 2, left + 2 : left + size - 2] = inside
    return out
