"""Positions: how does the model know where a token is? Switch them off, look at its own kind, then at all kinds."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.positions.guess import Guess, question, what_happened
from pages.positions.kinds import (
    TITLES,
    found_kind,
    offsets_panel,
    own_panel,
    places_panel,
    position_kinds_panel,
)
from pages.shared import frame, resources
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import headline, what_to_notice
from pages.shared.models import card_of_model
from pages.shared.picture import footer, panel, shown, table, toolbar
from pages.shared.prediction import prediction_panel
from pages.shared.session import open_sidebar
from pages.shared.view import View, toggle_intervention
from pages.shared.widgets import ask_side, choose
from xformer import analysis, viz
from xformer.analysis.attention_patterns import looks_back_only
from xformer.analysis.positions import wavelengths
from xformer.formatting import percent
from xformer.interventions import join
from xformer.reading import Reading
from xformer.site import head_title
from xformer.viz.attention_patterns import MOST_CELLS, pooled
from xformer.viz.positions import attention_guess

HEIGHT = 300
ATTENTION, OWN, OFFSETS, PLACES, ALL_KINDS = "attention", "own", "offsets", "places", "kinds"


def page() -> None:
    open_sidebar("Positions", "How does the model know where a token is?").on_each_change(_positions)


def _positions(view: View) -> None:
    prediction_panel(view)
    with st.container(gap="xxsmall"):
        said, controls, panels = st.container(), toolbar(), _panels(view)
        picture = frame.picture()
    side, by_side = None, {OWN: own_panel, OFFSETS: offsets_panel, ALL_KINDS: position_kinds_panel}
    show = ""
    with controls:
        if panels:
            show = choose(
                "show", panels, next(iter(panels)), "Show", key="positions_show", label_visibility="collapsed"
            )
            side = ask_side() if show in by_side and view.is_pair else None
        if view.shape.can_drop_positions:
            _switch(view)
    if not view.shape.can_drop_positions:
        found = f"Nothing was found that tells this model where a {view.input.one} is and could be switched off."
        own = "This model has no positions that could be switched off."
        st.info(found if view.task is None else own, icon=":material/info:")
    with picture:
        if show in by_side:
            panel(by_side[show], view, side)
        elif show == PLACES:
            panel(places_panel, view)
        elif show:
            panel(positions_off_panel, view, said, controls)
    if show and (view.task is not None or show == ATTENTION):
        position_notes(view, side, show)
    view.share()


def _panels(view: View) -> dict[str, str]:
    """The panels of this model."""
    panels = {ATTENTION: "On/off"} if view.shape.can_drop_positions else {}
    if view.task is None:
        if how := found_kind(view):
            panels[OWN] = TITLES[how]
            panels |= {} if how == "biased" else {OFFSETS: "Distance"}
        return panels
    kind = view.config.position_kind
    if kind.acts_on != "nothing":
        if not kind.is_drawn_by_offset:
            panels[OWN] = kind.title
        panels[OFFSETS] = kind.title if kind.is_drawn_by_offset else "Distance"
    if view.shape.image and kind.acts_on == "stream":
        panels[PLACES] = "Patches"
    return {**panels, ALL_KINDS: "All kinds"}


OFF = "positions:off"
FURTHEST = "most"
GUESS, GUESS_MAP, HEAD_MAP = "positions_guess", "positions_guess_map", "moved"


def _switch(view: View) -> None:
    is_off = OFF in view.on
    st.button(
        "Switch positions on" if is_off else "Switch positions off",
        icon=":material/location_on:" if is_off else ":material/location_off:",
        type="secondary" if is_off else "primary",
        on_click=toggle_intervention,
        args=(OFF,),
        key="positions_off",
    )


def positions_off_panel(view: View, said: DeltaGenerator, controls: DeltaGenerator) -> None:
    """One head with positions, and after the switch without: until then an empty grid, in which a click is a guess."""
    on, off = with_and_without(view)
    moved = table(view, analysis.attention_moved, off, before=on)
    with controls:
        layer, head = _ask_head(view, moved)
    options = {"layer": layer, "head": head, "height": HEIGHT}
    is_off, of = OFF in view.on, (view.model, view.source, layer, head)
    query, one = question(on, off, layer, head)
    calls = [Call(viz.attention, (on,), {**options, "title": "With positions", "legend": not is_off})]
    if is_off:
        calls += [
            Call(viz.attention, (off,), {**options, "title": "Without positions"}),
            Call(
                viz.attention_moved, (off,), {"before": on, "chosen": (layer, head), "title": "Attention moved (click)"}
            ),
        ]
    left, right, *last = st.columns([1, 1.27, 0.9] if is_off else [1.2, 1], gap="medium")
    with left:
        shown(view, calls[0], "pattern_0")
    with right:
        if is_off:
            shown(view, calls[1], "pattern_1")
        else:
            empty = Call(attention_guess, (on,), {**options, "query": query, "title": "Without positions: your guess"})
            shown(view, empty, GUESS_MAP, on_select=lambda: _take_guess(of), selection_mode="cell")
    for column in last:
        with column:
            shown(view, calls[2], HEAD_MAP, on_select=_take_head, selection_mode="head")
    with said:
        if is_off:
            headline(_verdict(of, off, layer, head) or what_happened(on, off, moved, layer, head, view.is_pair))
        elif one:
            headline(f"Where will **{escape_markdown(one)}** look without positions? Click a cell in its row.")
    longest = max(on[f"{on.attention[layer].path}.pattern"].shape[-2:])
    if longest > MOST_CELLS:
        st.caption(
            f"{longest} positions in blocks of {-(-longest // MOST_CELLS)}: a cell is the largest weight of its block."
        )
    footer(view, "pattern", calls)


def _take_guess(of: tuple[Any, ...]) -> None:
    """Keep the cell that was clicked, and switch the positions off."""
    for cell in st.session_state[GUESS_MAP]["selection"].get("cell", []):
        st.session_state[GUESS] = Guess(of, str(cell["query"]), str(cell["key"]))
        toggle_intervention(OFF)


def _take_head() -> None:
    """The head that was clicked in the grid of all heads becomes the one that is drawn."""
    for cell in st.session_state[HEAD_MAP]["selection"].get("head", []):
        st.session_state["watch"] = cell["cell"]


def _verdict(of: tuple[Any, ...], off: Reading, layer: int, head: int) -> str:
    """Whether the visitor's guess on this head was right; "" without a guess."""
    guess = st.session_state.get(GUESS)
    if not isinstance(guess, Guess) or guess.of != of:
        return ""
    cells = pooled(analysis.attention(off, layer=layer, head=head), MOST_CELLS)
    row = cells.loc[(cells["query"] == guess.query) & cells["weight"].notna()]
    if row.empty:
        return ""
    best = row.nlargest(1, "weight").iloc[0]
    key, weight = escape_markdown(str(best["key"])), percent(float(best["weight"]), 0)
    right = "You were right" if best["key"] == guess.key else f"You guessed {escape_markdown(guess.key)}"
    return f"{right}: {escape_markdown(guess.query)} now looks most at **{key}**, with {weight}."


