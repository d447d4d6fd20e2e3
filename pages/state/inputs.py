"""The inputs of models on screens: the input controls in the sidebar, lanes of tokens, and a sentence about the prediction.

Each kind of input is a subclass of `InputKind`, listed in `KINDS` under its name in the library (`Input.kind`).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import pandas as pd
import streamlit as st

from pages.components.elements import Lane, digit_pad, drawn_on
from pages.compute import cached_runs, models
from pages.compute.byte_cache import cached
from pages.controls import embed
from pages.controls.text import escape_markdown
from pages.controls.widgets import file_box, validate_text
from pages.state.link import keep_widget_value
from xformer.adapters import Input, ModelAdapter, own_task_model
from xformer.adapters.huggingface_opening import CLASSES
from xformer.adapters.inputs import SAMPLES, keep_upload, picture
from xformer.analysis.images import misclassified, predict_test_images
from xformer.analysis.residual import WHOLE
from xformer.errors import InputError
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.tasks.images import N_TEST
from xformer.tasks.rules.digits import Digits

MAX_EDITED = 256
"""Maximum tokens of an input that can be edited one by one."""
MAX_TYPED = 20_000
"""Maximum characters of an input. This is more than any model here reads; the model reads the end of a longer text."""


@dataclass(frozen=True)
class Pieces:
    """A typed text split at token boundaries.

    "3 7 12" is split into "3", " 7" and " 12", followed by another " 12" as the template of a token to add.
    """

    texts: tuple[str, ...] = ()
    first: int = 0
    """The index in the source of the first of these tokens."""


class InputKind:
    """One kind of input. This base class handles typed symbols: numbers, digits, brackets."""

    is_typed = True
    """Whether the input is typed text, whose tokens can be edited one by one. Other inputs are tall and go below the mask."""

    def ask(self, adapter: ModelAdapter, model: str) -> tuple[int, ...]:
        """Draw the input field and return the source: the typed text, or the last readable one below an error message.

        Raises:
            InputError: Tracing even the last readable input would take more memory than allowed.
        """
        of = adapter.input
        _init_input(of)
        keep_widget_value("input")
        st.text_input("Input", key="input", persist_state="session", help=of.format_hint)
        row = st.container(horizontal=True, gap="small")
        with row.popover("Examples", width="stretch"):
            st.caption("See how the model …")
            offer_examples(of.examples(), set_input)
        draw, missing = partial(set_random_input, of), of.no_sample_reason
        row.button("Random", on_click=draw, width="stretch", key="random_input", help=missing, disabled=bool(missing))
        try:
            whole = of.read(validate_text(st.session_state["input"], MAX_TYPED))
            source = of.truncate(whole)
            cached_runs.check_memory(model, source)
        except InputError as error:
            st.error(escape_markdown(str(error)), icon=":material/edit:")
            embed.say(f"{error} Still showing the last input that could be read.")
            source = _last_good(adapter)
            cached_runs.check_memory(model, source)
            st.caption("Still showing the last input that could be read.")
            return source
        st.session_state["window"] = of.text(source) if len(source) < len(whole) else None
        if len(source) < len(whole):
            st.caption(
                f":material/info: {of.units.capitalize()} {len(whole) - len(source) + 1:,} to {len(whole):,} of your "
                f"{len(whole):,} are shown: this model reads only the last {len(source):,}."
            )
        st.session_state["last_good"] = of.text(source)
        if remark := of.remark(source):
            st.caption(f":material/info: {remark}")
        return source

    def read_rows(self, run: Reading) -> list[Lane]:
        """Return the lanes of the tokens that the model reads."""
        stacks: dict[str, str | None] = {"source": "encoder"} if run.is_encoder_decoder else {"reads": None}
        if (
            run.is_encoder_decoder and not run.has_right_answer
        ):  # otherwise it reads the answer, shifted by one position
            stacks["decoder reads"] = "decoder"
        return [Lane(name, run.tokens_of(stack)) for name, stack in stacks.items()]

    def rows(self, run: Reading, changed: Reading | None = None, name: str = "") -> list[Lane]:
        """Return the lanes of the input, of the predictions and of those of the changed run, aligned by position."""
        if not run.has_logits or run.output in WHOLE:  # the sentence below states the prediction instead
            return self.read_rows(run)
        predicted = prediction_lane("predicts" if run.open_output is None else "predicts next", run)
        more = [] if changed is None else [prediction_lane(name, changed, predicted)]
        return [*self.read_rows(run), predicted, *more]

    def pieces(self, run: Reading) -> Pieces:
        """Return the text of each token, if the tokens can be edited in place."""
        of, source = run.adapter.input, run.example.source
        if not self.is_typed or st.session_state.get("window"):  # only the end of a longer text is shown
            return Pieces()
        for first in (0, 1):  # some tokenizers put a special token before and after a text
            tokens = source[first : len(source) - first]
            if 0 < len(tokens) <= MAX_EDITED and of.text(tokens) == of.text(source):
                texts = [of.text((*tokens, tokens[-1])[:n]) for n in range(len(tokens) + 2)]
                if all(after.startswith(before) for before, after in pairwise(texts)):
                    return Pieces(tuple(after[len(before) :] for before, after in pairwise(texts)), first)
        return Pieces()  # for example, a character that consists of several tokens

    def verdict(self, original: Reading, changed: Reading | None) -> tuple[str, str]:
        """Return a sentence on how many tokens are right, before and after any changes, and a note for its help."""
        run, n, note = changed or original, len(original.answer), ""
        if not run.has_right_answer:
            return class_sentence(original, changed), "The right answer is not known here."
        if original.adapter.shape.architecture != "encoder":
            note = "Each prediction is made from the right tokens before it."
        right, loss = f"**{run.n_correct} of {n} right**", f"loss {run.loss:.4f}"
        if changed is not None:
            right += instead_of(f"{original.n_correct}", f"{run.n_correct}")
            loss += instead_of(f"{original.loss:.4f}", f"{run.loss:.4f}")
        return f"{right} · {loss}", note


def instead_of(before: str, after: str) -> str:
    """Return how a value compares with the original: " instead of 3", or ", as before" where it reads the same."""
    return ", as before" if before == after else f" instead of {before}"


def offer_examples(examples: Mapping[str, Any], take: Callable[..., None], key: str = "example") -> None:
    """Draw a button for each example, by its purpose; it calls `take` with the text or the texts of the example."""
    for purpose, text in examples.items():
        texts = (text,) if isinstance(text, str) else text
        st.button(purpose, on_click=take, args=texts, width="stretch", type="tertiary", key=f"{key}_{purpose}")


def set_input(text: str) -> None:
    """Set the input of all screens. A callback."""
    st.session_state["input"] = text


def set_random_input(of: Input) -> None:
    """Set a random input on all screens. A callback."""
    set_input(of.random(random.getrandbits(32)))


def can_read(adapter: ModelAdapter, text: str) -> bool:
    """Whether a model can read a text."""
    try:
        adapter.to_example(adapter.input.read(text))
    except InputError:
        return False
    return True


def _init_input(of: Input) -> None:
    """Fill in the default input on the first run, and when the new model cannot read the current one."""
    before = st.session_state.get("input_task", of.name)
    st.session_state["input_task"] = of.name
    st.session_state.setdefault("input", of.default)
    if before != of.name and of.is_open_ended:  # a text model can read any input, but the old one was for another task
        set_input(of.default)
    elif before != of.name:
        try:
            of.read(validate_text(st.session_state["input"], MAX_TYPED))
        except InputError:
            set_input(of.default)


def _last_good(adapter: ModelAdapter) -> tuple[int, ...]:
    """Return this visitor's last input if this model can read it, else the default input, else the shortest one."""
    texts = (st.session_state.get("last_good", ""), adapter.input.default)
    readable = next((text for text in texts if can_read(adapter, text)), None)
    return adapter.input.shortest() if readable is None else adapter.input.read(readable)


