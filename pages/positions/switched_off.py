"""The running model with its positions switched off: what it says then, and how far its heads look elsewhere."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.shared import resources
from pages.shared.call import Call
from pages.shared.picture import footer, heading, picture, shown, table
from pages.shared.prediction import prediction_lanes, prediction_sentence
from pages.shared.view import View, toggle_intervention
from pages.shared.widgets import choose
from xformer import analysis, viz
from xformer.formatting import at_most
from xformer.interventions import join
from xformer.reading import Reading
from xformer.site import head_title
from xformer.viz.attention_patterns import MOST_CELLS
from xformer.viz.positions import MOST_HEADS_DRAWN

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
                st.caption(f"{longest} positions, put together into blocks of {blocks}: a cell is its largest weight.")
            footer(view, "pattern-changed" if index else "pattern", [call])
    with last:
        heading("How far heads move")
        picture(view, "moved", viz.attention_moved, off, before=on)
        others = ""
        if len(moved) > MOST_HEADS_DRAWN:
            rest = sorted(moved["moved"].tolist(), reverse=True)[MOST_HEADS_DRAWN]
            others = f" The {MOST_HEADS_DRAWN} of {len(moved)} heads that move most; no other moves more than {at_most(rest)}."
        st.caption(
            "Each head’s attention when positions go off. 0: it looks where it looked before. 1: nothing of it is left where "
            f"it was.{others}"
        )


def with_and_without(view: View) -> tuple[Reading, Reading]:
    """The run without and with positions off, under whatever else is changed."""
    rest = join(tuple(change for change in view.interventions if change.text != OFF))
    off = ",".join(word for word in (rest, OFF) if word)
    without, with_off = (resources.run(view.model, view.source, view.mask, changes) for changes in (rest, off))
    return without, with_off


def _what(view: View) -> str:
    return "positions off" if view.on == {OFF} and view.mask == resources.MASKS[0] else view.what_changed()


def _ask_head(view: View, moved: pd.DataFrame) -> tuple[int, int]:
    """The head on show, by its layer and number: the one that moves most, or the one chosen."""
    paths = list(dict.fromkeys(moved["layer"]))
    cells = {
        f"{paths.index(path) + 1}.{head + 1}": (path, head)
        for path, head in zip(moved["layer"].tolist(), moved["head"].tolist(), strict=True)
    }
    names = {cell: head_title(path, head, is_pair=view.is_pair) for cell, (path, head) in cells.items()}
    furthest = list(cells)[int(moved["moved"].to_numpy().argmax())]
    is_moved = bool(moved["moved"].max() > 0)
    most = f"moves most: {names[furthest]}" if is_moved else f"none moves; the first: {names[furthest]}"
    chosen = choose(
        "watch",
        {FURTHEST: most, **names},
        FURTHEST,
        "Attention of",
        widget=st.selectbox,
        width=420,
        label_visibility="collapsed",
    )
    path, head = cells[furthest if chosen == FURTHEST else chosen]
    return paths.index(path), head
