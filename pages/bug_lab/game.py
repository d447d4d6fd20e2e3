"""Find the bug: rounds of rising difficulty. The visitor says which of two runs is broken, then which bug it has.

A game has `LEVELS` rounds. From level to level a bug changes less of the attention patterns, as `CHANGES` has it.
"""

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
from pages.compute.call import PictureCall, is_dark, picture_call
from pages.compute.picture import footer, shown
from pages.controls import embed
from pages.controls.text import escape_markdown, headline, what_to_notice
from pages.controls.widgets import seed
from pages.state import screens
from pages.state.inputs import edited
from pages.state.link import share
from pages.state.view import View
from xformer import viz
from xformer.doctor.faults import BUGS
from xformer.errors import InputError
from xformer.reading import Reading
from xformer.viz.theme import PRIMARY, RIGHT, WRONG, pick

ROUNDS = range(1, 1000)
ROUND = "bug_round"
N_CHOICES = 4
ATTEMPTS = 3
"""Wrong answers after which a round is over."""
SIDES = "AB"
CHANGES: dict[str, float] = {
    "softmax_of_nothing": math.inf,
    "softmax_over_heads": 0.432,
    "split_by_view": 0.333,
    "identical_heads": 0.280,
    "no_residual": 0.280,
    "forgotten_return": 0.275,
    "init_too_large": 0.249,
    "keys_values_swapped": 0.249,
    "lost_output": 0.245,
    "no_scale": 0.245,
    "no_positions": 0.238,
    "cross_queries_from_memory": 0.214,
    "cross_roles_swapped": 0.208,
    "softmax_over_queries": 0.194,
    "dead_neurons": 0.194,
    "scaled_after_softmax": 0.161,
    "no_padding_mask": 0.153,
    "causal_upside_down": 0.143,
    "kv_heads_tiled": 0.130,
    "causal_ignored": 0.096,
    "masked_with_zero": 0.095,
    "init_too_small": 0.092,
    "causal_off_by_one": 0.082,
    "masked_after_softmax": 0.073,
    "gate_and_up_swapped": 0.062,
    "cloned_layers": 0.055,
    "residual_after_norm": 0.045,
    "softmax_before_loss": 0.0,
}
"""The difficulty of each bug that is visible in a run, the easiest first, as a test measures it: the mean absolute change of
the weights of the head that changes most, on the model and the input of its round; infinite where weights are not a number.
"""
N_EACH = 4
"""The bugs of a level, of which each game has one."""
LEVELS = len(CHANGES) // N_EACH
MOST_POINTS = ATTEMPTS * sum(range(1, LEVELS + 1))
_STYLE = """<style>
.stMain ol.bug-rounds { display: flex; gap: 0.3rem; margin: 0; padding: 0; list-style: none; }
.stMain ol.bug-rounds li {
  min-width: 2.4rem; margin: 0; padding: 0.1rem 0.3rem; font-size: 0.875rem; text-align: center;
  border: 1px solid; border-radius: 0.5rem;
}
.bug-rounds li:not([aria-current], .done) { border-color: color-mix(in srgb, currentColor 30%%, transparent); }
.bug-rounds [aria-current] { outline: 2px solid %s; font-weight: 700; }
.bug-rounds .done { border-color: %s; border-width: 2px; }
.bug-rounds .missed { border-color: %s; border-style: dashed; }
</style>"""


@dataclass(frozen=True)
class Round:
    """One round of the game. Its number determines everything, so a link always opens the same round."""

    level: int
    """From 1. Each attempt is worth as many points."""
    bug: str
    broken: int
    """Which of the two runs has the bug: 0 or 1."""
    choices: tuple[str, ...]
    """The bugs to choose from, including the right one."""

    def points(self, guess: Guess) -> int:
        """Return the points that are left: each wrong answer costs one of the attempts."""
        if guess.has_given_up:
            return 0
        n_wrong = (guess.broken != self.broken) + sum(bug != self.bug for bug in guess.bugs)
        return max(0, ATTEMPTS - n_wrong) * self.level

    def is_over(self, guess: Guess | None) -> bool:
        """Return whether the bug is identified, or no points are left."""
        return guess is not None and (self.bug in guess.bugs or not self.points(guess))


