"""Kinds of positions: what this model adds, turns or subtracts, all kinds side by side, and the places of patches."""

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
from pages.shared.widgets import ask_window, every_nth, window_words
from xformer import analysis, viz
from xformer.analysis.embeddings import Nearness, places_side_by_side
from xformer.analysis.images import place_cosines
from xformer.analysis.positions import OrderTest, found_positions, order_test
from xformer.errors import UnavailableError
from xformer.formatting import percent
from xformer.positions import POSITION_KINDS, PositionKind
from xformer.viz.embeddings import every

MOST_ROWS_DRAWN = 128
"""Positions drawn at a time."""
MOST_WAVES = 8
TITLES = {"added": "Added vectors", "turned": "Angles", "biased": "Biases by distance"}
_OFFSETS = {
    "added": "Dot product of the vectors of two positions, by distance; the band runs from the lowest to the highest pair.",
    "turned": "The factor that turning leaves of q · k for two equal vectors, by their distance: 1 is all of it.",
    "biased": "What is added to a score before the softmax, by the distance of the key from the query; negative is before it.",
}
_ROWS = {
    "added": "A row is the vector added to the token at that position.",
    "turned": "A row is the cosine of the angles by which queries and keys are turned: 1 is not at all, −1 half a turn.",
}


def found_kind(view: View) -> str:
    """How an external model encodes positions, a key of `TITLES`; "" where that was not found."""
    try:
        return found_positions(view.original())[0]
    except UnavailableError:
        return ""


def own_panel(view: View, side: str | None) -> None:
    """What this model adds or turns at each position."""
    if view.task is None:
        how, found = found_positions(view.original(), side)
        if how == "biased":
            offsets_panel(view, side)
            return
        n, width = found.shape
    else:
        how = "added" if view.config.position_kind.acts_on == "stream" else "turned"
        n, width = positions_of(view, side), view.config.d_model if how == "added" else (view.config.d_head + 1) // 2
    shown, right = ask_window(range(n), "positions_from", most=MOST_ROWS_DRAWN), st.container()
    if how == "added":
        left, right = st.columns([3, 2], gap="large")
        with left:
            _curves(view, width, shown, side)
    with right:
        if how == "added":
            heading("All dimensions")
        picture(view, "matrix", viz.position_values, view.original(), positions=shown, stack=side, height=330)
        what = "dimensions" if how == "added" else "pairs of dimensions"
        st.caption(f"{window_words(shown, n)} × {width} {what}{every_nth(every(len(shown), width))}. {_ROWS[how]}")


def offsets_panel(view: View, side: str | None) -> None:
    """The effect of the distance between two positions."""
    if view.task is None:
        picture(view, "offsets", viz.position_offsets, view.original(), stack=side)
        st.caption(_OFFSETS[found_positions(view.original(), side)[0]])
        return
    n = min(positions_of(view, side), max(2, view.longest_trained(side)))
    picture(view, "offsets", viz.position_offsets, view.original(), n=n, stack=side)
    caption = view.config.position_kind.offset_caption(view.config)
    if not caption:
        band = table(view, analysis.position_offsets, view.original(), n=n, stack=side)
        caption = (
            f"Dot product of the vectors of two positions, by their distance, among the first {n} positions; the band runs "
            f"from the lowest to the highest pair and is at most {(band['high'] - band['low']).max():.3g} wide."
        )
    st.caption(caption)


def positions_of(view: View, side: str | None) -> int:
    """How many positions can be drawn: all of the model, or those of the input where they depend on its end."""
    config = view.config
    return config.max_len if config.position_kind.keeps_keys else len(view.original().tokens_of(side))


def _curves(view: View, width: int, shown: Sequence[int], side: str | None) -> None:
    heading("Some of its dimensions")
    waves, trained, words = ask_waves(width), None, ""
    if view.task is not None:
        kind, longest = view.config.position_kind, view.longest_trained(side)
        trained = longest if kind.keeps_keys and longest <= shown[-1] else None
        words = f"{kind.vector_caption} "
    of = {"dimensions": waves, "positions": shown, "stack": side}
    picture(view, "curves", viz.position_curves, view.original(), trained=trained, **of)
    words += f"Shaded: from position {trained} on, beyond the longest input of its task. " if trained else ""
    st.caption(f"{words}Click a dimension in the legend to pick it out, again to take it back.")


