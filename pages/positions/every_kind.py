"""Every way to tell a model where a token is: each kind of positions as a card, with the model's own sizes."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.positions.order_trial import order_trial
from pages.positions.pictures import Picture, by_offset, what_is_done
from pages.shared.ask import choose
from pages.shared.notebook import footer, heading
from pages.shared.view import View
from xformer.positions import POSITION_KINDS, PositionKind

ROWS = 64
"""Positions in the small picture of what is done."""
DRAW = {"done": "what is done", "offset": "two positions, by how far apart"}
HEIGHT = 150
IN_A_ROW = 3


def position_kinds_panel(view: View, side: str | None) -> None:
    """A card each, that of the model marked; a learned kind is drawn where the model has learned it."""
    config = view.checkpoint.config
    draw = choose("draw", DRAW, "done", "Draw", label_visibility="collapsed")
    n = max(2, view.longest_trained(side))
    heads = f"{config.n_heads} head{'s' if config.n_heads > 1 else ''} of {config.d_head}"
    seen = (
        f"the first {min(n, ROWS)} positions, from the lowest (orange) to the highest value (blue)"
        if draw == "done"
        else f"the {n} positions of the longest input of its task"
    )
    st.caption(f"With this model’s sizes: d_model {config.d_model}, {heads}, base {config.position_base:g}; {seen}.")
    kinds = list(POSITION_KINDS.values())
    for first in range(0, len(kinds), IN_A_ROW):
        for column, kind in zip(st.columns(IN_A_ROW, gap="small"), kinds[first : first + IN_A_ROW], strict=False):
            with column, st.container(border=True, height="stretch", gap="small"):
                _card(view, kind, draw, n, side)


def _card(view: View, kind: PositionKind, draw: str, n: int, side: str | None) -> None:
    own = kind is view.checkpoint.config.position_kind
    heading(kind.title + (" :green-badge[:material/check: this model]" if own else ""))
    if kind.acts_on == "nothing":
        st.caption(kind.does, help=kind.more)
        order_trial(view)
        return
    picture = _picture(view, kind, draw, n, side)
    if picture is not None:
        picture.show(view, f"card_{kind.name}")
        st.caption(kind.does, help=kind.more)
        picture.footer(view, kind.name)
    elif not kind.keeps_keys and draw == "done":
        st.caption(kind.does, help=kind.more)
        _counted(view, side)
    else:
        what = "numbers" if kind.acts_on == "scores" else "vectors"
        st.caption(f"{kind.does} This model has learned no such {what}, so there are none to draw.", help=kind.more)


def _picture(view: View, kind: PositionKind, draw: str, n: int, side: str | None) -> Picture | None:
    own = kind is view.checkpoint.config.position_kind
    if own and not kind.keeps_keys:
        n = len(view.original().ids(side))
    if kind.is_drawn_by_offset or draw == "offset":
        return by_offset(view, kind, n, side, HEIGHT + 110 if kind.is_drawn_by_offset else HEIGHT)
    return what_is_done(view, kind, range(min(n, ROWS)), side, HEIGHT, legend=False)


def _counted(view: View, side: str | None) -> None:
    """How an input would be counted from both ends, where no vectors have been learned for that."""
    tokens = view.reads(view.original(), side)
    n = len(tokens)
    st.caption("This model has learned no such vectors. Its input would be counted like this:")
    table = pd.DataFrame({"token": tokens, "from start": range(n), "from end": range(n - 1, -1, -1)})
    st.dataframe(table, hide_index=True, height=HEIGHT, key="mirror_table")
    lines = [
        "import pandas as pd",
        f"tokens = {tokens}",
        f'pd.DataFrame({{"token": tokens, "from start": range({n}), "from end": range({n - 1}, -1, -1)}})',
    ]
    footer(view, lines, table, "mirror", changed=False)
