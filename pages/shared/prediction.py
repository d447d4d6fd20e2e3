"""What the model reads and says on this input, as lanes of tokens, and in a sentence how well it did."""

from __future__ import annotations

import math

import streamlit as st

from pages.components.prediction_strip import prediction_strip
from pages.shared.layout import caption
from pages.shared.token_rows import token_rows
from pages.shared.view import View
from xformer.reading import Reading
from xformer.words import percent


def prediction_panel(view: View) -> None:
    """The lanes, and the sentence under them."""
    prediction_lanes(view)
    prediction_sentence(view)


def prediction_lanes(view: View, what: str = "") -> None:
    """The lanes of the original and, where there is one, of the changed run; `what` names the changes."""
    name = f"says, {what or view.what_changed()}"
    prediction_strip(token_rows(view.task, view.original(), view.changed(), name), key="strip")


def prediction_sentence(view: View, what: str = "") -> None:
    """How many tokens are right, or how surprised the model is where nothing is right or wrong; with changes, from where to
    where that goes."""
    original, changed, what = view.original(), view.changed(), what or view.what_changed()
    if changed is not None and original.trace.logits.equal(changed.trace.logits):
        st.info(f"With {what} this model does exactly what it does anyway: nothing changes.", icon=":material/equal:")
        return
    if view.task.rule.is_open_ended:
        sentence = _of_a_text(original, changed, what)
    elif view.task.rule.is_image:
        sentence = _of_an_image(original, changed, what)
    else:
        given = "" if view.task.config.architecture == "encoder" else ", each token given the right ones before it"
        sentence = _of_a_rule(original, changed, what, given)
    caption(sentence, width="stretch")


def _of_a_rule(original: Reading, changed: Reading | None, what: str, given: str) -> str:
    n = len(original.answer)
    if changed is None:
        return f"{original.n_right} of {n} right, loss {original.loss:.4f} nats{given}."
    return (
        f"With {what}, {changed.n_right} of {n} are right instead of {original.n_right}; the loss goes from "
        f"{original.loss:.4f} to {changed.loss:.4f} nats. {_moved(original, changed)}"
    )


def _moved(original: Reading, changed: Reading) -> str:
    """Where something else is said: as the strip shows it, the likeliest token after the last one of a text included."""
    before, after = (run.trace.logits[0].argmax(dim=-1) for run in (original, changed))
    asked = original.example.labels[0] >= 0
    if original.example.target is None and not original.has_right_answer:
        asked[-1] = True
    is_same = bool((before[: len(asked)][asked] == after[: len(asked)][asked]).all())
    return "It says the same." if is_same else "Outlined: changed."


def _of_a_text(original: Reading, changed: Reading | None, what: str) -> str:
    """A text may go on in many ways: nothing is right or wrong, but the characters that do come surprise the model or not."""
    run = changed or original
    expects = f"the character that really comes next gets **{percent(math.exp(-run.loss), 1)}** (the geometric mean)"
    if changed is None:
        return f"T{expects[1:]}: {_bits(run)}. A text may go on in many ways, so no guess is right or wrong."
    return f"With {what} {expects}, {_bits(run)} instead of {_bits(original)}. {_moved(original, run)}"


def _bits(run: Reading) -> str:
    return f"{run.loss / math.log(2):.3f} bits per character"


def _of_an_image(original: Reading, changed: Reading | None, what: str) -> str:
    loss = f"Loss {original.loss:.4f} nats." if original.has_right_answer else "Nobody knows what a drawn image is."
    if changed is None:
        return f"{_class_of(original)}. {loss}"
    if original.has_right_answer:
        loss = f"The loss goes from {original.loss:.4f} to {changed.loss:.4f} nats."
    return f"With {what}: {_uncapped(_class_of(changed))}. Originally: {_uncapped(_class_of(original))}. {loss}"


def _class_of(run: Reading) -> str:
    """What a model of images says, how sure it is, and whether that is right."""
    verdict = ("Right: it" if run.n_right else "Wrong: it") if run.has_right_answer else "It"
    return f"{verdict} says {run.predicted[0]}, {percent(run.probability[0])} sure"


def _uncapped(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
