"""Positions: how does the model know where a token is? Switch them off, inspect its own kind, and compare all kinds."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.compute import cached_runs
from pages.compute.byte_cache import shared
from pages.compute.call import picture_call
from pages.compute.models import card_of_model
from pages.compute.picture import Mark, footer, heading, panel, picture, shown, table, toolbar
from pages.controls import embed
from pages.controls.text import escape_markdown, headline, what_to_notice
from pages.controls.widgets import ask_side, ask_window, choose, warn_unknown
from pages.state.link import set_parameter, take_parameter
from pages.state.session import open_sidebar
from pages.state.view import OFF, ORIGINAL, View, prediction_panel, toggle_edit
from xformer import analysis, viz
from xformer.analysis.attention_patterns import looks_back_only
from xformer.analysis.embeddings import places_side_by_side
from xformer.analysis.images import place_cosines
from xformer.analysis.positions import OrderTest, found_positions, order_test, wavelengths
from xformer.edit_links import join_edits
from xformer.errors import UnavailableError
from xformer.formatting import percent
from xformer.layer_path import head_title
from xformer.positions import POSITION_KINDS, PositionKind
from xformer.reading import Reading
from xformer.viz.attention_patterns import MAX_CELLS, pool_cells
from xformer.viz.embeddings import column_stride
from xformer.viz.positions import attention_guess

MOST_MOVED = "most"
"""The value in the link for the head whose attention moves most."""
GUESS, GUESS_MAP = "positions_guess", "positions_guess_map"
MIN_MOVED = 0.01
"""A smaller share of moved attention is not reported."""
HEIGHT, HEIGHT_OF_TWO = 224, 264
"""Pixels of the patterns: three pictures fit side by side beside the sidebar at 1280 px, and two."""


def positions_off_panel(view: View, headline_at: DeltaGenerator, controls: DeltaGenerator) -> None:
    """Draw one head with positions and, once they are switched off, without them.

    Until then the second picture is an empty grid, in which a click is a guess.
    """
    on, off = with_and_without(view)
    moved = table(view, analysis.attention_moved, off, before=on)
    with controls:
        layer, head = _ask_head(view, moved)
    height = HEIGHT if OFF in view.on else HEIGHT_OF_TWO
    at, about = {"layer": layer, "head": head, "height": height}, (view.model, view.source, layer, head)
    calls = [picture_call(viz.attention, on, **at, title="With positions", legend=False)]
    with st.container(horizontal=True, gap="medium", key="position_pictures"):
        shown(view, calls[0], "pattern_0")
        if OFF in view.on:
            finding = _verdict(about, off) or moved_sentence(on, off, moved, layer, head)
            calls.append(picture_call(viz.attention, off, **at, title="Without positions"))
            shown(view, calls[1], "pattern_1")
            title = "Moved (click)"
            calls.append(picture_call(viz.attention_moved, off, before=on, chosen=(layer, head), title=title))
            with st.container(width=190, key="moved_heads"):
                shown(view, calls[2], "moved", on_click=_watch, selection="head")
        else:
            query, name = question(on, off, layer, head)
            asked = f"What will **{escape_markdown(name)}** attend to without positions? Click a cell in its row."
            finding = asked if name else ""
            empty = picture_call(attention_guess, on, **at, query=query, title="Without positions: your guess")
            shown(view, empty, GUESS_MAP, on_click=partial(_take_guess, about))
    with headline_at:
        headline(finding)
    longest = max(on[f"{on.attention[layer].path}.pattern"].shape[-2:])
    if longest > MAX_CELLS:
        block = -(-longest // MAX_CELLS)
        st.caption(f"{longest} positions in blocks of {block}: a cell shows the largest weight of its block.")
    footer(view, "pattern", calls)


def with_and_without(view: View) -> tuple[Reading, Reading]:
    """Return the run with positions and the run without, both with all other changes."""
    rest = join_edits(tuple(change for change in view.edit_links if change.text != OFF))
    off = ",".join(filter(None, (rest, OFF)))
    with_positions, without = (cached_runs.run(view.model, view.source, view.mask, edits) for edits in (rest, off))
    return with_positions, without


def question(on: Reading, off: Reading, layer: int, head: int) -> tuple[int, str]:
    """Return the query whose attention moves most in a head, and its name; the name is "" where none moves."""
    before, after = (run[f"{on.attention[layer].path}.pattern"][0, head].double() for run in (on, off))
    moved = (after - before).abs().sum(dim=-1) / 2  # [query]
    query = int(moved.argmax())
    names = analysis.attention(on, layer=layer, head=head)["query"].unique()
    return query, names[query] if moved[query] > MIN_MOVED else ""


def moved_sentence(on: Reading, off: Reading, moved: pd.DataFrame, layer: int, head: int) -> str:
    """Describe how much of a head's attention moved, and how many answers are right; "" where nothing moved."""
    path, n = on.attention[layer].path, len(on.target_positions)
    [share] = moved.loc[(moved["layer"] == path) & (moved["head"] == head), "moved"]
    if share < MIN_MOVED:
        return ""
    has_changed = n > 1 and on.has_right_answer and on.n_correct != off.n_correct
    right = f", and **{off.n_correct}** of {n} answers are right instead of {on.n_correct}" if has_changed else ""
    title = head_title(path, head, is_encoder_decoder=on.is_encoder_decoder)
    return f"**{percent(share, 0)}** of {title}’s attention moves{right}."