def round_of(number: int) -> Round:
    """Return the round with a number, from 1. Every bug comes up once in `N_EACH` games."""
    game, at = divmod(number - 1, LEVELS)
    cycle, turn = divmod(game, N_EACH)
    of_level = list(CHANGES)[at * N_EACH : (at + 1) * N_EACH]
    bug = random.Random(f"level {at} {cycle}").sample(of_level, N_EACH)[turn]
    draw = random.Random(f"round {number}")
    config = models.checkpoint(fitting_model(bug)).config
    others = [name for name in CHANGES if name != bug and BUGS[name].applies_to(config)]
    choices = [bug, *draw.sample(others, N_CHOICES - 1)]
    draw.shuffle(choices)
    return Round(at + 1, bug, draw.randrange(2), tuple(choices))


def game_panel() -> None:
    """Draw the round of the link, or the current one of the visitor."""
    number = st.session_state[ROUND]
    this_round, guess = round_of(number), state().guesses.get(number)
    share({"round": str(number)})
    view, bug = example_of(fitting_model(this_round.bug)), BUGS[this_round.bug]
    view = replace(view, source=state().inputs.get(number, view.source))
    right, wrong = readings(view, bug)
    runs = [wrong, right] if this_round.broken == 0 else [right, wrong]
    is_over = this_round.is_over(guess)
    headline(_question(this_round, guess))
    if is_over and number % LEVELS == 0:
        _end_card(number)
    elif is_over:
        with embed.picture("next"), st.container(horizontal=True, gap="small"):
            st.button("Next round", type="primary", on_click=_go, args=(number + 1,), key="bug_next", shortcut="N")
            st.button("More about this bug", on_click=_browse, args=(this_round.bug,), key="bug_browse")
    elif guess is not None:
        row = partial(st.container, horizontal=True, gap="small", vertical_alignment="center")
        with embed.picture("choices"), row(key="bug_choices"):
            for index, name in enumerate(this_round.choices):
                is_wrong = name in guess.bugs
                choice = f"{WRONG.mark} " * is_wrong + escape_markdown(BUGS[name].title)
                st.button(choice, on_click=_pick, args=(number, name), key=f"bug_{index}", disabled=is_wrong)
            st.button("Show the answer", on_click=_give_up, args=(number,), type="tertiary", key="bug_give_up")
            left = this_round.points(guess)
            st.markdown(f"{left} point{'s' * (left > 1)} left", width="content")
    has_loss = guess is not None or bool(st.session_state.get(f"bug_losses_{number}"))
    with embed.picture():
        *columns, last = st.columns(3, gap="medium")
        calls = _patterns(view, runs, columns, number, guess, has_loss=has_loss)
        with last:
            remark = " Both models are untrained." if bug.shows == "when fresh" else ""
            st.markdown(f"**Task:** {view.input.instruction}{remark}")
            _predictions(view, runs, number, marked=guess is not None)
            if guess is None:
                st.toggle("Show the losses", key=f"bug_losses_{number}")
                st.button("Show the answer", on_click=_give_up, args=(number,), type="tertiary", key="bug_give_up")
    if not is_over:
        return
    bug_card(bug)
    diagnosis_panel(view, bug)
    what_to_notice(bug_hints(bug))
    footer(view, "bug-attention", calls, remark=["from xformer.doctor.faults.lab import read_both"])


def rounds_panel() -> None:
    """Draw the rounds of this game with the points of those that are over."""
    seed("round", ROUNDS, ROUNDS[0], key=ROUND)
    number = st.session_state[ROUND]
    lines = []
    for other in _rounds_of_game(number):
        this_round, guess = round_of(other), state().guesses.get(other)
        level, look, title = (
            str(this_round.level),
            "",
            f"Level {this_round.level}: {ATTEMPTS * this_round.level} points",
        )
        if guess is not None and this_round.is_over(guess):
            points = this_round.points(guess)
            level, look = f"+{points}", "done" if points else "done missed"
        now = ' aria-current="step"' if other == number else ""
        lines.append(f'<li class="{look}"{now} title="{title}">{level}</li>')
    is_dark_now = is_dark()
    colours = (pick(PRIMARY, is_dark_now), pick(RIGHT.colour, is_dark_now), pick(WRONG.colour, is_dark_now))
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="bug_score"):
        st.html(f'{_STYLE % colours}<ol class="bug-rounds" aria-label="Rounds of this game">{"".join(lines)}</ol>')
        st.markdown(score(number), width="content", help=DIFFICULTY)


