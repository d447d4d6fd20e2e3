"""The test images that excite a neuron most, each with the patch where it does framed."""

from __future__ import annotations

import numpy as np
import streamlit as st

from pages.shared.layout import is_dark
from pages.shared.view import View
from xformer.analysis.survey import Survey
from xformer.viz.images import picture

ACROSS = 4


def exciting_images(view: View, path: str, neuron: int, found: Survey) -> None:
    """The images in rows, the most exciting first; each counts once."""
    names, patch = view.task.position_names([]), view.checkpoint.config.patch
    peaks = found.peak[path][:, neuron].tolist()
    places = found.where[path][:, neuron].tolist()
    shown = [(value, *place) for value, place in zip(peaks, places, strict=True) if value > 0]
    if not shown:
        st.info("No test image excites it: this neuron is dead on them.", icon=":material/do_not_disturb_on:")
        return
    for start in range(0, len(shown), ACROSS):
        for column, (value, index, position) in zip(st.columns(ACROSS), shown[start : start + ACROSS], strict=False):
            with column:
                image = picture(np.array(found.inputs[index]), dark=is_dark(), scale=12)
                if position:
                    image = framed(image, position - 1, patch * 12)
                st.image(image, width=96)
                st.caption(f"{value:.3f} at {names[position]}")
    which = "all " if found.n_inputs == found.n_asked else ""
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
