"""What a model of images says: how probable each digit is, and the test images that it gets wrong."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st
from jaxtyping import Float

from pages.shared.image_input import show_image, test_readings
from pages.shared.layout import is_dark
from pages.shared.notebook import footer, heading, recording
from pages.shared.view import View
from xformer.analysis.images import mistakes
from xformer.tasks.digit_images import digit_images
from xformer.tasks.rules.digits import Digits
from xformer.viz.images import class_bars, picture
from xformer.words import percent

MOST = 12
"""So many wrong answers are shown."""


def class_panel(view: View) -> None:
    """The image beside the bars of the classes, and the verdict in a sentence."""
    runs = {
        name: run.trace.logits[0, 0].softmax(dim=-1).numpy(force=True) for name, run in view.runs().items()
    }  # [digit]
    right = view.source[-1] if view.task.has_right_answer(view.source) else None
    at, bars = st.columns([1, 4], gap="large", vertical_alignment="center")
    with at:
        pixels = (view.changed() or view.original()).example.stream[0].numpy()
        st.image(picture(pixels, dark=is_dark(), scale=24), width=192)
    with bars:
        chart = class_bars(runs, view.task.vocabulary.labels, right, dark=is_dark())
        st.altair_chart(chart, width="stretch", key="classes")
    values = list(runs.values())[-1]
    st.caption(_verdict(view, values, right))
    table = pd.DataFrame({"digit": view.task.vocabulary.labels, **runs})
    footer(view, _code(view, right), table, "classes")


def _verdict(view: View, values: Float[np.ndarray, " digit"], right: int | None) -> str:
    """What is said, how surely, and whether that is right: of a drawn image nobody knows."""
    said = int(np.argmax(values))
    with_changes = f" with {view.what_changed()} (the frames are the original)" if view.is_changed else ""
    says = f"The model says **{said}**{with_changes}, {percent(float(values[said]), 1)} sure"
    ran = "It ran just now, and said this once, at its class token."
    if right is None:
        return f"{says}. Nobody knows what a drawn image is, so this is neither right nor wrong. {ran}"
    rule = view.task.rule
    assert isinstance(rule, Digits)
    number = rule.test_number(view.source)
    verdict = (
        "which is right" if said == right else f"**which is wrong**: {right} gets {percent(float(values[right]), 1)}"
    )
    return f"Test image {number} is a {right}. {says}, {verdict}. {ran}"


def _code(view: View, right: int | None) -> list[str]:
    """The lines that draw the bars of every run that is on the screen."""
    traces = {"changed": "trace", "original": recording(view.original())} if view.is_changed else {"original": "trace"}
    return [
        "from xformer.viz.images import class_bars",
        f"runs = {{{', '.join(f'{name!r}: {trace}' for name, trace in reversed(traces.items()))}}}",
        "p = {name: run.logits[0, 0].softmax(dim=-1).numpy() for name, run in runs.items()}",
        f"class_bars(p, checkpoint.task.vocabulary.labels, {right})",
    ]


def wrong_panel(view: View) -> None:
    """A gallery of the test images that the model itself gets wrong, the surest first; one click shows one on all screens."""
    read = test_readings(view.model)
    wrong = mistakes(read)
    heading(f"{len(wrong)} of {len(read)} test images wrong")
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
    for column, row in zip(columns, wrong.head(MOST).to_dict("records"), strict=False):
        image = int(row["image"])
        with column:
            st.image(picture(pixels[image], dark=is_dark(), scale=10), width=80)
            st.caption(f"is **{row['digit']}**, said **{row['said']}**, {percent(row['probability'], 0)} sure")
            st.button("Show", key=f"wrong_{image}", on_click=show_image, args=(image,), width="stretch")
    lines = [
        "from xformer.analysis.images import mistakes, read_test_images",
        "mistakes(read_test_images(checkpoint.model))",
    ]
    footer(view, lines, wrong, "wrong", changed=False)