def with_and_without(view: View) -> tuple[Reading, Reading]:
    """The run with positions and the run without, both with all other changes."""
    rest = join(tuple(change for change in view.interventions if change.text != OFF))
    off = ",".join(word for word in (rest, OFF) if word)
    without, with_off = (resources.run(view.model, view.source, view.mask, changes) for changes in (rest, off))
    return without, with_off


def _ask_head(view: View, moved: pd.DataFrame) -> tuple[int, int]:
    """Ask for a head, at first the one that moves most; returns layer and head."""
    paths = list(dict.fromkeys(moved["layer"]))
    cells = {
        f"{paths.index(path) + 1}.{head + 1}": (path, head)
        for path, head in zip(moved["layer"].tolist(), moved["head"].tolist(), strict=True)
    }
    names = {cell: head_title(path, head, is_pair=view.is_pair) for cell, (path, head) in cells.items()}
    furthest = list(cells)[int(moved["moved"].to_numpy().argmax())]
    look: dict[str, Any] = {"widget": st.selectbox, "width": 205, "label_visibility": "collapsed"}
    chosen = choose("watch", {FURTHEST: f"{names[furthest]} (most)", **names}, FURTHEST, "Attention of", **look)
    path, head = cells[furthest if chosen == FURTHEST else chosen]
    return paths.index(path), head


