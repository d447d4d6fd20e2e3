"""Who plays: those of the link, what is looked at elsewhere, or whom a visitor has chosen; players come and go here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from pages.compare.card import card
from pages.compare.comparison import (
    LETTERS,
    Choice,
    beside,
    first_choice,
    read_choice,
    state,
    usual_choices,
    why_not_together,
)
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import is_dark
from pages.shared.link import asked
from pages.shared.session import LookedAt
from xformer.errors import InputError
from xformer.viz.theme import PLAYER_HUES


def ask_players(looked: LookedAt) -> tuple[Choice, ...]:
    """The players: those of the link, else what is looked at and a contrast to it, else those that a visitor chose here."""
    ours = state()
    ours.choices = _begin(looked)
    ours.looked_at = looked
    _paint()
    n = len(ours.choices)
    if why := ours.refused:
        st.warning(escape_markdown(why), icon=":material/block:")
        ours.refused = ""
    row = st.container(key="compare_seats")
    places = row.columns([*[1.0] * n, *([0.16 if n > 2 else 0.12] if n < len(LETTERS) else [])], gap="small")
    for index, (place, choice) in enumerate(zip(places, ours.choices, strict=False)):
        with place:
            card(index, choice, n)
    if n < len(LETTERS):
        places[-1].button(
            "", icon=":material/person_add:", help="One more player", on_click=_add, key="compare_add", width="stretch"
        )
    return tuple(ours.choices)


def players_in_link(choices: Sequence[Choice]) -> dict[str, str]:
    """The players as parameters of a link: a=…&b=…"""
    return {letter.lower(): choice.text for letter, choice in zip(LETTERS, choices, strict=False)}


def _begin(looked: LookedAt) -> list[Choice]:
    ours = state()
    wanted = [text for letter in LETTERS if (text := asked(letter.lower())) is not None]
    before = [] if wanted else [choice.text for choice in ours.choices]
    if wanted:
        ours.is_chosen = True
    elif not before or replace(looked, input="") != replace(ours.looked_at or looked, input=""):
        return _anew(looked, before)
    return _read(wanted or before) or _anew(looked, [])


def _anew(looked: LookedAt, before: list[str]) -> list[Choice]:
    """The first player is what is looked at; the others stay where somebody chose them and they can read its input."""
    ours, own = state(), first_choice(looked)
    others = _read(before)[1:] if ours.is_chosen else []
    if own is not None and others and why_not_together([own, *others]) is None:
        return [own, *others]
    ours.is_chosen = False
    return usual_choices() if own is None else [own, beside(own)]


def _read(texts: Sequence[str]) -> list[Choice]:
    """The players that links write; one alone gets a contrast, and what is none is left out aloud."""
    found = []
    for text in texts:
        try:
            found.append(read_choice(text))
        except InputError as error:
            st.warning(
                f"The player {escape_markdown(text[:80])} was left out. {escape_markdown(str(error))}",
                icon=":material/link_off:",
            )
    return [found[0], beside(found[0])] if len(found) == 1 else found


def _add() -> None:
    """The new one is the first player’s model as it was trained."""
    state().choices.append(Choice(state().choices[0].model))
    state().is_chosen = True


def _paint() -> None:
    """Every card carries the hue of its player."""
    rules = [
        f".st-key-compare_seat_{index} "
        f"{{ border-left: 6px solid {hue[is_dark()]} !important; padding: 0.35rem 0.6rem !important; }}"
        for index, hue in enumerate(PLAYER_HUES)
    ]
    rules.append(".st-key-compare_search_status:empty { display: none; }")
    st.html(f"<style>{' '.join(rules)}</style>")