DIFFICULTY = (
    f"A game has {LEVELS} rounds. From round to round a bug changes less of the attention, measured by the mean change of the "
    f"weights of the head that changes most. A round of level n is worth {ATTEMPTS} · n points, and each wrong answer costs n."
)


def _rounds_of_game(number: int) -> range:
    first = number - (number - 1) % LEVELS
    return range(first, first + LEVELS)


def _played(number: int) -> list[tuple[Round, Guess]]:
    """Return the rounds of a game that are over, with the guesses."""
    rounds = ((round_of(other), state().guesses.get(other)) for other in _rounds_of_game(number))
    return [(this_round, guess) for this_round, guess in rounds if guess is not None and this_round.is_over(guess)]


def score(number: int) -> str:
    """Describe the level of a round, and the points of its game so far."""
    played = _played(number)
    words = f"**Level {round_of(number).level} of {LEVELS}**"
    if played:
        points, most = (sum(one.points(guess) for one, guess in played), ATTEMPTS * sum(one.level for one, _ in played))
        words += f" · **{points}** of {most} points"
    return words


def _end_card(number: int) -> None:
    """Draw the score of a game whose last round is over, the bugs that were not identified, and what next."""
    played = _played(number)
    points = sum(one.points(guess) for one, guess in played)
    found = [(one, guess) for one, guess in played if one.bug in guess.bugs]
    at_once = sum(guess.bugs == (one.bug,) for one, guess in found)
    missed = [one for one, guess in played if one.bug not in guess.bugs]
    with st.container(border=True, key="bug_end"):
        st.subheader(f"{points} of {MOST_POINTS} points", anchor=False)
        sentence = f"{len(found)} of {LEVELS} bugs identified, {at_once} of them at the first attempt."
        if len(played) < LEVELS:
            sentence += f" {LEVELS - len(played)} rounds of this game were not played."
        st.markdown(sentence)
        if missed:
            with st.container(horizontal=True, gap="small", vertical_alignment="center"):
                st.markdown("Look again at:", width="content")
                for one in missed:
                    again = escape_markdown(BUGS[one.bug].title)
                    st.button(again, on_click=_browse, args=(one.bug,), key=f"bug_again_{one.bug}")
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            st.button("Next game", type="primary", on_click=_go, args=(number + 1,), key="bug_next", shortcut="N")
            yours = partial(st.session_state.update, {TAB: "yours"})
            st.button("Check your own model", icon=":material/troubleshoot:", on_click=yours, key="bug_yours")
            screens.link("learn", "Back to Learn", "school")


def _question(this_round: Round, guess: Guess | None) -> str:
    if guess is None:
        return "One of these two models is broken. Which one?"
    side, title = SIDES[this_round.broken], escape_markdown(BUGS[this_round.bug].title)
    points, most = this_round.points(guess), ATTEMPTS * this_round.level
    if this_round.is_over(guess):
        verdict = "Right" if this_round.bug in guess.bugs else "The answer"
        return f"{verdict}: {side} has this bug: **{title}**. {points} of {most} points."
    if guess.bugs:
        picked = BUGS[guess.bugs[-1]]
        return f"Not “{escape_markdown(picked.title)}”, whose sign is: {escape_markdown(picked.look_for)}"
    return f"{'Right' if guess.broken == this_round.broken else 'No'}, {side} is broken. Which bug is it?"


def _patterns(
    view: View, runs: list[Reading], columns: list[Any], number: int, guess: Guess | None, *, has_loss: bool
) -> list[PictureCall]:
    """Draw the head that differs most between the runs, with the losses and the buttons to guess; return the calls."""
    changes, take = moved(runs), partial(state().guesses.__setitem__, number)
    path, head = max(changes, key=changes.__getitem__)
    layer = [site.path for site in runs[0].attention].index(path)
    draw = partial(picture_call, viz.attention, layer=layer, head=head, height=310, legend=False)
    calls = list(map(draw, runs))
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


def _pick(number: int, bug: str) -> None:
    """Take a bug as the visitor's next answer. A callback."""
    guess = state().guesses[number]
    state().guesses[number] = replace(guess, bugs=(*guess.bugs, bug))


def _give_up(number: int) -> None:
    guess = state().guesses.get(number, Guess(round_of(number).broken))
    state().guesses[number] = replace(guess, has_given_up=True)


def _browse(bug: str) -> None:
    st.session_state.update({NAME: bug, TAB: "browse"})


def _go(number: int) -> None:
    st.session_state[ROUND] = number if number in ROUNDS else ROUNDS[0]