def _take_guess(about: tuple[Any, ...], cell: Mark) -> None:
    """Store the clicked cell as the guess, and switch positions off. A callback."""
    st.session_state[GUESS] = (about, str(cell["query"]), str(cell["key"]))
    toggle_edit(OFF)


def _watch(head: Mark) -> None:
    """Show the head that was clicked in the grid of all heads. A callback."""
    st.session_state["watch"] = head["cell"]


def _verdict(about: tuple[Any, ...], off: Reading) -> str:
    """Compare the visitor's guess with the result; "" without a guess on `about`, which ends with the layer and the head."""
    guessed_about, query, guess = st.session_state.get(GUESS, (None, "", ""))
    if guessed_about != about:
        return ""
    cells = pool_cells(analysis.attention(off, layer=about[-2], head=about[-1]), MAX_CELLS)
    row = cells.loc[(cells["query"] == query) & cells["weight"].notna()]
    if row.empty:
        return ""
    best = row.nlargest(1, "weight").iloc[0]
    key, weight = escape_markdown(str(best["key"])), percent(float(best["weight"]), 0)
    right = "You were right" if best["key"] == guess else f"You guessed {escape_markdown(guess)}"
    return f"{right}: {escape_markdown(query)} now attends most to **{key}**, with {weight}."


def _ask_head(view: View, moved: pd.DataFrame) -> tuple[int, int]:
    """Ask for a head, at first the one whose attention moves most; return layer and head."""
    paths, names, cells = list(moved["layer"].unique()), {}, {}
    for path, head in zip(moved["layer"], moved["head"], strict=True):
        name = f"{paths.index(path) + 1}.{head + 1}"
        names[name] = head_title(path, head, is_encoder_decoder=view.is_encoder_decoder)
        cells[name] = (paths.index(path), int(head))
    most = list(names)[int(moved["moved"].to_numpy().argmax())]
    options = {MOST_MOVED: f"{names[most]} (most)", **names}
    chosen = choose("watch", options, "Attention of", widget=st.selectbox, width=205, hide_label=True)
    return cells[most if chosen == MOST_MOVED else chosen]


