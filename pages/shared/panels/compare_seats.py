"""Who plays: a card a player with its model, its step and what is changed for it alone; players come and go here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from pages.shared import models
from pages.shared.literal import literal
from pages.shared.panels.compare_seat import LETTERS, Seat, read_seat, unplayable, usual_seats
from pages.shared.panels.compare_settings import settings
from xformer.errors import InputError, XformerError
from xformer.viz.theme import PLAYER_HUES

SEATS = "compare_seats"
"""Where the session keeps the players, as a link writes them."""


REFUSED = "compare_refused"
"""Where the session keeps why the model that was just chosen cannot play."""


def ask_seats() -> tuple[Seat, ...]:
    """The players that a visitor chose; those of the link on the first run, else the usual pair."""
    seats = _begin()
    st.session_state[SEATS] = [seat.text for seat in seats]
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


def _begin() -> tuple[Seat, ...]:
    if SEATS in st.session_state:
        asked = list(st.session_state[SEATS])
    else:
        asked = [st.query_params[letter.lower()] for letter in LETTERS if letter.lower() in st.query_params]
    seats = []
    for text in asked:
        try:
            seats.append(read_seat(text))
        except InputError as error:
            st.warning(
                f"The player {literal(text[:80])} was left out. {literal(str(error))}", icon=":material/link_off:"
            )
    if len(seats) == 1:  # half a link: the other one is the model as it was trained, or masked
        own = Seat(seats[0].model)
        seats.append(
            own if seats[0] != own else replace(own, mask="full" if own.checkpoint.config.causal else "causal")
        )
    return tuple(seats) or usual_seats()


def _card(index: int, seat: Seat, n: int) -> None:
    runs = models.trained()
    asked = models.run_and_step(seat.model)
    chosen = seat.model if asked is None else asked[0]
    shipped = [name for name in models.shipped() if unplayable(name) is None]
    options = list(dict.fromkeys([*shipped, *runs, chosen]))
    with st.container(border=True, key=f"compare_seat_{index}", gap="xsmall"):
        with st.container(horizontal=True, wrap=False, gap="xsmall", vertical_alignment="center"):
            st.markdown(f"**{LETTERS[index]}**", width="content")
            _widget(f"compare_model_{index}", chosen)
            st.selectbox(
                f"Model of player {LETTERS[index]}",
                options,
                format_func=lambda name: f"▸ {runs[name]}" if name in runs else name,
                key=f"compare_model_{index}",
                on_change=_choose_model,
                args=(index,),
                label_visibility="collapsed",
            )
        row = st.container(horizontal=True, wrap=False, gap="xsmall", vertical_alignment="center")
        if asked is not None:
            with row:
                _ask_step(index, *asked, narrow=n < 3)
        # Three and four cards are narrow: the step of a run has a row of its own there.
        second = st.container() if asked is not None and n > 2 else row
        # What is inside is drawn while it is open: a widget that is not on the screen misses what it is told.
        drawer = second.popover(
            ", ".join(seat.settings()) or "as trained",
            icon=":material/tune:" if n < 4 else None,
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
        width=118 if narrow else "stretch",
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
    asked = models.run_and_step(seat.model)
    if asked is not None:
        change(index, replace(seat, model=f"{asked[0]}@{st.session_state[f'compare_step_{index}']}"))


def _add() -> None:
    """The new one is the first player’s model as it was trained."""
    st.session_state[SEATS].append(st.session_state[SEATS][0].split("~")[0])


def _remove(index: int) -> None:
    del st.session_state[SEATS][index]


def _paint() -> None:
    """Every card carries the hue of its player."""
    dark = st.context.theme.type == "dark"
    rules = [
        f".st-key-compare_seat_{index} {{ border-left: 6px solid {hue[dark]} !important; padding: 0.5rem 0.7rem !important; }}"
        for index, hue in enumerate(PLAYER_HUES)
    ]
    rules.append(".st-key-compare_seats { margin-top: 0.5rem; }")
    rules.append(".st-key-compare_search_status:empty { display: none; }")
    st.html(f"<style>{' '.join(rules)}</style>")
