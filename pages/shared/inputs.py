"""The inputs of models on screens: how the sidebar asks for one, its tokens in lanes, and a sentence on the prediction.

A kind of input is a subclass of `InputKind`, listed in `KINDS` under the name that the library gives it (`Input.kind`).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pandas as pd
import streamlit as st

from pages.components.digit_pad import digit_pad, drawn_on
from pages.components.prediction_strip import Lane
from pages.shared import frame, models, resources
from pages.shared.byte_cache import kept
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link import carry
from pages.shared.widgets import file_box, typed
from xformer.adapters import Input, ModelAdapter, own_task_model
from xformer.adapters.huggingface_opening import CLASSES
from xformer.adapters.inputs import SAMPLES, keep_upload, picture
from xformer.analysis.images import predict_test_images, wrong_ones
from xformer.analysis.residual import WHOLE
from xformer.errors import InputError
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.tasks.images import N_TEST, digit_images
from xformer.tasks.rules.digits import Digits

MOST_TYPED = 20_000
"""Characters of an input: more than any model here reads, and what a window of a text is taken from."""


class InputKind:
    """One kind of input; this class itself serves symbols that are typed: numbers, digits, brackets."""

    is_tall = False
    """Whether the input is so tall that the choice of a mask has to stand above it."""
    outline = "no right answer is known here; the outline marks the final prediction of the unchanged model"
    """What the outline in the logit lens marks where no right answer is known."""
    verb = "says"
    """Joins a position and its known token, where no token is right or wrong."""
    meant = "predicted"
    """An adjective for that token."""

    def ask(self, subject: ModelAdapter, model: str) -> tuple[int, ...]:
        """Ask for an input. Returns the source: the typed text, or the last readable one below an error message.

        Raises:
            InputError: Tracing even the last readable input takes more memory than allowed.
        """
        of = subject.input
        _begin(of)
        carry("input")
        st.text_input("Input", key="input", persist_state="session", help=of.typed)
        examples_at, random_at = st.columns(2)
        with examples_at, st.popover("Examples", width="stretch"):
            st.caption("See how the model …")
            for purpose, text in of.examples().items():
                st.button(purpose, on_click=_set_input, args=(text,), width="stretch", type="tertiary")
        random_at.button(
            "Random",
            on_click=_type_random,
            args=(of,),
            width="stretch",
            key="random_input",
            disabled=bool(of.missing),
            help=of.missing or None,
        )
        try:
            whole = of.read(typed(st.session_state["input"], MOST_TYPED))
            source = of.fitted(whole)
            resources.check_memory(model, source)
        except InputError as error:
            st.error(escape_markdown(str(error)), icon=":material/edit:")
            frame.say(f"{error} Still showing the last input that could be read.")
            source = _last_good(subject)
            resources.check_memory(model, source)
            st.caption("Still showing the last input that could be read.")
            return source
        st.session_state["window"] = of.text(source) if len(source) < len(whole) else None
        if len(source) < len(whole):
            st.caption(
                f":material/info: {of.many.capitalize()} {len(whole) - len(source) + 1:,} to {len(whole):,} of your "
                f"{len(whole):,} are shown: the last {len(source):,}, as many as this model reads."
            )
        st.session_state["last_good"] = of.text(source)
        if remark := of.remark(source):
            st.caption(f":material/info: {remark}")
        return source

    def read_rows(self, run: Reading) -> list[Lane]:
        """The lanes of what the model reads."""
        stacks = {"reads": None} if not run.is_pair else {"source": "encoder", "decoder reads": "decoder"}
        return [Lane(name, run.tokens_of(stack)) for name, stack in stacks.items()]

    def rows(self, run: Reading, changed: Reading | None = None, name: str = "") -> list[Lane]:
        """The input, what the model says to it, and what it says in the changed run, aligned by position."""
        if not run.has_logits or run.output in WHOLE:  # then the sentence below says it
            return self.read_rows(run)
        says = said_lane("says" if run.open_output is None else "says next", run)
        more = [] if changed is None else [said_lane(name, changed, says)]
        return [*self.read_rows(run), says, *more]

    def sentence(self, original: Reading, changed: Reading | None, what: str) -> str:
        """How many tokens are right; with changes, from how many to how many that goes."""
        n, given = len(original.answer), ""
        if original.subject.shape.architecture != "encoder":
            given = ", each token given the right ones before it"
        if changed is None:
            return f"{original.n_correct} of {n} right, loss {original.loss:.4f} nats{given}."
        return (
            f"With {what}, {changed.n_correct} of {n} are right instead of {original.n_correct}; the loss goes from "
            f"{original.loss:.4f} to {changed.loss:.4f} nats. {moved(original, changed)}"
        )

    def score(self, subject: ModelAdapter, figures: dict[str, Any]) -> tuple[str, str, str]:
        """How well it does on inputs that it never saw, as label, value and help of a tile."""
        return "Exact match", percent(figures["exact_match"]), "Whole sequences right."


def _set_input(text: str) -> None:
    """Show another input. A callback."""
    st.session_state["input"] = text


def _type_random(of: Input) -> None:
    _set_input(of.random(random.getrandbits(32)))


def _begin(of: Input) -> None:
    """Fill in the default input on the first run, and when the new model cannot read the current one."""
    before = st.session_state.get("input_task", of.name)
    st.session_state["input_task"] = of.name
    st.session_state.setdefault("input", of.default)
    if before != of.name and of.goes_on:  # it could read the old input, which was meant for another task
        _set_input(of.default)
    elif before != of.name:
        try:
            of.read(typed(st.session_state["input"], MOST_TYPED))
        except InputError:
            _set_input(of.default)


def _last_good(subject: ModelAdapter) -> tuple[int, ...]:
    """The last input of this visitor that this model can read, or the default one, or the shortest one."""
    for text in (st.session_state.get("last_good", ""), subject.input.default):
        try:
            source = subject.input.read(text)
            subject.frame(source)
        except InputError:
            continue
        return source
    return subject.input.shortest()


def moved(original: Reading, changed: Reading) -> str:
    """Whether a change moves any prediction that the strip shows, as a sentence."""
    if not original.has_logits:
        return ""
    before, after = (run.logits[0].argmax(dim=-1) for run in (original, changed))
    asked = original.example.labels[0] >= 0
    if original.example.target is None and not original.has_right_answer:
        asked[-1] = True
    is_same = bool((before[: len(asked)][asked] == after[: len(asked)][asked]).all())
    return "It says the same." if is_same else "Outlined: changed."


def first_asked(run: Reading) -> int:
    """The first output with a known token; without one, the output that predicts the next token."""
    return (*run.target_positions, run.open_output or 0)[0]


def said_lane(name: str, run: Reading, before: Lane | None = None) -> Lane:
    """The predicted tokens with their probabilities; marks right ones, and those that differ from `before`."""
    predicted, probability = run.predicted, run.probability
    if run.open_output is not None:
        last = run.logits[0, run.open_output].softmax(dim=-1).max(dim=-1)
        predicted, probability = (*predicted, int(last.indices)), (*probability, last.values.item())
    tokens = tuple(run.subject.labels[token] for token in predicted)
    return Lane(
        name,
        tokens,
        right=run.right if run.has_right_answer else (),
        probability=probability,
        offset=first_asked(run),
        moved=() if before is None else tuple(a != b for a, b in zip(tokens, before.tokens, strict=True)),
    )


def class_sentence(original: Reading, changed: Reading | None, what: str) -> str:
    """The predicted class, or how many tokens get each class, without a verdict: no right answer is known."""
    run = changed or original
    with_what = "" if changed is None else f"With {what}: "
    if len(run.predicted) > 1:
        counts = Counter(run.subject.labels[label] for label in run.predicted).most_common(3)
        said = ", ".join(f"{n} × {escape_markdown(label)}" for label, n in counts)
        return f"{with_what}Its classes for {len(run.predicted)} tokens: {said}."
    if run.probabilities.shape[-1] == 1:  # a number, not a class (a regression)
        before = "" if changed is None else f" instead of {original.logits[0, 0, 0].item():.3f}"
        return f"{with_what}Its output is {run.logits[0, 0, 0].item():.3f}{before}."
    before = "" if changed is None else f" Without the change: {_class_of(original)}."
    return f"{with_what}It says {_class_of(run)}.{before}"


def _class_of(run: Reading) -> str:
    return f"**{escape_markdown(run.subject.labels[run.predicted[0]])}** with probability {percent(run.probability[0])}"


class TextKind(InputKind):
    """Text: no token is right or wrong, but the real next tokens are more or less expected."""

    verb = "really followed by"
    meant = "next"
    outline = "a text has no right answer; the outline marks where the likeliest {one} is the real next one"

    def read_rows(self, run: Reading) -> list[Lane]:
        """Adds a lane of the real next tokens, with the probability of each."""
        if not run.subject.input.goes_on:
            return super().read_rows(run)
        comes = Lane("comes next", run.answers, probability=run.probability_of_answer, offset=first_asked(run))
        return [*super().read_rows(run), *([comes] if run.target_positions else [])]

    def sentence(self, original: Reading, changed: Reading | None, what: str) -> str:
        """How probable the real next tokens are: a text may go on in many ways."""
        run, one = changed or original, original.subject.input.one
        if original.output in CLASSES:
            return class_sentence(original, changed, what)
        if original.output == "answer_span":
            return _span_sentence(original, changed, what)
        if not original.subject.input.goes_on:
            return _likeliest(original, changed, what)
        expects = f"the {one} that really comes next gets **{percent(math.exp(-run.loss), 1)}** (the geometric mean)"
        if changed is None:
            return f"T{expects[1:]}: {_bits(run)}. A text may go on in many ways, so no guess is right or wrong."
        return f"With {what} {expects}, {_bits(run)} instead of {_bits(original)}. {moved(original, run)}"

    def score(self, subject: ModelAdapter, figures: dict[str, Any]) -> tuple[str, str, str]:
        one, loss, n = subject.input.one, figures["loss"], len(subject.input.replacements)
        read = f"The loss on text it never read, {loss:.4f} nats, in bits."
        knowing = f"Knowing nothing, it would need {math.log2(n):.2f}."
        return f"Bits per {one}", f"{loss / math.log(2):.3f}", f"{read} {knowing}"


def _span_sentence(original: Reading, changed: Reading | None, what: str) -> str:
    """The answer that a model finds in its input, from the likeliest start to the likeliest end."""
    run = changed or original
    with_what = "" if changed is None else f"With {what}: "
    start, end = run.predicted
    p = ", ".join(percent(one) for one in run.probability)
    if end < start:
        return f"{with_what}It finds no answer: the likeliest end, token {end + 1}, is before the start, {start + 1}."
    answer = run.subject.input.plain(run.ids()[start : end + 1]).strip()
    return (
        f"{with_what}Its answer is **{escape_markdown(answer)}**, tokens {start + 1} to {end + 1} (start and end: {p})."
    )


def _likeliest(original: Reading, changed: Reading | None, what: str) -> str:
    """The mean probability of the predictions of a model that fills gaps or labels a text."""
    sure = f"**{percent(sum(original.probability) / len(original.probability), 1)}**"
    if changed is None:
        n, one = len(original.probability), original.subject.input.one
        return f"Its likeliest {one} gets {sure}{' on average' if n > 1 else ''} here; no right answer is known."
    then = percent(sum(changed.probability) / len(changed.probability), 1)
    return f"With {what} its likeliest token gets {then} instead of {sure}. {moved(original, changed)}"


def _bits(run: Reading) -> str:
    return f"{run.loss / math.log(2):.3f} bits per {run.subject.input.one}"


_PICTURE_TYPES = ["png", "jpg", "jpeg", "webp", "gif", "bmp"]

_MAX_MEGABYTES = 16
"""The largest file that is taken as a picture."""

_MOST_CLASSES = 3
"""So many of the likeliest classes are named."""


class PictureKind(InputKind):
    """A photograph for a vision model: a sample or an upload, and the likeliest classes."""

    is_tall = True

    def ask(self, subject: ModelAdapter, model: str) -> tuple[int, ...]:
        """Ask for a sample or an upload. An unknown name gets a warning and the default picture."""
        of = subject.input
        _begin(of)
        source, name = _source(subject)
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            st.image(picture(source), caption="Your picture" if name not in SAMPLES else name.capitalize(), width=130)
            with st.container(gap="small", width="stretch"):
                for sample in SAMPLES:
                    st.button(
                        sample.capitalize(),
                        on_click=_set_input,
                        args=(sample,),
                        disabled=sample == name,
                        width="stretch",
                        key=f"picture_{sample}",
                    )
        with st.expander("Upload a picture", icon=":material/upload:"):
            file_box("A picture of your own", _PICTURE_TYPES, _MAX_MEGABYTES, _take, key="picture_file")
        resources.check_memory(model, source)
        return source

    def read_rows(self, run: Reading) -> list[Lane]:
        """One cell for the picture: its patches are too many for a lane."""
        name = run.subject.input.text(run.example.source)
        return [Lane("reads", (name if name in SAMPLES else "upload",))]

    def rows(self, run: Reading, changed: Reading | None = None, name: str = "") -> list[Lane]:
        """The picture, and the likeliest classes with their probabilities, the likeliest first."""
        if not run.has_logits:
            return self.read_rows(run)
        says = _likeliest_classes(run, "says")
        return [*self.read_rows(run), says, *([] if changed is None else [_likeliest_classes(changed, name, says)])]

    def sentence(self, original: Reading, changed: Reading | None, what: str) -> str:
        """The likeliest class with its probability and the next two; with changes also what it was without them."""
        said = class_sentence(original, changed, what)
        lane = _likeliest_classes(changed or original, "")
        pairs = list(zip(lane.tokens, lane.probability, strict=True))[1:]
        if not pairs:
            return said
        return f"{said} Next: {', '.join(f'{escape_markdown(label)} {percent(p)}' for label, p in pairs)}."


def _likeliest_classes(run: Reading, name: str, before: Lane | None = None) -> Lane:
    """The likeliest classes of a picture, those that `before` has not at the same place marked."""
    p = run.probabilities[0]  # [vocab]
    top = p.topk(min(_MOST_CLASSES, len(p)))
    tokens = tuple(run.subject.labels[at] for at in top.indices.tolist())
    moved = () if before is None else tuple(a != b for a, b in zip(tokens, before.tokens, strict=True))
    return Lane(name, tokens, probability=tuple(top.values.tolist()), moved=moved)


def _source(subject: ModelAdapter) -> tuple[tuple[int, ...], str]:
    """The source and the name of the picture that is chosen."""
    name = str(st.session_state["input"]).strip()
    try:
        return subject.input.read(name), name
    except InputError as error:
        st.warning(escape_markdown(str(error)), icon=":material/link_off:")
        frame.say(str(error))
        _set_input(subject.input.default)
        return subject.input.read(subject.input.default), subject.input.default


def _take(content: bytes, file_name: str) -> str:
    _set_input(keep_upload(content))
    return "This is the input now. It stays on this server for a while only."


PAD = "digit_pad"

_ANY = "any digit"


@kept
def test_predictions(model: str) -> pd.DataFrame:
    """What a model says to each test image; see `predict_test_images`."""
    return predict_test_images(own_task_model(models.subject(model)).model)


class ImageKind(InputKind):
    """A small image: a drawing, or a test image by number, by digit, or among the mistakes of the model."""

    is_tall = True

    def ask(self, subject: ModelAdapter, model: str) -> tuple[int, ...]:
        """Ask for a test image, whose digit is known, or a drawing, whose digit is not."""
        rule = own_task_model(subject).task.rule
        assert isinstance(rule, Digits)
        _begin(subject.input)
        source = _image_source(rule)
        digit_pad(source[:-1], key=PAD, on_drawn=_take_drawing)
        number = rule.test_number(source)
        if number is None:
            st.caption("A drawing has no known answer: the prediction is neither right nor wrong.")
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
                st.button(purpose, on_click=_set_input, args=(text,), width="stretch", type="tertiary")
        if remark := rule.remark(source):
            st.caption(f":material/info: {remark}")
        resources.check_memory(model, source)
        return source

    def read_rows(self, run: Reading) -> list[Lane]:
        """The digit that the image shows, where it is known."""
        return [Lane("is", run.answers if run.has_right_answer else ("?",))]

    def sentence(self, original: Reading, changed: Reading | None, what: str) -> str:
        """The predicted digit, its probability, and whether it is right."""
        loss = (
            f"Loss {original.loss:.4f} nats."
            if original.has_right_answer
            else "The digit of a drawn image is not known."
        )
        if changed is None:
            return f"{_digit_of(original)}. {loss}"
        if original.has_right_answer:
            loss = f"The loss goes from {original.loss:.4f} to {changed.loss:.4f} nats."
        return f"With {what}: {_uncapped(_digit_of(changed))}. Originally: {_uncapped(_digit_of(original))}. {loss}"

    def score(self, subject: ModelAdapter, figures: dict[str, Any]) -> tuple[str, str, str]:
        return "Images right", percent(figures["exact_match"]), "Images whose digit it says."


def _digit_of(run: Reading) -> str:
    verdict = ("Right: it" if run.n_correct else "Wrong: it") if run.has_right_answer else "It"
    return f"{verdict} says {run.predicted[0]}, {percent(run.probability[0])} sure"


def _uncapped(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _image_source(rule: Digits) -> tuple[int, ...]:
    """What the input says; a link that cannot be read gets a sentence and the usual image."""
    text = str(st.session_state.setdefault("input", rule.default))
    try:
        return tuple(rule.read(text))
    except InputError as error:
        st.warning(escape_markdown(str(error)), icon=":material/link_off:")
        frame.say(str(error))
        _set_input(rule.default)
        return tuple(rule.read(rule.default))


def _take_drawing() -> None:
    """The page as it was drawn on; what it was before says nothing about what it is now."""
    if (pixels := drawn_on(PAD)) is not None:
        _set_input(f"drawn {pixels}".rstrip("0").rstrip())


def _show_number() -> None:
    _set_input(f"test {st.session_state['test_number']}")


def _show_random() -> None:
    digits = digit_images()[1].digits.tolist()
    wanted = st.session_state["of_digit"]
    _set_input(f"test {random.choice([i for i, digit in enumerate(digits) if wanted in (_ANY, str(digit))])}")


def _show_wrong(wrong: list[int], now: int | None) -> None:
    place = wrong.index(now) + 1 if now in wrong else 0
    _set_input(f"test {wrong[place % len(wrong)]}")


def show_image(number: int) -> None:
    """Have all screens show a test image. A callback."""
    _set_input(f"test {number}")


KINDS: dict[str, InputKind] = {
    "symbols": InputKind(),
    "text": TextKind(),
    "picture": PictureKind(),
    "image": ImageKind(),
}


def kind_of(subject: ModelAdapter) -> InputKind:
    """How screens ask for and show the kind of input that a model reads."""
    return KINDS[subject.input.kind]