def ask_waves(d_model: int) -> list[int]:
    """Ask for dimensions; at first the fastest sine and cosine and a few slower ones."""
    kept = st.session_state.get("waves")
    if (wanted := asked("waves")) is not None:
        words = [int(word) for word in wanted.split("-") if word.isascii() and word.isdecimal() and len(word) < 6]
        kept = list(dict.fromkeys(word for word in words if word < d_model))[:MOST_WAVES]
        if len(kept) != len(wanted.split("-")):
            st.warning("The link asks for dimensions that this model does not have.", icon=":material/link_off:")
    if not kept or any(dimension >= d_model for dimension in kept):
        kept = sorted({0, 1, *(share * d_model // 8 * 2 for share in (1, 2, 3))} & set(range(d_model)))
    st.session_state["waves"] = kept
    look: dict[str, Any] = {"max_selections": MOST_WAVES, "label_visibility": "collapsed"}
    waves = st.multiselect("Dimensions", list(range(d_model)), key="waves", persist_state="session", **look) or [0]
    chose("waves", "-".join(map(str, waves)))
    return waves


MOST_ROWS_ON_A_CARD = 64
HEIGHT, HEIGHT_OF_LINES = 150, 260
"""Pixels of a card's picture; lines have their legend below."""
CARDS_IN_A_ROW = 3


def position_kinds_panel(view: View, side: str | None) -> None:
    """A card for each kind of positions; a learned kind is drawn only if the model has learned it."""
    n = max(2, view.longest_trained(side))
    kinds = list(POSITION_KINDS.values())
    for first in range(0, len(kinds), CARDS_IN_A_ROW):
        row = kinds[first : first + CARDS_IN_A_ROW]
        for column, kind in zip(st.columns(CARDS_IN_A_ROW, gap="small"), row, strict=False):
            with column, st.container(border=True, height="stretch", gap="small"):
                _card(view, kind, n, side)


def _card(view: View, kind: PositionKind, n: int, side: str | None) -> None:
    config, run = view.config, view.original()
    own = kind is config.position_kind
    heading(kind.title + (" :green-badge[:material/check: this model]" if own else ""))
    if kind.acts_on == "nothing":
        st.caption(kind.does, help=kind.more)
        order_trial(view)
    elif own or kind.can_be_drawn(config):
        n = n if kind.keeps_keys else len(run.tokens_of(side))
        of: dict[str, Any] = {"key": f"card_{kind.name}", "kind": kind.name, "stack": side}
        if kind.is_drawn_by_offset:
            picture(view, kind.name, viz.position_offsets, run, n=n, height=HEIGHT_OF_LINES, **of)
        else:
            rows = range(min(n, MOST_ROWS_ON_A_CARD))
            picture(view, kind.name, viz.position_values, run, positions=rows, height=HEIGHT, legend=False, **of)
        st.caption(kind.does, help=kind.more)
    elif not kind.keeps_keys:
        st.caption(kind.does, help=kind.more)
        st.caption("It would number its input like this:")
        call = Call(analysis.position_counts, (run,), {"stack": side})
        st.dataframe(call.make(), hide_index=True, height=HEIGHT, key=f"{kind.name}_table")
        footer(view, kind.name, [call])
    else:
        what = "numbers" if kind.acts_on == "scores" else "vectors"
        st.caption(f"{kind.does} This model has learned no such {what}, so there are none to draw.", help=kind.more)


def order_trial(view: View) -> None:
    """Run the input backwards with positions off: the largest difference of the outputs, and what follows from it."""
    found = shared.get(("order", *view.key(ORIGINAL)), lambda: order_test(view.original()))
    if found is None:
        st.caption(
            "An encoder without positions sees a bag of tokens. In a decoder the causal mask still encodes the order."
        )
        return
    st.metric("Largest difference", f"{found.difference:.1e}", help="Of any logit, between the two runs.", border=True)
    is_causal = view.shape.is_causal
    st.caption(trial_in_words(found, what="patches" if view.shape.image else "tokens", is_causal=is_causal))


def trial_in_words(found: OrderTest, *, what: str, is_causal: bool) -> str:
    """The sentence on the result of `order_test`."""
    tried = f"Run with positions off: the input, and its {what} in reverse order."
    if found.is_blind:
        outputs = "The answer is the same" if what == "patches" else "Each token gets the same output in both"
        return f"{tried} {outputs}, up to rounding: without positions this model sees a bag of {what}."
    differ = f"{tried} The outputs differ (its largest logit is {found.scale:.1e})"
    return f"{differ}: the causal mask still encodes the order." if is_causal else f"{differ}."


def places_panel(view: View) -> None:
    """A map for each patch of how alike its position is to all others, and whether neighbours are alike."""
    heading("How alike the places are")
    picture(view, "places", viz.patch_places, view.original())
    cosine = place_cosines(view.original())
    found = places_side_by_side(cosine)
    st.caption(
        f"Each map stands at its patch and shows the cosine of its position vector with those of all {len(cosine)} patches "
        f"(itself framed: 1). For **{percent(found.share, 0)}** of them the most alike other patch is a neighbour (chance: "
        f"{percent(found.chance, 0)}). {_verdict(view, found, math.isqrt(len(cosine)))}"
    )


def _verdict(view: View, found: Nearness, side: int) -> str:
    """What follows from the share, compared with chance."""
    config = view.config
    if not config.position_kind.learned(config):
        return "These vectors are fixed, not learned."
    if found.is_above_chance:
        return f"The model has learned that its patches form a square of {side} × {side} (Dosovitskiy et al. 2021, fig. 7)."
    return "That is no more than chance: the positions form no map of the image."