def prediction_lane(name: str, run: Reading, before: Lane | None = None) -> Lane:
    """Return a lane of the predicted tokens and their probabilities, marking right ones and those that differ from `before`."""
    predicted, probability = run.predicted, run.probability
    if run.open_output is not None:
        last = run.logits[0, run.open_output].softmax(dim=-1).max(dim=-1)
        predicted, probability = (*predicted, int(last.indices)), (*probability, last.values.item())
    tokens = tuple(run.adapter.token_labels[token] for token in predicted)
    offset = (*run.target_positions, run.open_output or 0)[0]  # without targets, the output for the next token
    right = run.right if run.has_right_answer else ()
    return Lane(name, tokens, right, probability, offset, _moved(tokens, before), run.open_output is not None)


def _moved(tokens: tuple[str, ...], before: Lane | None) -> tuple[bool, ...]:
    """Return whether each token differs from the one in the lane `before`."""
    return () if before is None else tuple(a != b for a, b in zip(tokens, before.tokens, strict=True))


def right_places(tokens: Sequence[int], answer: Sequence[int]) -> tuple[bool, ...]:
    """Return whether each of the decoded tokens is that of the answer."""
    return tuple(at < len(answer) and token == answer[at] for at, token in enumerate(tokens))


def lane_of(adapter: ModelAdapter, name: str, run: cached_runs.Predictions, right: tuple[bool, ...] = ()) -> Lane:
    """Return a lane of predicted tokens with their probabilities."""
    return Lane(name, tuple(adapter.token_labels[token] for token, _ in run), right, tuple(p for _, p in run))