def position_notes(view: View, side: str | None, show: str) -> None:
    """What to notice in the panel `show`, if anything."""
    if show == ATTENTION and OFF not in view.on:
        return  # the visitor is about to try it
    notes = {"attention": _about_loss, "own": _about_own, "offsets": _about_band, "kinds": _about_sums}
    if show in notes and (note := notes[show](view, side)):
        what_to_notice([note])


def _about_loss(view: View, side: str | None) -> str:
    without, off = with_and_without(view)
    n = len(without.target_positions)
    loss = f"the loss goes from {without.loss:.4f} to {off.loss:.4f} nats."
    if not without.target_positions:
        note = ""
    elif view.input.goes_on or (view.shape.image and without.has_right_answer):
        note = f"Without positions {loss} "
    elif without.has_right_answer:
        note = f"Without positions {off.n_correct} of {n} are right instead of {without.n_correct}, and {loss} "
    else:
        return ""
    if len(off.tokens) == 1:
        return note
    if not view.is_pair and not looks_back_only(off):
        return note + "All tokens are still there; only their **order** is lost."
    if looks_back_only(off, "decoder" if view.is_pair else None):
        of = " of the decoder" if view.is_pair else ""
        return note + f"The remaining information{of} on order comes from the **causal mask**."
    return note


def _about_own(view: View, side: str | None) -> str:
    return " ".join(filter(None, (_about_waves(view, side), _about_numbers(view, side))))


def _about_numbers(view: View, side: str | None) -> str:
    """Which position numbers were trained."""
    config, train = view.config, card_of_model(view.model).get("train")
    longest = view.longest_trained(side)
    if not isinstance(train, dict) or config.position_kind.acts_on == "nothing" or longest >= config.max_len:
        return ""
    if train.get("random_positions"):
        return (
            f"Its inputs had at most {longest} tokens, but all position numbers up to {config.max_len - 1} were trained: each "
            "sequence got increasing **random numbers with gaps**, so the model could learn only their order and equality."
        )
    if config.position_kind.learned(config) and not train.get("weight_decay"):
        return (
            f"No training input reached position {longest}: the vectors from there on still have their **initial values**, and "
            "longer inputs are beyond what the model has learned."
        )
    return ""


def _about_waves(view: View, side: str | None) -> str:
    config = view.config
    if not config.position_kind.wave_width(config):
        return ""
    waves, longest = wavelengths(config), view.longest_trained(side)
    slow = int((waves > 4 * longest).sum())
    note = f"The fastest wave turns once in {waves[0]:.2f} positions, the slowest in {waves[-1]:,.0f}."
    if slow:
        note += (
            f" {slow} of the {len(waves)} waves turn by less than a quarter within the {longest} positions of the longest "
            "input of its task: they hardly distinguish its positions."
        )
    return note


def _about_band(view: View, side: str | None) -> str:
    return view.config.position_kind.offset_note(view.config)


def _about_sums(view: View, side: str | None) -> str:
    if view.shape.d_model % 2:
        return ""
    return (
        "Drawn by how far apart, **sinusoidal** and **rotary** are the same kind of sum, Σ cos(offset · ω): one adds its waves "
        "to the vectors, d_model wide; the other turns queries and keys by them, d_head wide (and here 1 at offset 0)."
    )


page()
