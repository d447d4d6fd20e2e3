"""The predictions of a model for the current input: an answer, a continuation, filled gaps, or the class of an image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.components.controls import Lane, prediction_strip
from pages.components.players import scene
from pages.compute import cached_runs
from pages.compute.background_job import interruptible_progress
from pages.compute.byte_cache import shared
from pages.compute.cached_runs import Predictions
from pages.compute.call import PictureCall
from pages.compute.picture import footer, heading, html, menu, shown
from pages.controls.columns import caption, is_dark
from pages.controls.live_download import live_menu
from pages.controls.text import escape_markdown
from pages.controls.widgets import SHARE
from pages.state import screens
from pages.state.inputs import lane_of, show_image, test_predictions
from pages.state.link import address
from pages.state.view import View, editing
from xformer import analysis, viz
from xformer.analysis.images import misclassified
from xformer.edit_links import changed_source
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.tasks import texts
from xformer.tasks.images import digit_images
from xformer.tasks.rules.digits import Digits
from xformer.viz.images import picture
from xformer.widgets.page import scene_page
from xformer.widgets.scene_data import MAX_TOKENS as SCENE_TOKENS
from xformer.widgets.scene_data import scene_data

LENGTHS = (100, 200, 400, 800)
TEMPERATURES = {0.0: "greedy", 0.5: "careful", 0.8: "usual", 1.2: "daring"}
MAX_GAPS, MAX_TOKENS = 4, 8
MAX_MISTAKES = 12
"""Maximum number of misclassified images shown."""


def answer_panel(view: View) -> None:
    """Draw the input and the answer of a task model, and the number of right tokens."""
    task = view.own.task
    end = task.vocabulary.special.end
    lanes, sources = [_typed_lane(view)], (view.source, changed_source(view.edit_links, view.source))
    answer, right = [], ()
    for (name, predictions), source in zip(_predictions(view).items(), sources, strict=False):
        answer = [*task.answer(list(source)), *([] if end is None else [end])]
        right = tuple(i < len(answer) and token == answer[i] for i, (token, _) in enumerate(predictions))
        lanes.append(lane_of(view.adapter, name, predictions, right))
    is_encoder = view.shape.architecture == "encoder"
    if view.is_changed or not is_encoder or len(view.source) >= SCENE_TOKENS:  # otherwise the scene shows this answer
        prediction_strip(lanes, key="prediction")
    how = "all at once" if is_encoder else "one token after the other"
    edit = " Click a token in the picture to change it." if editing(view) else ""
    is_all_right = len(right) == len(answer) and all(right)
    verdict = "All tokens right" if is_all_right else f"{sum(right)} of {len(answer)} right"
    under = f" with {view.change_summary()}" if view.is_changed else ""
    st.caption(f"{verdict}{under}, predicted {how}.{edit}")


def _typed_lane(view: View) -> Lane:
    return Lane("you type", tuple(view.adapter.token_labels[token] for token in view.source))


def _predictions(view: View) -> dict[str, Predictions]:
    """Return the decoded tokens of the unchanged and, if any, the changed model, by the names of their lanes."""
    with interruptible_progress("Decoding") as step:
        runs = {"model": cached_runs.decoded(view.model, view.source, step=step)}
        if view.is_changed:
            changed = view.change_summary()
            runs[f"model, {changed}"] = cached_runs.decoded(*view.key(changed), step=step)
    return runs


def continuation_panel(view: View) -> None:
    """Draw the likeliest continuation of a text as a strip, and a longer sampled one."""
    lanes = [lane_of(view.adapter, name, predictions) for name, predictions in _predictions(view).items()]
    prediction_strip([_typed_lane(view), *lanes], key="prediction")
    unit = view.input.unit
    caption(f"Greedy decoding: the likeliest {unit} each time; a bar is its probability. There is no right answer.")
    st.fragment(_sample)(view)


def _sample(view: View) -> None:
    look: dict[str, Any] = {"required": True, "label_visibility": "collapsed"}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.markdown("**A sampled continuation**", width="content")
        temperature = st.segmented_control(
            "Temperature", list(TEMPERATURES), default=0.8, format_func=TEMPERATURES.__getitem__, key="story_temperature",
            help="Temperature 0, 0.5, 0.8 or 1.2: the higher, the more often a less likely token is sampled.", **look,
        )  # fmt: skip
        n = st.segmented_control(
            view.input.units.capitalize(), LENGTHS, default=LENGTHS[0], key="story_length",
            format_func=lambda n: f"{n} {view.input.units}" if n == LENGTHS[-1] else str(n), **look,
        )  # fmt: skip
        wanted = (view.model, view.source)
        if view.task is None and st.session_state.get("story_wanted") != wanted:  # a large model takes a while
            write = partial(st.session_state.__setitem__, "story_wanted", wanted)
            st.button("Let it write", icon=":material/edit:", key="story_write", on_click=write)
            return
        if st.button("Again", icon=":material/refresh:", key="story_again", help="Another sample."):
            st.session_state["story_seed"] = st.session_state.get("story_seed", 0) + 1
    text = st.empty()

    def show(tokens: Sequence[int]) -> None:
        text.code(view.input.decode([*view.original().ids(), *tokens]), language=None, wrap_lines=True)

    with interruptible_progress("Generating") as step:
        seed = st.session_state.get("story_seed", 0)
        show(cached_runs.continuation(view.model, view.source, n, temperature, seed, step=step, show=show))
    st.caption(_window(view))


def _window(view: View) -> str:
    """Describe how much of the text the model reads at once."""
    if view.task is None:
        return f"It reads at most {view.shape.max_len:,} {view.input.units}, including its own, and then stops."
    read, title = view.task.config.max_len, escape_markdown(texts.title(view.task.config.text))
    how = "beyond that, each new one replaces the first one, and the model reads the rest again"
    if view.is_encoder_decoder:
        how = f"its encoder reads the last {read}, its decoder writes {read} more, and so on"
    return f"It was trained on {title} and reads at most {read} {view.input.units} at once: {how}."


def filled_panel(view: View) -> None:
    """Draw the predictions at the gaps of a text with the likeliest tokens at the first gaps, or the decoded target."""
    original, changed = view.original(), view.changed()
    run = changed or original
    prediction_strip(view.kind.rows(original, changed, f"predicts, {view.change_summary()}"), key="prediction")
    if not run.target_positions:
        return
    if view.is_encoder_decoder:
        caption("Greedy decoding; a bar is the probability of a token.")
        return
    if run.answer == tuple(run.ids()[position] for position in run.target_positions):
        caption("This text has no gaps: each position shows the token that the model finds likeliest there.")
        return
    shown = run.target_positions[:MAX_GAPS]
    for column, position in zip(st.columns(max(2, len(shown))), shown, strict=False):
        p = run.logits[0, position].softmax(dim=-1).topk(min(MAX_TOKENS, view.shape.vocab_size))
        names = [view.adapter.token_labels[token] for token in p.indices.tolist()]
        frame = pd.DataFrame({"token": names, "probability": p.values.tolist()})
        with column:
            st.markdown(f"**Position {position}**: {escape_markdown(run.tokens[position])}")
            st.dataframe(frame, hide_index=True, column_config={"probability": SHARE}, key=f"gap_{position}")
    left = len(run.target_positions) - len(shown)
    more = f" {left} more gaps are not shown." if left else ""
    caption(f"The likeliest tokens at each gap; there is no right answer.{more}")


def class_panel(view: View) -> None:
    """Draw the image, the probabilities of the classes, and whether the likeliest one is right."""
    original, changed = view.original(), view.changed()
    run = changed or original
    call = PictureCall(viz.classes, (run,), {} if changed is None else {"before": original})
    at, bars = st.columns([1, 4], gap="large", vertical_alignment="center")
    with at:
        st.image(picture(run.example.input_ids[0].numpy(), dark=is_dark(), scale=24), width=192)
    with bars:
        shown(view, call, "classes")
    st.caption(_verdict(view, run))
    footer(view, "classes", [call])


def _verdict(view: View, run: Reading) -> str:
    with_changes = f" with {view.change_summary()} (the frames are the original)" if view.is_changed else ""
    predicts = f"The model predicts **{run.predicted[0]}**{with_changes} with {percent(run.probability[0], 1)}"
    if not run.has_right_answer:
        return f"{predicts}. The digit of a drawn image is not known, so this is neither right nor wrong."
    rule, [right], [of_right] = view.own.task.rule, run.answer, run.probability_of_answer
    assert isinstance(rule, Digits)
    verdict = "which is right" if run.right[0] else f"**which is wrong**: {right} gets {percent(of_right, 1)}"
    return f"Test image {rule.test_number(view.source)} is a {right}. {predicts}, {verdict}."


def mistakes_panel(view: View) -> None:
    """Draw the test images that the model gets wrong, with buttons to show one on all screens."""
    predictions = test_predictions(view.model)
    wrong = misclassified(predictions)
    heading(f"{len(wrong)} of {len(predictions)} test images wrong")
    if wrong.empty:
        st.caption("The model gets all of them right.")
        return
    first = f"; the first {MAX_MISTAKES} are shown" if len(wrong) > MAX_MISTAKES else ""
    st.caption(f"For the unchanged model, highest probability first{first}. “Show” makes one the input of all screens.")
    pixels = digit_images()[1].pixels.numpy()
    columns = st.columns(min(MAX_MISTAKES, max(6, len(wrong))), gap="small")
    for column, row in zip(columns, wrong.head(MAX_MISTAKES).to_dict("records"), strict=False):
        image = int(row["image"])
        with column:
            st.image(picture(pixels[image], dark=is_dark(), scale=10), width=80)
            st.caption(f"is **{row['digit']}**, predicted **{row['predicted']}** with {percent(row['probability'], 0)}")
            st.button("Show", key=f"wrong_{image}", on_click=show_image, args=(image,), width="stretch")
    footer(view, "wrong", [PictureCall(analysis.mistakes, (view.original(),))], wrong)


def scene_panel(view: View) -> None:
    """Draw the run of the model as a scene, the changed run if any; its tokens can be edited in place."""
    reading, edit = view.changed() or view.original(), editing(view)
    call = PictureCall(scene_data, (reading,), {"edit": edit and (edit.texts, edit.first)})
    clicked = scene(shared.get(("scene", *call.key(view)), call.make), key="scene", editing=edit)
    link = address()
    with menu("scene"):
        html(lambda: scene_page(scene_data(reading), [str(reading.code), *link()]), "scene", view.model)
        live_menu(view, "scene", {"tab": "scene"})
    if clicked is not None:
        head = {"head": clicked.head} if clicked.head else {}
        st.switch_page(screens.file_of(clicked.screen), query_params=head)  # the sidebar keeps its model and input
