"""How this model does it: the waves or vectors that it adds, the angles by which it turns, or what it takes off its scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import streamlit as st

from pages.shared.byte_cache import shared
from pages.shared.call import Call
from pages.shared.link import asked, chose
from pages.shared.picture import footer, heading, picture, table
from pages.shared.view import ORIGINAL, View
from pages.shared.widgets import ask_window, choose, every_nth, window_words
from xformer import analysis, viz
from xformer.analysis.embeddings import Nearness, places_side_by_side
from xformer.analysis.images import place_cosines
from xformer.analysis.positions import OrderTest, found_positions, order_test
from xformer.errors import UnavailableError
from xformer.formatting import percent
from xformer.positions import POSITION_KINDS, PositionKind
from xformer.viz.embeddings import every

MOST_ROWS_DRAWN = 128
"""So many positions are drawn at a time."""
MOST_WAVES = 8


def own_positions_panel(view: View, side: str | None) -> None:
    """Draw what this model adds or turns at each position."""
    config = view.config
    is_added, n = config.position_kind.acts_on == "stream", positions_of(view, side)
    shown = ask_window(range(n), "positions_from", most=MOST_ROWS_DRAWN)
    if is_added:
        left, right = st.columns([3, 2], gap="large")
        with left:
            _curves(view, shown, side)
    else:
        right = st.container()
    with right:
        heading("The whole of it" if is_added else "Cosine of the angle")
        picture(view, "matrix", viz.position_values, view.original(), positions=shown, stack=side, height=330)
        width = config.d_model if is_added else (config.d_head + 1) // 2
        what = "dimensions" if is_added else "pairs of dimensions"
        row = (
            "A row is what is added to the token that stands there."
            if is_added
            else "A row is by how much queries and keys are turned there: 1 is not at all, −1 half a turn."
        )
        st.caption(f"{window_words(shown, n)} × {width} {what}{every_nth(every(len(shown), width))}. {row}")


def offsets_panel(view: View, side: str | None) -> None:
    """Draw what two positions make of each other in this model, by how far apart they are."""
    n = min(positions_of(view, side), max(2, view.longest_trained(side)))
    heading("Two positions, by how far apart")
    picture(view, "offsets", viz.position_offsets, view.original(), n=n, stack=side)
    if caption := view.config.position_kind.offset_caption(view.config):
        st.caption(caption)
    else:
        band = table(view, analysis.position_offsets, view.original(), n=n, stack=side)
        st.caption(
            f"Dot product of two positions by how far apart they are, among the first {n} positions; the band runs from the "
            f"lowest to the highest pair and is at most {(band['high'] - band['low']).max():.3g} wide."
        )


def positions_of(view: View, side: str | None) -> int:
    """How many positions there are to draw: all that the model can have, or where they hang on the end, those of the input."""
    config = view.config
    return config.max_len if config.position_kind.keeps_keys else len(view.original().tokens_of(side))


def _curves(view: View, shown: Sequence[int], side: str | None) -> None:
    kind, longest = view.config.position_kind, view.longest_trained(side)
    heading("Some of its dimensions")
    waves = ask_waves(view.shape.d_model)
    trained = longest if kind.keeps_keys and longest <= shown[-1] else None
    of = {"dimensions": waves, "positions": shown, "stack": side}
    picture(view, "curves", viz.position_curves, view.original(), trained=trained, **of)
    shaded = f" Shaded: from position {trained} on, beyond the longest input of its task." if trained else ""
    st.caption(f"{kind.vector_caption}{shaded} Click a dimension in the legend to pick it out, again to take it back.")


def ask_waves(d_model: int) -> list[int]:
    """The dimensions on show: those of the link, else those chosen, else the fastest sine and cosine and a few slower ones."""
    kept = st.session_state.get("waves")
    if (wanted := asked("waves")) is not None:
        words = [int(word) for word in wanted.split("-") if word.isascii() and word.isdecimal() and len(word) < 6]
        kept = list(dict.fromkeys(word for word in words if word < d_model))[:MOST_WAVES]
        if len(kept) != len(wanted.split("-")):
            st.warning("The link asks for dimensions that this model does not have.", icon=":material/link_off:")
    if not kept or any(dimension >= d_model for dimension in kept):
        kept = sorted(
            {0, min(1, d_model - 1), *(share * d_model // 8 * 2 for share in (1, 2, 3))} & set(range(d_model))
        )
    st.session_state["waves"] = kept
    chosen = st.multiselect(
        "Dimensions",
        list(range(d_model)),
        key="waves",
        persist_state="session",
        max_selections=MOST_WAVES,
        label_visibility="collapsed",
    )
    waves = chosen or [0]
    chose("waves", "-".join(map(str, waves)))
    return waves


TITLES = {"added": "vectors that are added", "turned": "angles", "biased": "biases by distance"}

_OFFSETS = {
    "added": "The dot product of the vectors of two positions of this input, by how far apart they are; the band runs from the "
    "lowest to the highest pair.",
    "turned": "What turning leaves of q · k, for a query that meets its own key, by how far apart the two stand: 1 is all of "
    "it. Both are of length 1, with the same share in every pair of dimensions.",
    "biased": "What is added to a score before the softmax, by how far the key is from the query; negative is before it.",
}


def found_title(view: View) -> str:
    """How this model does it, in a few words; "" where nothing was found."""
    try:
        return TITLES[found_positions(view.original())[0]]
    except UnavailableError:
        return ""


def found_panel(view: View, side: str | None) -> None:
    """What is done at each position of this input."""
    how, found = found_positions(view.original(), side)
    if how == "biased":
        found_offsets_panel(view, side)
        return
    shown, run = ask_window(range(len(found)), "positions_from", most=MOST_ROWS_DRAWN), view.original()
    if how == "added":
        left, right = st.columns([3, 2], gap="large")
        with left:
            heading("Some of its dimensions")
            waves = ask_waves(found.shape[1])
            picture(view, "curves", viz.position_curves, run, dimensions=waves, positions=shown, stack=side)
            st.caption("Click a dimension in the legend to pick it out, again to take it back.")
    else:
        right = st.container()
    with right:
        heading("The whole of it" if how == "added" else "Cosine of the angle")
        picture(view, "matrix", viz.position_values, run, positions=shown, stack=side, height=330)
        row = (
            "A row is what is added to the token that stands there."
            if how == "added"
            else "A row is by how much queries and keys are turned there: 1 is not at all, −1 half a turn."
        )
        what, n, width = ("dimensions" if how == "added" else "pairs of dimensions"), *found.shape
        st.caption(f"{window_words(shown, n)} × {width} {what}{every_nth(every(len(shown), width))}. {row}")


def found_offsets_panel(view: View, side: str | None) -> None:
    """What two positions make of each other, by how far apart they are."""
    how, _ = found_positions(view.original(), side)
    heading("Two positions, by how far apart")
    picture(view, "offsets", viz.position_offsets, view.original(), stack=side)
    st.caption(_OFFSETS[how])


EVERY_KIND_MOST_ROWS_DRAWN = 64
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
        f"the first {min(n, EVERY_KIND_MOST_ROWS_DRAWN)} positions, from the lowest (orange) to the highest value (blue)"
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
            rows = range(min(n, EVERY_KIND_MOST_ROWS_DRAWN))
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


def order_trial(view: View) -> None:
    """The largest difference of the outputs, and what follows from it; what is known without a trial where none can be made."""
    found = shared.get(("order", *view.key(ORIGINAL)), lambda: order_test(view.original()))
    if found is None:
        st.caption(
            "An encoder without positions sees a bag of tokens. A decoder still has its causal mask, which tells it how many "
            "tokens came before."
        )
        return
    st.metric("Largest difference", f"{found.difference:.1e}", help="Of any logit, between the two runs.", border=True)
    is_causal = view.shape.is_causal
    st.caption(trial_in_words(found, what="patches" if view.shape.image else "tokens", is_causal=is_causal))


def trial_in_words(found: OrderTest, *, what: str, is_causal: bool) -> str:
    """What was tried, and what came of it."""
    tried = "Tried just now, with positions off: the input, and " + (
        "the same patches in reverse order." if what == "patches" else "the input backwards."
    )
    if found.is_blind:
        outputs = "The answer is the same" if what == "patches" else "Each token gets the same output in both"
        return f"{tried} {outputs}, but for rounding: this model then sees a bag of {what}."
    differ = f"{tried} The outputs differ (its largest logit is {found.scale:.1e})"
    return f"{differ}: the causal mask still tells how many tokens came before." if is_causal else f"{differ}."


def places_panel(view: View) -> None:
    """Draw the maps, and say whether places that are side by side are alike."""
    heading("How alike the places are")
    picture(view, "places", viz.patch_places, view.original())
    cosine = place_cosines(view.original())
    found = places_side_by_side(cosine)
    st.caption(
        f"Each little map stands where its patch is, and shows the cosine of that patch’s position vector with the vectors of "
        f"all {len(cosine)} places (the patch itself framed: 1). For **{percent(found.share, 0)}** of them the most alike "
        f"other place is right beside it (chance: {percent(found.chance, 0)}). {_verdict(view, found, math.isqrt(len(cosine)))}"
    )


def _verdict(view: View, found: Nearness, side: int) -> str:
    """What follows from the share, held against chance."""
    config = view.config
    if not config.position_kind.learned(config):
        return "These vectors are fixed, counted row by row; nothing of them was learned."
    if found.is_above_chance:
        return (
            f"Nobody told the model that the {side**2} places form a square of {side} × {side}: it "
            "has found out what is beside what. (Dosovitskiy et al. 2021, fig. 7)"
        )
    return "That is no more than chance would do: no map of the image is to be seen here."
