"""“Six ways to tell a model where a token is”: every kind of positions as a card, with the model's own sizes."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import streamlit as st

from pages.shared.ask import choose
from pages.shared.notebook import footer, heading
from pages.shared.panels.order_trial import order_trial
from pages.shared.panels.position_pictures import Picture, by_offset, what_is_done
from pages.shared.view import View
from xformer.analysis import positions as analysis

ROWS = 64
"""Positions in the small picture of what is done."""
DRAW = {"done": "what is done", "offset": "two positions, by how far apart"}
HEIGHT = 150


@dataclass(frozen=True)
class Kind:
    """What a card says."""

    name: str
    does: str
    more: str
    """What stands behind the question mark."""


KINDS = {
    "sinusoidal": Kind(
        "Sinusoidal",
        "Adds fixed waves, each longer than the one before.",
        "With an even d_model, the dot product of two positions depends on their offset alone. (Vaswani et al. 2017, §3.5)",
    ),
    "learned": Kind(
        "Learned",
        "Adds one learned vector per position.",
        "Nothing makes offsets comparable but training, and a position that training never showed has learned nothing. "
        "(Vaswani et al. 2017, §3.5)",
    ),
    "mirror": Kind(
        "Mirror",
        "Adds two learned vectors, for the distance from the start and from the end.",
        "One look-up is then enough to reverse a sequence. It needs to know the length, so it is nothing for a decoder.",
    ),
    "rotary": Kind(
        "Rotary",
        "Turns queries and keys, pair by pair, further with each position.",
        "The score of a query with its own key then depends on the offset alone. (Su et al. 2021, §3.4)",
    ),
    "alibi": Kind(
        "ALiBi",
        "Takes the distance, times each head’s slope, off its scores.",
        "Nothing is added to the vectors; far keys cost more. (Press et al. 2022, §3)",
    ),
    "none": Kind("None", "Nothing is added, turned or taken off.", "Every offset counts 0."),
}


def position_kinds_panel(view: View, side: str | None) -> None:
    """Six cards, that of the model marked; a learned kind is drawn where the model has learned it."""
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
    for row in (analysis.KINDS[:3], analysis.KINDS[3:]):
        for column, kind in zip(st.columns(3, gap="small"), row, strict=True):
            with column, st.container(border=True, height="stretch", gap="small"):
                _card(view, kind, draw, n, side)


def _card(view: View, kind: str, draw: str, n: int, side: str | None) -> None:
    mark = " :green-badge[:material/check: this model]" if kind == view.checkpoint.config.positions else ""
    heading(KINDS[kind].name + mark)
    if kind == "none":
        st.caption(KINDS[kind].does, help=KINDS[kind].more)
        order_trial(view)
        return
    picture = _picture(view, kind, draw, n, side)
    if picture is not None:
        picture.show(view, f"card_{kind}")
        st.caption(KINDS[kind].does, help=KINDS[kind].more)
        picture.footer(view, kind)
    elif kind == "mirror" and draw == "done":
        st.caption(KINDS[kind].does, help=KINDS[kind].more)
        _counted(view, side)
    else:
        st.caption(
            f"{KINDS[kind].does} This model has learned no such vectors, so there are none to draw.",
            help=KINDS[kind].more,
        )


def _picture(view: View, kind: str, draw: str, n: int, side: str | None) -> Picture | None:
    config = view.checkpoint.config
    if kind == config.positions == "mirror":
        n = len(view.original().tokens(side))
    if kind == "alibi" or draw == "offset":  # its slopes are all that ALiBi does
        return by_offset(view, kind, n, side, HEIGHT if kind != "alibi" else HEIGHT + 110)
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
