"""What a kind of input does on the screens: it is asked for, its tokens stand in lanes, and a sentence says how well it went.

Here as most kinds do it: a box to type in, examples and a random one, and the lanes of what is read and what is said to it.
"""

from __future__ import annotations

import random
from typing import Any

import streamlit as st

from pages.components.prediction_strip import Lane
from pages.shared import frame, resources
from pages.shared.escape_markdown import escape_markdown
from pages.shared.input_kinds.lanes import moved, said_lane
from pages.shared.link import carry
from pages.shared.widgets import typed
from xformer.adapters import Input, ModelAdapter
from xformer.analysis.residual import WHOLE
from xformer.errors import InputError
from xformer.formatting import percent
from xformer.reading import Reading

MOST_TYPED = 20_000
"""Characters of an input: more than any model here reads, and what a window of a text is taken from."""


class InputKind:
    """One kind of input. A file of this folder makes one, its `KIND`."""

    is_tall = False
    """Whether asking for it takes so much room that the mask would be out of sight below it."""
    outline = "nobody knows the right answer here; the outline marks what the unchanged model says in the end"
    """What the outline of a lens marks where nothing is right or wrong."""
    verb = "says"
    """What stands between an output and the token that is known to stand there, where nothing is right or wrong."""
    meant = "predicted"
    """Which token that is, in a word."""

    def ask(self, subject: ModelAdapter, model: str) -> tuple[int, ...]:
        """The source that it reads: what is typed, or the last that could be read, with a sentence on what is wrong.

        Raises `InputError` where looking into even that takes more memory than is allowed.
        """
        of = subject.input
        begin(of)
        carry("input")
        st.text_input("Input", key="input", persist_state="session", help=of.typed)
        examples_at, random_at = st.columns(2)
        with examples_at, st.popover("Examples", width="stretch"):
            st.caption("See how the model …")
            for purpose, text in of.examples().items():
                st.button(purpose, on_click=_type, args=(text,), width="stretch", type="tertiary")
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
            return f"{original.n_right} of {n} right, loss {original.loss:.4f} nats{given}."
        return (
            f"With {what}, {changed.n_right} of {n} are right instead of {original.n_right}; the loss goes from "
            f"{original.loss:.4f} to {changed.loss:.4f} nats. {moved(original, changed)}"
        )

    def score(self, subject: ModelAdapter, figures: dict[str, Any]) -> tuple[str, str, str]:
        """How well it does on inputs that it never saw, as label, value and help of a tile."""
        return "Exact match", percent(figures["exact_match"]), "Whole sequences right."


def _type(text: str) -> None:
    st.session_state["input"] = text


def _type_random(of: Input) -> None:
    _type(of.random(random.getrandbits(32)))


def begin(of: Input) -> None:
    """What stands in the box at first; and again after a change to a model of other inputs that cannot read what is there."""
    before = st.session_state.get("input_task", of.name)
    st.session_state["input_task"] = of.name
    st.session_state.setdefault("input", of.default)
    if before != of.name and of.goes_on:  # it can read anything, and that is no reason to
        _type(of.default)
    elif before != of.name:
        try:
            of.read(typed(st.session_state["input"], MOST_TYPED))
        except InputError:
            _type(of.default)


def _last_good(subject: ModelAdapter) -> tuple[int, ...]:
    """The last input that this visitor's models could read, or the default one, or the shortest there is."""
    for text in (st.session_state.get("last_good", ""), subject.input.default):
        try:
            source = subject.input.read(text)
            subject.frame(source)
        except InputError:
            continue
        return source
    return subject.input.shortest()
