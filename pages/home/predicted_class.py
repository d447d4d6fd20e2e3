"""What a model of images predicts: how probable each digit is, and the test images that it gets wrong."""

from __future__ import annotations

import streamlit as st

from pages.shared.call import Call
from pages.shared.input_kinds.image import show_image, test_predictions
from pages.shared.layout import is_dark
from pages.shared.notebook import heading
from pages.shared.picture import footer, shown
from pages.shared.view import View
from xformer import analysis, viz
from xformer.analysis.images import wrong_ones
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.tasks.images import digit_images
from xformer.tasks.rules.digits import Digits
from xformer.viz.images import picture

MOST_MISTAKES = 12
"""So many are shown."""


def class_panel(view: View) -> None:
    """The image beside the bars of the classes, and the verdict in a sentence."""
    original, changed = view.original(), view.changed()
    run = changed or original
    call = Call(viz.classes, (run,), {} if changed is None else {"before": original})
    at, bars = st.columns([1, 4], gap="large", vertical_alignment="center")
    with at:
        st.image(picture(run.example.stream[0].numpy(), dark=is_dark(), scale=24), width=192)
    with bars:
        shown(view, call, "classes")
    st.caption(_verdict(view, run))
    footer(view, "classes", [call])


def _verdict(view: View, run: Reading) -> str:
    """What is predicted, how surely, and whether that is right: of a drawn image nobody knows."""
    with_changes = f" with {view.what_changed()} (the frames are the original)" if view.is_changed else ""
    says = f"The model says **{run.predicted[0]}**{with_changes}, {percent(run.probability[0], 1)} sure"
    ran = "It ran just now, and said this once, at its class token."
    if not run.has_right_answer:
        return f"{says}. Nobody knows what a drawn image is, so this is neither right nor wrong. {ran}"
    rule, [right], [of_right] = view.own.task.rule, run.answer, run.probability_of_answer
    assert isinstance(rule, Digits)
    verdict = "which is right" if run.right[0] else f"**which is wrong**: {right} gets {percent(of_right, 1)}"
    return f"Test image {rule.test_number(view.source)} is a {right}. {says}, {verdict}. {ran}"


def mistakes_panel(view: View) -> None:
    """A gallery of the test images that the model itself gets wrong, the surest first; one click shows one on all screens."""
    predictions = test_predictions(view.model)
    wrong = wrong_ones(predictions)
    heading(f"{len(wrong)} of {len(predictions)} test images wrong")
    if wrong.empty:
        st.caption("It gets every one of them right.")
        return
    st.caption(
        "By the model’s own run, the surest first"
        + (f"; the first {MOST_MISTAKES} are shown" if len(wrong) > MOST_MISTAKES else "")
        + ". A click takes an image to all screens."
    )
    pixels = digit_images()[1].pixels.numpy()
    columns = st.columns(min(MOST_MISTAKES, max(6, len(wrong))), gap="small")
    for column, row in zip(columns, wrong.head(MOST_MISTAKES).to_dict("records"), strict=False):
        image = int(row["image"])
        with column:
            st.image(picture(pixels[image], dark=is_dark(), scale=10), width=80)
            st.caption(f"is **{row['digit']}**, said **{row['predicted']}**, {percent(row['probability'], 0)} sure")
            st.button("Show", key=f"wrong_{image}", on_click=show_image, args=(image,), width="stretch")
    footer(view, "wrong", [Call(analysis.mistakes, (view.original(),))], wrong)