def class_sentence(original: Reading, changed: Reading | None) -> str:
    """Describe the predicted class, or the number of tokens in each class, without a verdict."""
    run = changed or original
    if len(run.predicted) > 1:
        counts = Counter(run.adapter.token_labels[label] for label in run.predicted).most_common(3)
        classes = ", ".join(f"{n} × {escape_markdown(label)}" for label, n in counts)
        return f"Classes of {len(run.predicted)} tokens: {classes}"
    if run.probabilities.shape[-1] == 1:  # a number, not a class (a regression)
        then, now = (f"{one.logits[0, 0, 0].item():.3f}" for one in (original, run))
        return f"Output: {now}{'' if changed is None else instead_of(then, now)}"
    return _class_of(run) + ("" if changed is None else instead_of(_class_of(original), _class_of(run)))


def _class_of(run: Reading) -> str:
    return f"**{escape_markdown(run.adapter.token_labels[run.predicted[0]])}** {percent(run.probability[0])}"


class TextKind(InputKind):
    """Text: no prediction is right or wrong, but the actual next tokens are more or less probable."""

    def read_rows(self, run: Reading) -> list[Lane]:
        """Return the lanes read; those of a language model have the probability of each token given those before it.

        An encoder-decoder gets an additional lane for the tokens that its decoder should predict.
        """
        lanes = super().read_rows(run)
        if not run.adapter.input.is_open_ended:
            return lanes
        if run.is_encoder_decoder:
            return [*lanes, Lane("comes next", run.answers, probability=run.probability_of_answer)]
        shares: list[float | None] = [None] * len(lanes[0].tokens)
        for position, share in zip(run.target_positions, run.probability_of_answer, strict=True):
            shares[position + 1] = share
        return [replace(lanes[0], probability=tuple(shares))]

    def verdict(self, original: Reading, changed: Reading | None) -> tuple[str, str]:
        """Return a sentence on how probable the actual next tokens are, and a note for its help."""
        run, unit = changed or original, original.adapter.input.unit
        if original.output in CLASSES:
            return class_sentence(original, changed), ""
        if original.output == "answer_span":
            return _span_sentence(run), ""
        if not original.adapter.input.is_open_ended:
            return _likeliest(original, changed), "There is no reference to compare it with."
        shares, bits = [], []
        for one in (original, run):
            shares.append(percent(math.exp(-one.loss), 1))
            bits.append(f"{one.loss / math.log(2):.2f}")
        share, loss = f"**{shares[1]}**", f"{bits[1]} bits"
        if changed is not None:
            share, loss = share + instead_of(*shares), loss + instead_of(*bits)
        return f"Actual next {unit}: {share} · {loss}", _MEAN


_MEAN = (
    "The mean over all tokens; for the probability, the geometric mean. A text may continue in many ways, so no prediction is "
    "right or wrong."
)