MAX_ROWS_DRAWN = 128
"""Largest number of positions drawn at a time."""
MAX_WAVES = 8
HOW = {"stream": "added", "queries and keys": "turned", "scores": "biased"}
"""How positions that act on this enter a model, as a key of the texts below."""
TITLES = {"added": "Added vectors", "turned": "Angles", "biased": "Biases by distance"}
_OFFSETS = {
    "added": "Dot product of the vectors of two positions, by distance; the band spans all pairs at that distance.",
    "turned": "The factor by which the rotation scales q · k of two equal vectors, by their distance; 1 means unchanged.",
    "biased": "The bias added to a score before the softmax, by key − query; a negative distance is an earlier key.",
}
_ROWS = {
    "added": "A row is the vector added to the token at that position.",
    "turned": "A row has the cosines of the angles by which queries and keys are rotated: 1 is no rotation, −1 half a turn.",
}


def found_kind(view: View) -> str:
    """Return how an external model encodes positions, as a key of `TITLES`; "" where that was not found."""
    try:
        return found_positions(view.original())[0]
    except UnavailableError:
        return ""


def own_panel(view: View, side: str | None) -> None:
    """Draw the vectors that this model adds at each position, or the angles by which it rotates."""
    if view.task is None:
        how, found = found_positions(view.original(), side)
        n, width = found.shape
    else:
        how = HOW[view.config.position_kind.acts_on]
        n, width = positions_of(view, side), view.config.d_model if how == "added" else (view.config.d_head + 1) // 2
    rows, right = ask_window(range(n), "positions_from", most=MAX_ROWS_DRAWN), st.container()
    if how == "added":
        left, right = st.columns([3, 2], gap="large")
        with left:
            heading("Selected dimensions")
            options = {"dimensions": ask_waves(width), "positions": rows, "stack": side}
            depends = view.task is None or not view.config.position_kind.can_cache_keys
            longest = n if depends else view.longest_trained(side)
            trained = longest if longest <= rows[-1] else None
            picture(view, "curves", viz.position_curves, view.original(), trained=trained, **options)
            if trained is not None:
                st.caption(f"Shaded: positions from {longest} on, beyond the longest input of its task.")
    with right:
        if how == "added":
            heading("All dimensions")
        picture(view, "matrix", viz.position_values, view.original(), positions=rows, stack=side, height=330)
        what = "dimensions" if how == "added" else "pairs of dimensions"
        drawn = -(-width // column_stride(len(rows), width))
        st.caption(f"{len(rows)} of {n} positions, {drawn} of {width} {what}. {_ROWS[how]}")


def offsets_panel(view: View, side: str | None) -> None:
    """Draw the effect of the distance between two positions."""
    n = None if view.task is None else min(positions_of(view, side), max(2, view.longest_trained(side)))
    picture(view, "offsets", viz.position_offsets, view.original(), n=n, stack=side)
    if view.task is None:
        st.caption(_OFFSETS[found_positions(view.original(), side)[0]])
        return
    kind = view.config.position_kind
    st.caption(kind.offset_caption(view.config) or _OFFSETS[HOW[kind.acts_on]])


def positions_of(view: View, side: str | None) -> int:
    """Return how many positions can be drawn: all of the model, or those of the input where they depend on its length."""
    config = view.config
    return config.max_len if config.position_kind.can_cache_keys else len(view.original().tokens_of(side))


def ask_waves(d_model: int) -> list[int]:
    """Ask for dimensions, at first the fastest sine and cosine and a few slower ones."""
    kept = st.session_state.get("waves")
    if (wanted := take_parameter("waves")) is not None:
        known = {str(dimension): dimension for dimension in range(d_model)}
        kept = list(dict.fromkeys(known[word] for word in wanted.split("-") if word in known))[:MAX_WAVES]
        if len(kept) != len(wanted.split("-")):
            warn_unknown("dimension")
    if not kept or max(kept) >= d_model:
        kept = sorted({0, 1, *(share * d_model // 8 * 2 for share in (1, 2, 3))} & set(range(d_model)))
    st.session_state["waves"] = kept
    ask = partial(st.multiselect, key="waves", persist_state="session", label_visibility="collapsed")
    waves = ask("Dimensions", list(range(d_model)), max_selections=MAX_WAVES) or [0]
    set_parameter("waves", "-".join(map(str, waves)))
    return waves


MAX_ROWS_ON_A_CARD = 64
CARDS_IN_A_ROW = 3


def position_kinds_panel(view: View, side: str | None) -> None:
    """Draw a card for each kind of positions; a learned kind only if the model has learned it."""
    config, every = view.config, POSITION_KINDS.values()
    own = [kind for kind in every if kind.acts_on == "nothing" or kind is config.position_kind]
    kinds = [kind for kind in every if kind in own or kind.can_be_drawn(config)]
    places = [place for _ in kinds[::CARDS_IN_A_ROW] for place in st.columns(CARDS_IN_A_ROW, gap="small")]
    for place, kind in zip(places, kinds, strict=False):
        with place, st.container(border=True, height="stretch", gap="small"):
            _card(view, kind, side)
    if unknown := [kind.title for kind in every if kind not in kinds]:
        st.caption(f"Not drawn, because only training gives them values: {', '.join(unknown)}.")


def _card(view: View, kind: PositionKind, side: str | None) -> None:
    config, run = view.config, view.original()
    is_own = kind is config.position_kind
    heading(kind.title + (" :green-badge[:material/check: this model]" if is_own else ""))
    st.caption(kind.summary, help=f"{kind.note} ({kind.source})" if kind.source else kind.note)
    n = max(2, view.longest_trained(side)) if kind.can_cache_keys else len(run.tokens_of(side))
    draw = partial(picture, view, kind.name, key=f"card_{kind.name}", kind=kind.name, stack=side)
    if kind.acts_on == "nothing":
        order_trial(view)
    elif kind.is_drawn_by_offset:
        draw(viz.position_offsets, run, n=n, height=260)  # its legend is below the chart
    else:
        draw(viz.position_values, run, positions=range(min(n, MAX_ROWS_ON_A_CARD)), height=150, legend=False)


def order_trial(view: View) -> None:
    """Run the input in reverse order with positions off; show the largest difference of the outputs and its meaning."""
    found = shared.get(("order", *view.key(ORIGINAL)), lambda: order_test(view.original()))
    if found is None:
        st.caption("Without positions an encoder sees a bag of tokens; in a decoder the causal mask encodes the order.")
        return
    st.metric("Largest difference", f"{found.difference:.1e}", help="Of any logit, between the two runs.", border=True)
    st.caption(trial_sentence(found, "patches" if view.shape.image else "tokens", is_causal=view.shape.is_causal))


def trial_sentence(found: OrderTest, what: str, *, is_causal: bool) -> str:
    """Describe the result of `order_test`."""
    tried = f"Run with positions off: the input, and its {what} in reverse order."
    if found.is_blind:
        return f"{tried} The outputs are the same up to rounding: without positions this model sees a bag of {what}."
    why = ": the causal mask still encodes the order" if is_causal else ""
    return f"{tried} The outputs differ (the largest logit is {found.scale:.1e}){why}."


def places_panel(view: View) -> None:
    """Draw the similarity of each patch's position to all others, and test whether neighbours are similar."""
    heading("Similarity of positions")
    picture(view, "places", viz.patch_cosines, view.original())
    cosine = place_cosines(view.original())
    found, side = places_side_by_side(cosine), math.isqrt(len(cosine))
    follows = f"the vectors form a map of the {side} × {side} patches (Dosovitskiy et al. 2021, fig. 7)"
    st.caption(
        f"Each map shows, at its patch, the cosines of its position vector with those of all patches. For "
        f"**{percent(found.share, 0)}** of them the most similar other patch is a neighbour (chance: "
        f"{percent(found.chance, 0)}): {follows if found.is_above_chance else 'that is no more than chance'}."
    )


def position_note(view: View, side: str | None, show: str) -> str:
    """Return what to notice in the panel `show`; "" for nothing, and until positions are switched off."""
    if show == "attention":
        return _about_order(view) if OFF in view.on else ""
    if view.task is None:
        return ""
    if show == "own":
        return " ".join(filter(None, (_about_waves(view, side), _about_numbers(view, side))))
    return view.config.position_kind.offset_note(view.config) if show == "offsets" else ""


def _about_order(view: View) -> str:
    """Describe what is left of the order; the predictions at the top show the loss of both runs."""
    off = with_and_without(view)[1]
    if looks_back_only(off, "decoder" if view.is_encoder_decoder else None):
        return "The remaining information about order comes from the **causal mask**."
    is_known = not view.is_encoder_decoder and len(off.tokens) > 1
    return "All tokens are still there; only their **order** is lost." if is_known else ""


def _about_numbers(view: View, side: str | None) -> str:
    """Describe which positions were trained."""
    config, train, longest = view.config, card_of_model(view.model).get("train"), view.longest_trained(side)
    if not isinstance(train, dict) or config.position_kind.acts_on == "nothing" or longest >= config.max_len:
        return ""
    if train.get("random_positions"):
        return (
            f"Training inputs had at most {longest} tokens, but each was given increasing **random positions with gaps**, so "
            f"all positions up to {config.max_len - 1} were trained."
        )
    if config.position_kind.learned(config) and not train.get("weight_decay"):
        return f"No training input reached position {longest}; from there on the vectors keep their **initial values**."
    return ""


def _about_waves(view: View, side: str | None) -> str:
    if not view.config.position_kind.wave_width(view.config):
        return ""
    waves, longest = wavelengths(view.config), view.longest_trained(side)
    slow = int((waves > 4 * longest).sum())
    note = f"The fastest wave has a period of {waves[0]:.2f} positions, the slowest one of {waves[-1]:,.0f}."
    more = f" {slow} of {len(waves)} waves turn by less than a quarter in its longest input ({longest} positions)."
    return note + more if slow else note


BY_SIDE = {"own": own_panel, "offsets": offsets_panel, "kinds": position_kinds_panel}


def _positions(view: View) -> None:
    prediction_panel(view)
    panels, show, side = _panels(view), "", None
    with st.container(gap=None):
        headline_at = st.container()
        with st.container(key="positions_tools"):
            controls = toolbar()
        picture = embed.picture()
    with controls:
        if panels:
            show = choose("show", panels, "Show", key="positions_show", hide_label=True)
            side = ask_side() if show in BY_SIDE and view.is_encoder_decoder else None
        if view.shape.can_drop_positions:
            to = "on" if OFF in view.on else "off"
            icon, kind = f":material/location_{to}:", "primary" if to == "off" else "secondary"
            switch = partial(toggle_edit, OFF)
            st.button(f"Switch positions {to}", icon=icon, key="positions_off", type=kind, on_click=switch)
    if not view.shape.can_drop_positions:
        own = "This model has no positions that could be switched off."
        external = "No positions that could be switched off were found in this model."
        st.info(own if view.task is not None else external, icon=":material/info:")
    with picture:
        if show in BY_SIDE:
            panel(BY_SIDE[show], view, side)
        elif show == "places":
            panel(places_panel, view)
        elif show:
            panel(positions_off_panel, view, headline_at, controls)
    what_to_notice([position_note(view, side, show)])
    view.share()


def _panels(view: View) -> dict[str, str]:
    """Return the panels of this model."""
    panels = {"attention": "On/off"} if view.shape.can_drop_positions else {}
    if view.task is None:
        how = found_kind(view)
        own = {"own": TITLES[how], "offsets": "Distance"} if how else {}
        return panels | ({"offsets": TITLES[how]} if how == "biased" else own)
    kind = view.config.position_kind
    if kind.acts_on != "nothing":
        panels |= {"offsets": kind.title} if kind.is_drawn_by_offset else {"own": kind.title, "offsets": "Distance"}
    if view.shape.image and kind.acts_on == "stream":
        panels["places"] = "Patches"
    return panels | {"kinds": "All kinds"}


if __name__ == "__main__":
    open_sidebar("Positions", "How does the model know where a token is?").on_each_change(_positions)
