"""The sidebar's input for a model of images: a page to draw on, the test images by number or digit, and those it gets wrong."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd
import streamlit as st

from pages.components.digit_pad import digit_pad, drawn_on
from pages.components.prediction_strip import Lane
from pages.shared import frame, models, resources
from pages.shared.byte_cache import kept
from pages.shared.escape_markdown import escape_markdown
from pages.shared.input_kinds.kind import InputKind, begin
from pages.shared.link import carry
from xformer.adapters import ModelAdapter, own_task_model
from xformer.analysis.images import predict_test_images, wrong_ones
from xformer.errors import InputError
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.tasks.images import N_TEST, digit_images
from xformer.tasks.rules.digits import Digits

PAD = "digit_pad"
_ANY = "any digit"


@kept
def test_predictions(model: str) -> pd.DataFrame:
    """What a model says to each test image; see `predict_test_images`."""
    return predict_test_images(own_task_model(models.subject(model)).model)


class _Image(InputKind):
    is_tall = True

    def ask(self, subject: ModelAdapter, model: str) -> tuple[int, ...]:
        """The image that it reads: a test image with the digit that it is, or what was drawn, of which nobody knows it."""
        rule = own_task_model(subject).task.rule
        assert isinstance(rule, Digits)
        begin(subject.input)
        source = _source(rule)
        digit_pad(source[:-1], key=PAD, on_drawn=_take_drawing)
        number = rule.test_number(source)
        if number is None:
            st.caption("Drawn, so nobody knows the right answer: what the model says is neither right nor wrong.")
        else:
            st.session_state["test_number"] = number
            st.caption(f"Test image {number}: a **{source[-1]}**. Draw on it, or clear it and draw your own.")
        st.session_state.setdefault("test_number", 0)
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            st.number_input("Test image", 0, N_TEST - 1, key="test_number", on_change=_show_number, width=110)
            carry("of_digit")
            st.selectbox("Random, of", [_ANY, *map(str, range(10))], key="of_digit", persist_state="session", width=120)
        first, second = st.columns(2)
        first.button("Random", on_click=_show_random, width="stretch", key="random_input")
        wrong = wrong_ones(test_predictions(model))["image"].tolist()
        second.button(
            "Mistake",
            on_click=_show_wrong,
            args=(wrong, number),
            disabled=not wrong,
            width="stretch",
            key="wrong_input",
            help=f"It gets {len(wrong)} of the {N_TEST} test images wrong; each click shows the next, the surest first.",
        )
        with st.popover("Examples", width="stretch"):
            st.caption("See what the model …")
            for purpose, text in rule.examples().items():
                st.button(purpose, on_click=_show, args=(text,), width="stretch", type="tertiary")
        if remark := rule.remark(source):
            st.caption(f":material/info: {remark}")
        resources.check_memory(model, source)
        return source

    def read_rows(self, run: Reading) -> list[Lane]:
        """Its tokens are patches; what it shows, where anybody knows."""
        return [Lane("is", run.answers if run.has_right_answer else ("?",))]

    def sentence(self, original: Reading, changed: Reading | None, what: str) -> str:
        """What a model of images says, how sure it is, and whether that is right."""
        loss = f"Loss {original.loss:.4f} nats." if original.has_right_answer else "Nobody knows what a drawn image is."
        if changed is None:
            return f"{_class_of(original)}. {loss}"
        if original.has_right_answer:
            loss = f"The loss goes from {original.loss:.4f} to {changed.loss:.4f} nats."
        return f"With {what}: {_uncapped(_class_of(changed))}. Originally: {_uncapped(_class_of(original))}. {loss}"

    def score(self, subject: ModelAdapter, figures: dict[str, Any]) -> tuple[str, str, str]:
        return "Images right", percent(figures["exact_match"]), "Images whose digit it says."


KIND = _Image()


def _class_of(run: Reading) -> str:
    verdict = ("Right: it" if run.n_right else "Wrong: it") if run.has_right_answer else "It"
    return f"{verdict} says {run.predicted[0]}, {percent(run.probability[0])} sure"


def _uncapped(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _source(rule: Digits) -> tuple[int, ...]:
    """What the input says; a link that cannot be read gets a sentence and the usual image."""
    text = str(st.session_state.setdefault("input", rule.default))
    try:
        return tuple(rule.read(text))
    except InputError as error:
        st.warning(escape_markdown(str(error)), icon=":material/link_off:")
        frame.say(str(error))
        _show(rule.default)
        return tuple(rule.read(rule.default))


def show_image(number: int) -> None:
    """Have all screens show a test image. A callback."""
    _show(f"test {number}")


def _show(text: str) -> None:
    st.session_state["input"] = text


def _take_drawing() -> None:
    """The page as it was drawn on; what it was before says nothing about what it is now."""
    if (pixels := drawn_on(PAD)) is not None:
        _show(f"drawn {pixels}".rstrip("0").rstrip())


def _show_number() -> None:
    _show(f"test {st.session_state['test_number']}")


def _show_random() -> None:
    digits = digit_images()[1].digits.tolist()
    wanted = st.session_state["of_digit"]
    _show(f"test {random.choice([i for i, digit in enumerate(digits) if wanted in (_ANY, str(digit))])}")


def _show_wrong(wrong: list[int], now: int | None) -> None:
    place = wrong.index(now) + 1 if now in wrong else 0
    _show(f"test {wrong[place % len(wrong)]}")
