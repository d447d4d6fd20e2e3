"""What a model answers by itself: a lane of what is typed, one of what it says, and one under the changes that are on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
import streamlit as st

from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared import resources
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.inputs import show_image, test_predictions
from pages.shared.layout import caption, is_dark
from pages.shared.patience import patience
from pages.shared.picture import footer, heading, shown
from pages.shared.view import View
from xformer import analysis, viz
from xformer.analysis.images import wrong_ones
from xformer.formatting import percent
from xformer.interventions import changed_source
from xformer.reading import Reading
from xformer.tasks import texts
from xformer.tasks.images import digit_images
from xformer.tasks.rules.digits import Digits
from xformer.viz.images import picture

Predictions = tuple[tuple[int, float], ...]
"""Tokens, each with its probability."""


def answer_panel(view: View) -> None:
    """The lanes, and how many tokens are right."""
    task, label = view.own.task, view.subject.labels
    end = task.vocabulary.special.end
    lanes, sources = [typed(view)], (view.source, changed_source(view.interventions, view.source))
    answer, right = [], ()
    for (name, predictions), source in zip(predicted(view, "It answers", "it says").items(), sources, strict=False):
        answer = [*task.answer(list(source)), *([] if end is None else [end])]
        right = tuple(i < len(answer) and token == answer[i] for i, (token, _) in enumerate(predictions))
        lanes.append(Lane(name, tuple(label[t] for t, _ in predictions), right, tuple(p for _, p in predictions)))
    prediction_strip(lanes, key="prediction")
    how = "all at once" if view.shape.architecture == "encoder" else "one token after the other"
    is_all_right = len(right) == len(answer) and all(right)
    verdict = "Every token is right" if is_all_right else f"{sum(right)} of {len(answer)} right"
    under = f" with {view.what_changed()}" if view.is_changed else ""
    st.caption(f"{verdict}{under}. The model ran just now and said this {how}; a bar shows how sure it was.")


def typed(view: View) -> Lane:
    """The lane of what is typed."""
    return Lane("you type", tuple(view.subject.labels[token] for token in view.source))


def predicted(view: View, wait: str, name: str) -> dict[str, Predictions]:
    """What the model predicts token by token, and what it does under the changes, by the names of their lanes."""
    with patience(wait) as step:
        runs = {name: resources.decoded(view.model, view.source, step=step)}
        if view.is_changed:
            changed = view.what_changed()
            runs[f"{name}, {changed}"] = resources.decoded(*view.key(changed), step=step)
    return runs


LENGTHS = (100, 200, 400, 800)

TEMPERATURES = {0.0: "the likeliest", 0.5: "careful", 0.8: "usual", 1.2: "daring"}


def continuation_panel(view: View) -> None:
    """The strip, what can be said about it, and the story."""
    _strip(view)
    st.fragment(_story)(view)


def _strip(view: View) -> None:
    label, lanes = view.subject.labels, [typed(view)]
    for name, predictions in predicted(view, "It goes on with the text", "it goes on").items():
        lanes.append(Lane(name, tuple(label[t] for t, _ in predictions), probability=tuple(p for _, p in predictions)))
    prediction_strip(lanes, key="prediction")
    halves = "Its encoder read the first half of what you typed, and it goes on from there. " if view.is_pair else ""
    st.caption(
        f"The model ran just now and took its likeliest {view.input.one} each time; a bar shows how sure it was. "
        f"{halves}Nobody knows the right answer: a text may go on in many ways."
        " A dot is a space, ↵ a new line.",
        width="stretch",
    )


def _story(view: View) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.markdown("**How it would go on**", width="content")
        temperature = st.segmented_control(
            "Choice",
            list(TEMPERATURES),
            default=0.8,
            required=True,
            format_func=lambda value: TEMPERATURES[value],
            key="story_temperature",
            label_visibility="collapsed",
            help=f"Temperature 0, 0.5, 0.8 or 1.2: how readily it takes a {view.input.one} that is not the likeliest.",
        )
        n = st.segmented_control(
            view.input.many.capitalize(),
            LENGTHS,
            default=LENGTHS[0],
            required=True,
            format_func=lambda value: f"{value} {view.input.many}" if value == LENGTHS[-1] else str(value),
            key="story_length",
            label_visibility="collapsed",
        )
        wanted = (view.model, view.source)
        if view.task is None and st.session_state.get("story_wanted") != wanted:  # a large model writes for a while
            write = partial(st.session_state.__setitem__, "story_wanted", wanted)
            st.button("Let it write", icon=":material/edit:", key="story_write", on_click=write)
            return
        if st.button("Again", icon=":material/refresh:", key="story_again", help="Another draw."):
            st.session_state["story_seed"] = st.session_state.get("story_seed", 0) + 1
    text = st.empty()

    def show(tokens: Sequence[int]) -> None:
        text.code(view.input.plain([*view.original().ids(), *tokens]), language=None, wrap_lines=True)

    with patience("It writes") as step:
        seed = st.session_state.get("story_seed", 0)
        show(resources.continuation(view.model, view.source, n, temperature, seed, step=step, show=show))
    if view.task is None:
        st.caption(
            f"It reads at most {view.shape.max_len:,} {view.input.many}, its own among them, and stops where there are as many."
        )
        return
    read, trained = (
        view.task.config.max_len,
        f"was trained on {escape_markdown(texts.title(view.task.config.text))} and ",
    )
    st.caption(
        f"It {trained}never sees more than {read} {view.input.many} at once: "
        + (
            f"its encoder reads the last {read}, its decoder says {read} more, and so on."
            if view.is_pair
            else f"once there are {read}, the first one drops out for each that comes, and it reads the rest anew."
        )
    )


MOST_GAPS, MOST_TOKENS = 4, 8


def filled_panel(view: View) -> None:
    """The lanes, and for each of the first gaps the likeliest tokens with their probabilities."""
    original, changed = view.original(), view.changed()
    run = changed or original
    prediction_strip(view.kind.rows(original, changed, f"says, {view.what_changed()}"), key="prediction")
    if not run.target_positions:
        return
    if view.is_pair:
        caption("The model ran just now and wrote this, its likeliest token each time; a bar shows how sure it was.")
        return
    if run.answer == tuple(run.ids()[position] for position in run.target_positions):
        caption(
            "Nothing is missing from this text: at each place stands the token that the model finds likeliest there."
        )
        return
    shown = run.target_positions[:MOST_GAPS]
    for column, position in zip(st.columns(max(2, len(shown))), shown, strict=False):
        p = run.logits[0, position].softmax(dim=-1).topk(min(MOST_TOKENS, view.shape.vocab_size))
        names = [view.subject.labels[token] for token in p.indices.tolist()]
        with column:
            st.markdown(f"**Position {position}**, which reads {escape_markdown(run.tokens[position])}")
            st.dataframe(
                pd.DataFrame({"token": names, "probability": p.values.tolist()}),
                hide_index=True,
                column_config={
                    "probability": st.column_config.ProgressColumn(min_value=0.0, max_value=1.0, format="percent")
                },
                key=f"gap_{position}",
            )
    left = len(run.target_positions) - len(shown)
    more = f" {left} more gaps are not shown." if left else ""
    caption(f"The model ran just now and says what is missing; nobody knows what is right.{more}")


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
