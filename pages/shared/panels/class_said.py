"""What a model of images says: how probable each digit is, and the test images that it gets wrong."""

from __future__ import annotations

import numpy as np
import streamlit as st

from pages.shared.image_input import show_image, test_readings
from pages.shared.layout import is_dark
from pages.shared.notebook import footer
from pages.shared.view import View
from xformer.analysis.images import mistakes
from xformer.tasks.digit_images import digit_images
from xformer.viz.images import class_bars, picture

MOST = 12
"""So many wrong answers are shown."""


def class_panel(view: View) -> None:
    """The image beside the bars of the classes, and the verdict in a sentence."""
    runs = {
        name: run.trace.logits[0, 0].softmax(dim=-1).numpy(force=True) for name, run in view.runs().items()
    }  # [digit]
    right = view.source[-1]
    at, bars = st.columns([1, 4], gap="large", vertical_alignment="center")
    with at:
        pixels = (view.changed() or view.original()).example.stream[0].numpy()
        st.image(picture(pixels, dark=is_dark(), scale=24), width=192)
    with bars:
        chart = class_bars(runs, view.task.vocabulary.labels, right, dark=is_dark())
        st.altair_chart(chart, width="stretch", key="classes")
    values = list(runs.values())[-1]
    said = int(np.argmax(values))
    number = view.task.rule.test_number(view.source)  # type: ignore[attr-defined]
    what = "The image is meant to be" if number is None else f"Test image {number} is"
    with_changes = f" with {view.what_changed()} (the frames are the original)" if view.is_changed else ""
    verdict = "which is right" if said == right else f"**which is wrong**: {right} gets {values[right]:.1%}"
    st.caption(
        f"{what} a {right}. The model says **{said}**{with_changes}, {values[said]:.1%} sure, {verdict}. It ran just now, and "
        "said this once, at its class token."
    )
    lines = [
        "from xformer.viz.images import class_bars",
        "p = trace.logits[0, 0].softmax(dim=-1).numpy()",
        f'class_bars({{"run": p}}, checkpoint.task.vocabulary.labels, {right}, dark=False)',
    ]
    footer(view, lines, None, "classes")


def wrong_panel(view: View) -> None:
    """A gallery of the test images that the model itself gets wrong, the surest first; one click shows one on all screens."""
    read = test_readings(view.model)
    wrong = mistakes(read)
    st.subheader(f"{len(wrong)} of {len(read)} test images wrong", anchor=False)
    if wrong.empty:
        st.caption("It gets every one of them right.")
        return
    st.caption(
        "By the model’s own run, the surest first"
        + (f"; the first {MOST} are shown" if len(wrong) > MOST else "")
        + ". A click takes an image to all screens."
    )
    pixels = digit_images()[1].pixels.numpy()
    columns = st.columns(min(MOST, max(6, len(wrong))), gap="small")
    for column, row in zip(columns, wrong.head(MOST).itertuples(), strict=False):
        with column:
            st.image(picture(pixels[row.image], dark=is_dark(), scale=10), width=80)
            st.caption(f"is **{row.digit}**, said **{row.said}**, {row.probability:.0%} sure")
            st.button("Show", key=f"wrong_{row.image}", on_click=show_image, args=(int(row.image),), width="stretch")
    lines = [
        "from xformer.analysis.images import mistakes, read_test_images",
        "mistakes(read_test_images(checkpoint.model))",
    ]
    footer(view, lines, wrong, "wrong", changed=False)
