"""Every way to tell a model where a token is: each kind of positions as a card, with the model's own sizes."""

from __future__ import annotations

from typing import Any

import streamlit as st

from pages.positions.order_trial import order_trial
from pages.shared.call import Call
from pages.shared.picture import footer, heading, picture
from pages.shared.view import View
from pages.shared.widgets import choose
from xformer import analysis, viz
from xformer.positions import POSITION_KINDS, PositionKind

MOST_ROWS_DRAWN = 64
"""Positions in the small picture of what is done."""
DRAW = {"done": "what is done", "offset": "two positions, by how far apart"}
HEIGHT, HEIGHT_OF_LINES = 150, 260
"""Pixels of a card's picture; lines have their legend below."""
CARDS_IN_A_ROW = 3


def position_kinds_panel(view: View, side: str | None) -> None:
    """A card each, that of the model marked; a learned kind is drawn where the model has learned it."""
    config = view.config
    draw = choose("draw", DRAW, "done", "Draw", label_visibility="collapsed")
    n = max(2, view.longest_trained(side))
    heads = f"{config.n_heads} head{'s' if config.n_heads > 1 else ''} of {config.d_head}"
    seen = (
        f"the first {min(n, MOST_ROWS_DRAWN)} positions, from the lowest (orange) to the highest value (blue)"
        if draw == "done"
        else f"the {n} positions of the longest input of its task"
    )
    st.caption(f"With this model’s sizes: d_model {config.d_model}, {heads}, base {config.position_base:g}; {seen}.")
    kinds = list(POSITION_KINDS.values())
    for first in range(0, len(kinds), CARDS_IN_A_ROW):
        row = kinds[first : first + CARDS_IN_A_ROW]
        for column, kind in zip(st.columns(CARDS_IN_A_ROW, gap="small"), row, strict=False):
            with column, st.container(border=True, height="stretch", gap="small"):
                _card(view, kind, draw, n, side)


def _card(view: View, kind: PositionKind, draw: str, n: int, side: str | None) -> None:
    config, run = view.config, view.original()
    own = kind is config.position_kind
    heading(kind.title + (" :green-badge[:material/check: this model]" if own else ""))
    if kind.acts_on == "nothing":
        st.caption(kind.does, help=kind.more)
        order_trial(view)
    elif own or kind.can_be_drawn(config):
        n = n if kind.keeps_keys else len(run.tokens_of(side))
        of: dict[str, Any] = {"key": f"card_{kind.name}", "kind": kind.name, "stack": side}
        if kind.is_drawn_by_offset or draw == "offset":
            height = HEIGHT_OF_LINES if kind.is_drawn_by_offset else HEIGHT
            picture(view, kind.name, viz.position_offsets, run, n=n, height=height, **of)
        else:
            rows = range(min(n, MOST_ROWS_DRAWN))
            picture(view, kind.name, viz.position_values, run, positions=rows, height=HEIGHT, legend=False, **of)
        st.caption(kind.does, help=kind.more)
    elif (
        not kind.keeps_keys and draw == "done"
    ):  # how an input would be counted, though no vectors were learned for that
        st.caption(kind.does, help=kind.more)
        st.caption("This model has learned no such vectors. Its input would be counted like this:")
        call = Call(analysis.position_counts, (run,), {"stack": side})
        st.dataframe(call.make(), hide_index=True, height=HEIGHT, key=f"{kind.name}_table")
        footer(view, kind.name, [call])
    else:
        what = "numbers" if kind.acts_on == "scores" else "vectors"
        st.caption(f"{kind.does} This model has learned no such {what}, so there are none to draw.", help=kind.more)
