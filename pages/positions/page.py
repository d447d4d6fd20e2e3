"""Positions: how does the model know where a token is? Switch them off, look at its own kind, then at all kinds."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from pages.positions.kinds import TITLES, found_kind, offsets_panel, own_panel, places_panel, position_kinds_panel
from pages.shared import frame, resources
from pages.shared.call import Call
from pages.shared.layout import what_to_notice
from pages.shared.models import card_of_model
from pages.shared.picture import footer, heading, panel, picture, shown, table
from pages.shared.prediction import prediction_lanes, prediction_sentence
from pages.shared.session import open_sidebar
from pages.shared.view import View, toggle_intervention
from pages.shared.widgets import ask_side, choose
from xformer import analysis, viz
from xformer.analysis.attention_patterns import looks_back_only
from xformer.analysis.positions import wavelengths
from xformer.formatting import at_most
from xformer.interventions import join
from xformer.reading import Reading
from xformer.site import head_title
from xformer.viz.attention_patterns import MOST_CELLS
from xformer.viz.positions import MOST_HEADS_DRAWN

ATTENTION, OWN, OFFSETS, PLACES, ALL_KINDS = "attention", "own", "offsets", "places", "kinds"


def page() -> None:
    open_sidebar("Positions", "How does the model know where a token is?").on_each_change(_positions)


def _positions(view: View) -> None:
    positions_switch(view)
    panels = _panels(view)
    if not panels:
        view.share()
        return
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        show = choose("show", panels, next(iter(panels)), "Show", key="positions_show", label_visibility="collapsed")
        side = ask_side() if show not in (ATTENTION, PLACES) and view.is_pair else None
    by_side = {OWN: own_panel, OFFSETS: offsets_panel, ALL_KINDS: position_kinds_panel}
    with frame.picture():
        if show in by_side:
            panel(by_side[show], view, side)
        else:
            panel(positions_off_panel if show == ATTENTION else places_panel, view)
    if view.task is not None or show == ATTENTION:
        position_notes(view, side, show)
    if view.task is None and OWN not in panels:
        st.info("No position vectors, angles or biases were found in this model.", icon=":material/info:")
    view.share()


def _panels(view: View) -> dict[str, str]:
    """The panels of this model."""
    panels = {ATTENTION: "with and without"} if view.shape.can_drop_positions else {}
    if view.task is None:
        if how := found_kind(view):
            panels[OWN] = f"its own kind: {TITLES[how]}"
            panels |= {} if how == "biased" else {OFFSETS: "by how far apart"}
        return panels
    kind = view.config.position_kind
    own = f"its own kind: {kind.title}"
    if kind.acts_on != "nothing":
        if not kind.is_drawn_by_offset:
            panels[OWN] = own
        panels[OFFSETS] = own if kind.is_drawn_by_offset else "by how far apart"
    if view.shape.image and kind.acts_on == "stream":
        panels[PLACES] = "where a patch is"
    return {**panels, ALL_KINDS: "all kinds"}


OFF = "positions:off"
FURTHEST = "most"


def positions_switch(view: View) -> None:
    """What the model says, with the positions' switch beside it."""
    what = _what(view)
    prediction_lanes(view, what)
    if not view.shape.can_drop_positions:
        found = f"Nothing was found that tells this model where a {view.input.one} is and could be switched off."
        own = "This model has no positions that could be switched off."
        st.info(found if view.task is None else own, icon=":material/info:")
        return
    is_off = OFF in view.on
    with st.container(horizontal=True, gap="medium", vertical_alignment="center"):
        st.button(
            "Switch the positions back on" if is_off else "Switch the positions off in the running model",
            icon=":material/location_on:" if is_off else ":material/location_off:",
            type="secondary" if is_off else "primary",
            on_click=toggle_intervention,
            args=(OFF,),
            key="positions_off",
        )
        prediction_sentence(view, what)


def positions_off_panel(view: View) -> None:
    """One head with and without positions, and how far each head's attention moves."""
    original, changed = view.original(), view.changed()
    on, off = with_and_without(view)
    moved = table(view, analysis.attention_moved, off, before=on)
    layer, head = _ask_head(view, moved)
    runs = {"This head’s attention": original}
    if changed is not None:
        runs = {"Own run": original, _what(view).capitalize(): changed}
    *places, last = st.columns(len(runs) + 1, gap="medium")
    for index, (place, (name, run)) in enumerate(zip(places, runs.items(), strict=True)):
        with place:
            heading(name)
            call = Call(viz.attention, (run,), {"layer": layer, "head": head, "height": 190})
            shown(view, call, f"pattern_{index}")
            longest = max(run[f"{run.attention[layer].path}.pattern"].shape[-2:])
            if longest > MOST_CELLS:
                blocks = -(-longest // MOST_CELLS)
                st.caption(f"{longest} positions in blocks of {blocks}: a cell is the largest weight of its block.")
            footer(view, "pattern-changed" if index else "pattern", [call])
    with last:
        heading("How far heads move")
        picture(view, "moved", viz.attention_moved, off, before=on)
        others = ""
        if len(moved) > MOST_HEADS_DRAWN:
            rest = sorted(moved["moved"].tolist(), reverse=True)[MOST_HEADS_DRAWN]
            others = f" The {MOST_HEADS_DRAWN} of {len(moved)} heads that move most; no other moves more than {at_most(rest)}."
        st.caption(
            f"How much of each head’s attention moves without positions, from 0 (none of it) to 1 (all of it).{others}"
        )


def with_and_without(view: View) -> tuple[Reading, Reading]:
    """The run with positions and the run without, both with all other changes."""
    rest = join(tuple(change for change in view.interventions if change.text != OFF))
    off = ",".join(word for word in (rest, OFF) if word)
    without, with_off = (resources.run(view.model, view.source, view.mask, changes) for changes in (rest, off))
    return without, with_off


def _what(view: View) -> str:
    return "positions off" if view.on == {OFF} and view.mask == resources.MASKS[0] else view.what_changed()


def _ask_head(view: View, moved: pd.DataFrame) -> tuple[int, int]:
    """Ask for a head, at first the one that moves most; returns layer and head."""
    paths = list(dict.fromkeys(moved["layer"]))
    cells = {
        f"{paths.index(path) + 1}.{head + 1}": (path, head)
        for path, head in zip(moved["layer"].tolist(), moved["head"].tolist(), strict=True)
    }
    names = {cell: head_title(path, head, is_pair=view.is_pair) for cell, (path, head) in cells.items()}
    furthest = list(cells)[int(moved["moved"].to_numpy().argmax())]
    is_moved = bool(moved["moved"].max() > 0)
    most = f"moves most: {names[furthest]}" if is_moved else f"none moves; the first: {names[furthest]}"
    look: dict[str, Any] = {"widget": st.selectbox, "width": 420, "label_visibility": "collapsed"}
    chosen = choose("watch", {FURTHEST: most, **names}, FURTHEST, "Attention of", **look)
    path, head = cells[furthest if chosen == FURTHEST else chosen]
    return paths.index(path), head


def position_notes(view: View, side: str | None, show: str) -> None:
    """What to notice in the panel `show`, if anything."""
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