def _span_sentence(run: Reading) -> str:
    """Describe the answer that a model extracts from its input: the span from the likeliest start to the likeliest end."""
    start, end = run.predicted
    p = ", ".join(map(percent, run.probability))
    if end < start:
        return f"No answer found: the likeliest end, token {end + 1}, is before the start, {start + 1}."
    answer = run.adapter.input.decode(run.ids()[start : end + 1]).strip()
    return f"**{escape_markdown(answer)}**, tokens {start + 1} to {end + 1} (start and end: {p})"


def _likeliest(original: Reading, changed: Reading | None) -> str:
    """Describe the mean probability of the predictions of a model that fills gaps or labels a text."""
    then, before = (percent(sum(run.probability) / len(run.probability), 1) for run in (changed or original, original))
    mean = " on average" if len(original.probability) > 1 else ""
    verdict = f"Likeliest {original.adapter.input.unit}: **{then}**{mean}"
    return verdict + ("" if changed is None else instead_of(before, then))


def edited(pieces: Sequence[str], at: int, text: str) -> str:
    """Return the typed text with the piece `at` replaced. An empty `text` removes it; the last piece adds a token."""
    old, is_added = pieces[at], at == len(pieces) - 1
    space = old[: len(old) - len(old.lstrip())] if old.strip() else ""
    if is_added and not text[:1].isalnum():  # no space before punctuation
        space = ""
    whole = "".join([*pieces[:at], space + text if text else "", *pieces[at + 1 : -1]])
    return whole if at else whole.lstrip()


def follow_edit(adapter: ModelAdapter, pieces: Sequence[str], at: int, text: str) -> str:
    """Apply the edit of one token to the input. A callback; returns why the new text cannot be read, else ""."""
    try:
        whole = validate_text(edited(pieces, at, text), MAX_TYPED)
        adapter.input.read(whole)
    except InputError as error:
        return str(error)
    set_input(whole)
    return ""


_PICTURE_TYPES = ["png", "jpg", "jpeg", "webp", "gif", "bmp"]

_MAX_MEGABYTES = 16
_MAX_CLASSES = 3
"""Number of likeliest classes that are shown."""


class PictureKind(InputKind):
    """A photograph for a vision model: a sample or an upload, and the likeliest classes."""

    is_typed = False

    def ask(self, adapter: ModelAdapter, model: str) -> tuple[int, ...]:
        """Draw the samples and the uploader. An unknown name is replaced by the default picture with a warning."""
        of = adapter.input
        _init_input(of)
        source, name = _chosen(of)
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            st.image(picture(source), caption="Your picture" if name not in SAMPLES else name.capitalize(), width=130)
            with st.container(gap="small", width="stretch"):
                for sample in SAMPLES:
                    take, key, is_off = partial(set_input, sample), f"picture_{sample}", sample == name
                    st.button(sample.capitalize(), width="stretch", key=key, on_click=take, disabled=is_off)
        with st.expander("Upload a picture", icon=":material/upload:"):
            file_box("Your own picture", _PICTURE_TYPES, _MAX_MEGABYTES, _take, key="picture_file")
        cached_runs.check_memory(model, source)
        return source

    def read_rows(self, run: Reading) -> list[Lane]:
        """Return a lane with one cell for the picture, which has too many patches for a lane."""
        name = run.adapter.input.text(run.example.source)
        return [Lane("reads", (name if name in SAMPLES else "upload",))]

    def rows(self, run: Reading, changed: Reading | None = None, name: str = "") -> list[Lane]:
        """Return the lanes of the picture and of its likeliest classes with their probabilities, the likeliest first."""
        if not run.has_logits:
            return self.read_rows(run)
        likeliest = _likeliest_classes(run, "predicts")
        more = [] if changed is None else [_likeliest_classes(changed, name, likeliest)]
        return [*self.read_rows(run), likeliest, *more]


def _likeliest_classes(run: Reading, name: str, before: Lane | None = None) -> Lane:
    """Return a lane of the likeliest classes of a picture, marking those that differ from `before` at the same rank."""
    p = run.probabilities[0]  # [vocab]
    top = p.topk(min(_MAX_CLASSES, len(p)))
    tokens = tuple(run.adapter.token_labels[at] for at in top.indices.tolist())
    return Lane(name, tokens, probability=tuple(top.values.tolist()), moved=_moved(tokens, before))


