"""Who plays: a card per player with its model, its step and what is changed for it alone; players come and go here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from pages.compare.look import seat_of
from pages.compare.match import why_not_together
from pages.compare.seat import LETTERS, Seat, beside, read_seat, unplayable, usual_seats
from pages.compare.settings import settings
from pages.shared import models
from pages.shared.link import asked
from pages.shared.literal import literal
from pages.shared.session import LookedAt
from xformer.errors import InputError, XformerError
from xformer.viz.theme import PLAYER_HUES

SEATS = "compare_seats"
"""Where the session keeps the players, as a link writes them."""


OF = "compare_of"
"""Where it keeps what was looked at elsewhere when the first player was last seated."""
AUTO = "compare_auto"
"""Where it keeps whether nobody has chosen a player yet."""
REFUSED = "compare_refused"
"""Where the session keeps why the model that was just chosen cannot play."""


def ask_seats(looked: LookedAt) -> tuple[Seat, ...]:
    """The players: those of the link, else what is looked at and a contrast to it, else those that a visitor chose here."""
    seats = _begin(looked)
    st.session_state[SEATS] = [seat.text for seat in seats]
    st.session_state[OF] = (looked.model, looked.mask, looked.edits)
    _paint()
    n = len(seats)
    if (why := st.session_state.pop(REFUSED, None)) is not None:
        st.warning(literal(why), icon=":material/block:")
    row = st.container(key="compare_seats")
    places = row.columns([*[1.0] * n, *([0.16 if n > 2 else 0.12] if n < len(LETTERS) else [])], gap="small")
    for index, (place, seat) in enumerate(zip(places, seats, strict=False)):
        with place:
            _card(index, seat, n)
    if n < len(LETTERS):
        places[-1].button(
            "", icon=":material/person_add:", help="One more player", on_click=_add, key="compare_add", width="stretch"
        )
    return seats


def link_of(seats: tuple[Seat, ...]) -> dict[str, str]:
    """The players as parameters of a link: a=…&b=…"""
    return {letter.lower(): seat.text for letter, seat in zip(LETTERS, seats, strict=False)}


def change(index: int, seat: Seat) -> None:
    """Put another player in a seat."""
    st.session_state[SEATS][index] = seat.text
    st.session_state[AUTO] = False


def _begin(looked: LookedAt) -> tuple[Seat, ...]:
    wanted = [text for letter in LETTERS if (text := asked(letter.lower())) is not None]
    before = [] if wanted else list(st.session_state.get(SEATS, []))
    if wanted:
        st.session_state[AUTO] = False
    elif not before or st.session_state.get(OF) != (looked.model, looked.mask, looked.edits):
        return _seated_anew(looked, before)
    return _read(wanted or before) or _seated_anew(looked, [])


def _seated_anew(looked: LookedAt, before: list[str]) -> tuple[Seat, ...]:
    """The first player is what is looked at; the others stay where somebody chose them and they can read its input."""
    own = seat_of(looked)
    others = [] if st.session_state.get(AUTO, True) else _read(before)[1:]
    if own is not None and others and why_not_together([own, *others]) is None:
        return own, *others
    st.session_state[AUTO] = True
    if own is None:
        return usual_seats()
    return own, beside(own)


def _read(texts: list[str]) -> tuple[Seat, ...]:
    """The players that links write; one alone gets a contrast, and what is none is left out aloud."""
    seats = []
    for text in texts:
        try:
            seats.append(read_seat(text))
        except InputError as error:
            st.warning(
                f"The player {literal(text[:80])} was left out. {literal(str(error))}", icon=":material/link_off:"
            )
    return (seats[0], beside(seats[0])) if len(seats) == 1 else tuple(seats)


def _card(index: int, seat: Seat, n: int) -> None:
    runs = models.trained()
    of_run = models.run_and_step(seat.model)
    chosen = seat.model if of_run is None else of_run[0]
    shipped = [name for name in models.shipped() if unplayable(name) is None]
    options = list(dict.fromkeys([*shipped, *runs, chosen]))
    with st.container(border=True, key=f"compare_seat_{index}", gap="xsmall"):
        row = st.container(horizontal=True, wrap=False, gap="xsmall", vertical_alignment="center")
        row.markdown(f"**{LETTERS[index]}**", width="content")
        _widget(f"compare_model_{index}", chosen)
        row.selectbox(
            f"Model of player {LETTERS[index]}",
            options,
            format_func=lambda name: f"▸ {runs[name]}" if name in runs else name,
            key=f"compare_model_{index}",
            on_change=_choose_model,
            args=(index,),
            label_visibility="collapsed",
        )
        # Of two shipped models everything stands in one line; three and four cards are narrow, and a run has its step.
        second = (
            row
            if n < 3 and of_run is None
            else st.container(horizontal=True, wrap=False, gap="xsmall", vertical_alignment="center")
        )
        if of_run is not None:
            with second:
                _ask_step(index, *of_run, narrow=n < 3)
        # What is inside is drawn while it is open: a widget that is not on the screen misses what it is told.
        drawer = second.popover(
            literal(", ".join(seat.settings())) or "as trained",
            icon=":material/tune:" if n < 3 and of_run is None else None,
            width="stretch",
            key=f"compare_settings_{index}",
            on_change="rerun",
        )
        if drawer.open:
            with drawer:
                settings(index, seat, change)
        if n > 2:
            row.button(
                "",
                icon=":material/close:",
                key=f"compare_remove_{index}",
                help=f"Player {LETTERS[index]} leaves.",
                on_click=_remove,
                args=(index,),
                type="tertiary",
                width=36,
            )


def _ask_step(index: int, run: str, step: int | None, *, narrow: bool) -> None:
    steps = models.steps_of(run)
    _widget(f"compare_step_{index}", step)
    st.selectbox(
        f"Step of player {LETTERS[index]}",
        list(dict.fromkeys([*steps, step])),
        format_func=lambda at: f"step {at:,}",
        key=f"compare_step_{index}",
        on_change=_choose_step,
        args=(index,),
        label_visibility="collapsed",
        width=116 if narrow else "stretch",
    )


def _widget(key: str, value: Any) -> None:
    """The players are kept in one place; a widget only shows them."""
    if st.session_state.get(key) != value:
        st.session_state[key] = value


def _choose_model(index: int) -> None:
    """Another model keeps of the changes those that fit it."""
    model = models.resolved(st.session_state[f"compare_model_{index}"])
    if model is None or unplayable(model):
        st.session_state[REFUSED] = unplayable(model) if model else "This run has no weights to look at yet."
        return
    seat = replace(read_seat(st.session_state[SEATS][index]), model=model)
    kept: list[str] = []
    for text in seat.changes:
        try:
            replace(seat, changes=(*kept, text)).interventions()
        except XformerError:
            continue
        kept.append(text)
    change(index, replace(seat, changes=tuple(kept)))


def _choose_step(index: int) -> None:
    seat = read_seat(st.session_state[SEATS][index])
    of_run = models.run_and_step(seat.model)
    if of_run is not None:
        change(index, replace(seat, model=f"{of_run[0]}@{st.session_state[f'compare_step_{index}']}"))


def _add() -> None:
    """The new one is the first player’s model as it was trained."""
    st.session_state[SEATS].append(st.session_state[SEATS][0].split("~")[0])
    st.session_state[AUTO] = False


def _remove(index: int) -> None:
    del st.session_state[SEATS][index]
    st.session_state[AUTO] = False


def _paint() -> None:
    """Every card carries the hue of its player."""
    dark = st.context.theme.type == "dark"
    rules = [
        f".st-key-compare_seat_{index} {{ border-left: 6px solid {hue[dark]} !important; padding: 0.35rem 0.6rem !important; }}"
        for index, hue in enumerate(PLAYER_HUES)
    ]
    rules.append(".st-key-compare_search_status:empty { display: none; }")
    st.html(f"<style>{' '.join(rules)}</style>")
