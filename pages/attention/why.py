"""“Why here?”: the sources of a head's preference for a key, the heads that wrote them, and what removing one changes."""

from __future__ import annotations

from collections import Counter

import streamlit as st

from pages.attention.explained import Explained, explained, nats, removal, sentence
from pages.attention.trail import Cell, breadcrumbs, open_cell, title_of, trail_to
from pages.components.attention_view import Selection
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import caption
from pages.shared.link import asked
from pages.shared.picture import footer, shown
from pages.shared.view import View
from xformer import viz
from xformer.formatting import percent
from xformer.reading import Reading

LISTED = 5
"""So many sources are offered to be followed."""
FEW, MOST_LAYERS = 24, 10
"""Of so many sources the matrix shows each; of more it can open so many layers."""
MEAN = -1
"""Stands for all other keys among the keys that this one can be compared with."""


def why_panel(view: View, run: Reading, chosen: Selection, view_key: str) -> dict[str, str]:
    """The sentence, the picture, the way back, and the measurement; what the link has to remember of it."""
    cell = _cell(run, chosen)
    trail = trail_to(run)
    breadcrumbs(run, trail, view_key)
    site = run.attention_site(cell.layer)
    queries, keys = run.tokens_of(site.query_stack), run.tokens_of(site.key_stack)
    against = _against(run, cell, keys)
    found = explained(view, run, cell, against)
    looks, seen = (
        f"**{at} “{escape_markdown(names[at])}”**" for at, names in ((cell.query, queries), (cell.key, keys))
    )
    st.markdown(
        f"{title_of(run, cell)} at {looks} gives {seen} {percent(found.weight)} of its attention. "
        + sentence(
            found,
            "the mean of the others" if against is None else f"that of {against} “{escape_markdown(keys[against])}”",
        )
    )
    opened = _opened(cell, found)
    call = Call(viz.why, (run,), {**found.where, "opened": opened, "table": found.table})
    shown(view, call, "why")
    footer(view, "why", [call])
    caption(
        f"The score {found.total:.4f} is the sum of all cells, less {abs(found.residue):.0e} of rounding. One nat more makes "
        "the weight of a key 2.7 times larger beside the others’. Contributions have both signs and cancel, so one can be "
        "larger than the sum. They are arithmetic on this run with its norms frozen, no measurement."
    )
    _way_back(run, cell, found, trail, view_key)
    _check(found)
    return {
        "trail": "_".join(map(str, trail)),
        "against": "" if against is None else str(against),
        "opened": "_".join(opened or ()),
    }


def _opened(cell: Cell, found: Explained) -> list[str] | None:
    """Of which layers the matrix has each head for itself; None where it has room for all heads."""
    sizes: Counter[str] = Counter()
    for one in found.contributions:
        layer, is_head, _ = one.writer.name.rpartition(" · head ")
        sizes.update({layer: abs(one.adds)} if is_head else {})
    if len(found.contributions) <= FEW:
        return None
    layers, key = [layer for layer, _ in sizes.most_common(MOST_LAYERS)], f"why_opened_{cell}"
    wanted = asked("opened")
    if key not in st.session_state or wanted is not None:
        st.session_state[key] = layers[:1] if wanted is None else [one for one in wanted.split("_") if one in layers]
    return st.pills("Layers opened to their heads", layers, selection_mode="multi", key=key)


def _cell(run: Reading, chosen: Selection) -> Cell:
    """What is locked in the view; else the last query and the key that it looks at most."""
    pattern = run[f"{run.attention_site(chosen.layer).path}.pattern"][0, chosen.head]  # [query, key]
    query = len(pattern) - 1 if chosen.query is None else chosen.query
    if chosen.query is None and chosen.key is not None:
        query = int(pattern[:, chosen.key].argmax())
    key = int(pattern[query].argmax()) if chosen.key is None else chosen.key
    return Cell(chosen.layer, chosen.head, query, key)


def _against(run: Reading, cell: Cell, keys: tuple[str, ...]) -> int | None:
    """What the key is compared with: the mean of the others, or one of them."""
    scores = run[f"{run.attention_site(cell.layer).path}.scores"][0, cell.head, cell.query]
    allowed = [key for key in scores.isfinite().nonzero()[:, 0].tolist() if key != cell.key]
    wanted = asked("against")
    if wanted is not None and wanted.isdecimal() and int(wanted) in allowed:
        st.session_state["why_against"] = int(wanted)
    if st.session_state.get("why_against") not in allowed:
        st.session_state["why_against"] = MEAN
    chosen = st.selectbox(
        "Compared with",
        [MEAN, *allowed],
        format_func=lambda key: "the mean of all others it may look at" if key == MEAN else f"{key} · {keys[key]}",
        key="why_against",
        width=400,
    )
    return None if chosen == MEAN else chosen


def _way_back(run: Reading, cell: Cell, found: Explained, trail: list[Cell], view_key: str) -> None:
    """A button for each head among the largest contributions of either sign: it opens that head where it wrote."""
    strongest = sorted(found.contributions, key=lambda one: -abs(one.adds))
    heads = [one for one in strongest if one.writer.name != "biases"][:LISTED]
    heads = [one for one in heads if one.writer.head is not None]
    if not heads:
        return
    st.markdown("**Walk back:** open the head that wrote it, at the position where it wrote.")
    with st.container(horizontal=True, gap="small"):
        for one in heads:
            assert one.writer.site is not None
            assert one.writer.head is not None
            layer = run.attention.index(one.writer.site)
            at = cell.key if one.side == "key" else cell.query
            pattern = run[f"{one.writer.site.path}.pattern"][0, one.writer.head]
            there = Cell(layer, one.writer.head, at, int(pattern[at].argmax()))
            st.button(
                f"{one.title}: {nats(one.adds)}",
                key=f"why_back_{one.side}_{layer}_{one.writer.head}",
                on_click=open_cell,
                args=(there, [*trail, cell], view_key),
            )


def _check(found: Explained) -> None:
    """What becomes of the cell in a run without the largest contribution."""
    if found.removed is None:
        return
    st.markdown(f"**Measured** by removing {removal(found.removed)}:")
    st.dataframe(found.check, hide_index=True, width="content", key="why_check")
    if found.is_moved is None:
        st.caption("Advantage and score in nats. This model gives vectors and makes no prediction that could change.")
    else:
        st.caption(f"Advantage, score and loss in nats. {'A' if found.is_moved else 'No'} prediction changes.")
