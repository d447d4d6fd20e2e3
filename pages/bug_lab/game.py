"""Find the bug: two unlabelled runs, one of a broken model. The visitor guesses which one, then which bug it has."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import streamlit as st

from pages.bug_lab.browse import bug_card, bug_hints, diagnosis_panel
from pages.bug_lab.lab import NAME, TAB, Guess, example_of, fitting_model, moved, readings, state
from pages.components.elements import Editing, Lane, prediction_strip
from pages.compute import models
from pages.compute.call import PictureCall, picture_call
from pages.compute.picture import footer, shown
from pages.controls import embed
from pages.controls.text import escape_markdown, headline, what_to_notice
from pages.controls.widgets import seed
from pages.state.inputs import edited
from pages.state.link import share
from pages.state.view import View
from xformer import viz
from xformer.doctor.faults import BUGS
from xformer.errors import InputError
from xformer.reading import Reading

ROUNDS = range(1, 1000)
ROUND = "bug_round"
N_CHOICES = 4
SIDES = "AB"
PLAYED = tuple(name for name, bug in BUGS.items() if bug.shows != "in training")
"""The bugs that are visible in a run."""


@dataclass(frozen=True)
class Round:
    """One round of the game. Its number determines everything, so a link always opens the same round."""

    bug: str
    broken: int
    """Which of the two runs has the bug: 0 or 1."""
    choices: tuple[str, ...]
    """The bugs to choose from, including the right one."""


def round_of(number: int) -> Round:
    """Return the round with a number, from 1. Every bug comes up once before any is repeated."""
    cycle, at = divmod(number - 1, len(PLAYED))
    order = random.Random(f"order {cycle}").sample(PLAYED, len(PLAYED))
    bug = sorted(order, key=lambda name: BUGS[name].shows != "at once")[at]  # untrained models come last
    draw = random.Random(f"round {number}")
    config = models.checkpoint(fitting_model(bug)).config
    others = [name for name in PLAYED if name != bug and BUGS[name].applies_to(config)]
    choices = [bug, *draw.sample(others, N_CHOICES - 1)]
    draw.shuffle(choices)
    return Round(bug, draw.randrange(2), tuple(choices))


def game_panel() -> None:
    """Draw the round of the link, or the current one of the visitor."""
    seed("round", ROUNDS, ROUNDS[0], key=ROUND)
    number, take = st.session_state[ROUND], state().guesses.__setitem__
    this_round, guess = round_of(number), state().guesses.get(number)
    share({"round": str(number)})
    view, bug = example_of(fitting_model(this_round.bug)), BUGS[this_round.bug]
    view = replace(view, source=state().inputs.get(number, view.source))
    right, wrong = readings(view, bug)
    runs = [wrong, right] if this_round.broken == 0 else [right, wrong]
    is_over = guess is not None and bool(guess.bug)
    headline(_question(this_round, guess))
    if is_over:
        with st.container(horizontal=True, gap="small"):
            st.button("Next round", type="primary", on_click=_go, args=(number + 1,), key="bug_next", shortcut="N")
            browse = partial(st.session_state.update, {NAME: this_round.bug, TAB: "browse"})
            st.button("More about this bug", on_click=browse, key="bug_browse")
    elif guess is not None:
        with st.container(horizontal=True, gap="small", key="bug_choices"):
            for index, name in enumerate(this_round.choices):
                choose = partial(take, number, Guess(guess.broken, name))
                st.button(escape_markdown(BUGS[name].title), on_click=choose, key=f"bug_{index}")
    has_loss = guess is not None or bool(st.session_state.get(f"bug_losses_{number}"))
    with embed.picture():
        *columns, last = st.columns([1, 1.2, 1.05], gap="medium")
        calls = _patterns(view, runs, columns, number, guess, has_loss=has_loss)
        with last:
            remark = " Both models are untrained." if bug.shows == "when fresh" else ""
            st.markdown(f"**Task:** {view.input.instruction}{remark}")
            _predictions(view, runs, number, marked=guess is not None)
            if guess is None:
                st.toggle("Show the losses", key=f"bug_losses_{number}")
                st.button("Skip this round", on_click=_go, args=(number + 1,), type="tertiary", key="bug_skip")
    if not is_over:
        return
    bug_card(bug)
    diagnosis_panel(view, bug)
    what_to_notice(bug_hints(bug))
    footer(view, "bug-attention", calls, remark=["from xformer.doctor.faults.lab import read_both"])


def score() -> str:
    """Describe how many bugs were identified in this visit; "" before the first round is over."""
    played = {number: guess for number, guess in state().guesses.items() if guess.bug}
    named = sum(guess.bug == round_of(number).bug for number, guess in played.items())
    return f"{named} of {len(played)} identified" if played else ""


def _question(this_round: Round, guess: Guess | None) -> str:
    if guess is None:
        return "One of these two models is broken. Which one?"
    side = SIDES[this_round.broken]
    if not guess.bug:
        return f"{'Right' if guess.broken == this_round.broken else 'No'}, {side} is broken. Which bug is it?"
    title = escape_markdown(BUGS[this_round.bug].title)
    return f"{'Right' if guess.bug == this_round.bug else 'No'}, {side} has this bug: **{title}**."


def _patterns(
    view: View, runs: list[Reading], columns: list[Any], number: int, guess: Guess | None, *, has_loss: bool
) -> list[PictureCall]:
    """Draw the head that differs most between the runs, with the losses and the buttons to guess; return the calls."""
    changes, take = moved(runs), partial(state().guesses.__setitem__, number)
    path, head = max(changes, key=changes.__getitem__)
    layer = [site.path for site in runs[0].attention].index(path)
    draw = partial(picture_call, viz.attention, layer=layer, head=head, height=280)
    calls = [draw(run, legend=run is runs[-1]) for run in runs]
    for side, (column, call, run) in enumerate(zip(columns, calls, runs, strict=True)):
        with column:
            shown(view, call, f"bug_pattern_{SIDES[side]}")
            if guess is None:
                choose, key = partial(take, Guess(side)), f"bug_side_{SIDES[side]}"
                st.button(f"{SIDES[side]} is broken", key=key, on_click=choose, width="stretch")
            if has_loss:
                loss = f"{run.loss:.4f}" if math.isfinite(run.loss) else "not a number"
                st.markdown(f"**{SIDES[side]}** · loss {loss}", text_alignment="center")
    return calls


def _predictions(view: View, runs: list[Reading], number: int, *, marked: bool) -> None:
    """Draw the editable input and the predictions of both models; after the first guess, marked as right or wrong."""
    tokens, texts = tuple(view.input.text(view.source).split()), view.kind.pieces(view.original()).texts
    predictions = view.kind.rows(runs[0], runs[1], "B")[-2:]
    lanes = [Lane("input", tokens), replace(predictions[0], name="A"), predictions[1]]
    for at, run in zip((-2, -1), runs, strict=True):
        if not math.isfinite(run.loss):
            lanes[at] = replace(lanes[at], tokens=("NaN",) * len(lanes[at].tokens), probability=())
    lanes = [replace(lane, offset=0, moved=()) for lane in lanes]  # aligned left, because the column is narrow
    if not marked:
        lanes = [replace(lane, right=(), probability=()) for lane in lanes]
    take = partial(_take_input, view, number, texts)
    fields = (*(text.strip() for text in texts[:-1]), "")
    editing = Editing(fields, 0, take) if len(texts) == len(tokens) + 1 else None
    prediction_strip(lanes, key="bug_strip", editing=editing)


def _take_input(view: View, number: int, texts: tuple[str, ...], at: int, text: str) -> str:
    """Set another input for this round; return an error message where it is invalid. A callback."""
    try:
        source = view.input.read(edited(texts, at, text))
        view.adapter.to_example(source)
    except InputError as error:
        return str(error)
    state().inputs[number] = source
    return ""


def _go(number: int) -> None:
    st.session_state[ROUND] = number if number in ROUNDS else ROUNDS[0]