def _chosen(of: Input) -> tuple[tuple[int, ...], str]:
    """Return the chosen source and its name. A name that cannot be read is replaced by the default with a warning."""
    name = str(st.session_state["input"]).strip()
    try:
        return of.read(name), name
    except InputError as error:
        st.warning(escape_markdown(str(error)), icon=":material/link_off:")
        embed.say(str(error))
        set_input(of.default)
        return of.read(of.default), of.default


def _take(content: bytes, file_name: str) -> str:
    set_input(keep_upload(content))
    return "This is now the input. It stays on this server only for a while."


PAD = "digit_pad"


@cached
def test_predictions(model: str) -> pd.DataFrame:
    """Return the predictions of a model for all test images; see `predict_test_images`."""
    return predict_test_images(own_task_model(models.adapter(model)).model)


class ImageKind(InputKind):
    """A small image: a drawing, or a test image chosen by number, at random or from the model's mistakes."""

    is_typed = False

    def ask(self, adapter: ModelAdapter, model: str) -> tuple[int, ...]:
        """Draw the controls for a test image, whose digit is known, or a drawing, whose digit is not."""
        rule = own_task_model(adapter).task.rule
        assert isinstance(rule, Digits)
        _init_input(adapter.input)
        source, _ = _chosen(adapter.input)
        digit_pad(key=PAD, data={"pixels": list(source[:-1])}, on_drawn_change=_take_drawing)
        number = rule.test_number(source)
        if number is None:
            st.caption("A drawing has no known answer, so the prediction is neither right nor wrong.")
        else:
            st.session_state["test_number"] = number
            st.caption(f"Test image {number}: a **{source[-1]}**. Draw on it, or clear it and draw your own digit.")
        st.session_state.setdefault("test_number", 0)
        st.number_input("Test image", 0, N_TEST - 1, key="test_number", on_change=_show_number)
        row = st.container(horizontal=True, gap="small")
        row.button("Random", on_click=lambda: show_image(random.randrange(N_TEST)), width="stretch", key="random_input")
        wrong = misclassified(test_predictions(model))["image"].tolist()
        following = wrong[(wrong.index(number) + 1) % len(wrong)] if number in wrong else next(iter(wrong), 0)
        help = f"The model gets {len(wrong)} of the {N_TEST} test images wrong. Each click shows the next one, starting with "
        help += "the most confident mistake."
        show = partial(show_image, following)
        row.button("Mistake", on_click=show, disabled=not wrong, width="stretch", key="wrong_input", help=help)
        with st.popover("Examples", width="stretch"):
            st.caption("See what the model …")
            offer_examples(rule.examples(), set_input)
        if remark := rule.remark(source):
            st.caption(f":material/info: {remark}")
        cached_runs.check_memory(model, source)
        return source

    def read_rows(self, run: Reading) -> list[Lane]:
        """Return a lane with the digit that the image shows, or "?" if it is unknown."""
        return [Lane("is", run.answers if run.has_right_answer else ("?",))]


def _take_drawing() -> None:
    """Take the drawn image as the input. Its digit is unknown, even if a test image was drawn on."""
    if (pixels := drawn_on(PAD)) is not None:
        set_input(f"drawn {pixels}".rstrip("0").rstrip())


def show_image(number: int) -> None:
    """Show a test image on all screens. A callback."""
    set_input(f"test {number}")


def _show_number() -> None:
    show_image(st.session_state["test_number"])


class GivenKind(InputKind):
    """The given inputs of a module in memory, which cannot be changed on screen."""

    is_typed = False

    def ask(self, adapter: ModelAdapter, model: str) -> tuple[int, ...]:
        """Draw a caption and return the given inputs."""
        _init_input(adapter.input)
        set_input(adapter.input.default)
        st.caption(adapter.input.instruction)
        source = adapter.input.read("")
        cached_runs.check_memory(model, source)
        return source


KINDS: dict[str, InputKind] = {
    "given": GivenKind(),
    "symbols": InputKind(),
    "text": TextKind(),
    "picture": PictureKind(),
    "image": ImageKind(),
}


def kind_of(adapter: ModelAdapter) -> InputKind:
    """Return the `InputKind` for the input that a model reads."""
    return KINDS[adapter.input.kind]
