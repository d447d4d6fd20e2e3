"""Attention: which token attends to which, in every layer and head, under the model's own mask or another."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import streamlit as st

from pages.attention.head_scores import scores_panel
from pages.attention.heads import (
    KEY,
    arcs_of,
    attention_call,
    attention_notes,
    change_panel,
    finding,
    follow_cutting_click,
    head_tools,
    heads_worth_seeing,
    notable_buttons,
    over_image_panel,
    rollout_panel,
    standalone,
    zoom,
)
from pages.attention.long_text import long_text_panel
from pages.attention.one_cell import score_attribution_panel
from pages.components.attention_view import SHOWN, Look, Selection, attention_choice, attention_view, choose_attention
from pages.compute.call import picture_call, tables
from pages.compute.cell_steps import steps_panel
from pages.compute.picture import footer, live_menu, panel, toolbar
from pages.controls import embed
from pages.controls.text import headline
from pages.controls.widgets import choose, warn_unknown
from pages.state.link import current_value, take_parameter
from pages.state.session import open_sidebar
from pages.state.view import View, prediction_panel
from xformer import viz
from xformer.reading import Reading
from xformer.viz.packing import SCALES, AnyLayer, pack, pattern_layers

PANELS = {
    "scores": "scores of all heads",
    "steps": "step by step",
    "score_attribution": "why here?",
    "change": "change the run",
    "rollout": "rollout",
    "long_text": "a long text",
}


def _attention(view: View) -> None:
    original, changed = view.original(), view.changed()
    prediction_panel(view)
    if view.shape.image:
        over_image_panel(view)

    layers = pattern_layers(original)
    other = None if changed is None else pattern_layers(changed)
    paths = [layer.name for layer in layers]
    first = heads_worth_seeing(view, original)
    found = first if changed is None else heads_worth_seeing(view, changed)
    at = (paths.index(first["layer"].iloc[0]), int(first["head"].iloc[0])) if len(first) else (len(paths) - 1, 0)
    _follow_the_link(layers, Selection(*at))
    with st.container(gap="xxsmall"):
        headline_at = st.container()  # filled below
        with st.container(key="head_tools"):
            tools = toolbar()
        with embed.picture():
            chosen = attention_choice(KEY, layers)
            packed = pack(layers, other, selected=(chosen.layer, chosen.head))
            chosen = attention_view(packed, key=KEY)
    follow_cutting_click(layers[chosen.layer], chosen)
    run, layer = changed or original, (other or layers)[chosen.layer]
    with headline_at:
        headline(finding(view, run, found, layer, chosen.head))
    with tools:
        head_tools(view, layer, chosen)
        if len(found):
            notable_buttons(view, found, paths)
    _footer(view, chosen)
    if packed.pool > 1:
        zoom(view, chosen, packed.pool)
    if view.input.kind == "picture":
        panel(over_image_panel, view, chosen)

    in_link = _panel_below(view, run, layer, chosen)
    view.share(head=str(chosen), **_look_texts(chosen.looks), **{name: text for name, text in in_link.items() if text})
    attention_notes(view, other or layers, run, all_seen=chosen.looks.scale != "without_first_token")


def _panel_below(view: View, run: Reading, layer: AnyLayer, chosen: Selection) -> dict[str, str]:
    """Draw the chosen panel, which alone is computed; return what the link keeps of it."""
    wanted = choose("panel", embed.panels(PANELS), "Panel", hide_label=True)
    in_link: dict[str, str] = {}
    draw: dict[str, Callable[[], None]] = {
        "scores": lambda: scores_panel(view, run, chosen),
        "steps": lambda: steps_panel(view, run, layer, chosen, "Click a cell of the matrix above for its numbers."),
        "change": lambda: change_panel(view, layer, chosen),
        "score_attribution": lambda: in_link.update(score_attribution_panel(view, run, chosen)),
        "rollout": lambda: rollout_panel(view, run),
        "long_text": lambda: long_text_panel(view),
    }
    if wanted in draw:
        with embed.picture("panel"):
            panel(draw[wanted])
    return in_link


def _footer(view: View, chosen: Selection) -> None:
    """Draw the menu of the picture: code and figures of all heads, the matrix and the arcs; numbers of the enlarged head."""
    reading, options = attention_call(view, chosen)
    head, shown = picture_call(viz.attention, *reading, **options), chosen.looks.shown
    look = {name: value for name, value in options.items() if name not in ("layer", "head")}
    calls = [picture_call(viz.attention_grid, *reading, **look)]
    if shown != "arcs":
        calls.append(head)
    if shown != "matrix":
        heads = list(arcs_of(chosen))
        calls.append(picture_call(viz.attention_arcs, *reading, layer=chosen.layer, **look, heads=heads))
    at = {"layer": chosen.layer, "head": chosen.head, "query": chosen.query, "key": chosen.key}
    page = standalone(view, chosen)
    footer(view, "pattern", calls, lambda: tables([head]), page=page, more=lambda: live_menu(view, "pattern", at))


def _look_texts(look: Look) -> dict[str, str]:
    """Return how the enlarged head is drawn, for the link; defaults are left out."""
    texts = {"scale": look.scale, "view": look.shown, "arcs": ".".join(str(head + 1) for head in look.arcs)}
    return {name: text for name, text in texts.items() if text not in ("", SCALES[0], SHOWN[0])}


def _look_of(wanted: dict[str, str | None]) -> Look:
    """Parse the look in a link, with warnings about unknown values."""

    def known(name: str, options: Sequence[str]) -> str:
        value = current_value(name, wanted[name] or "", options)
        if value not in ("", *options):
            warn_unknown(name)
        return value if value in options else options[0]

    arcs = wanted["arcs"] or ""
    if arcs and not re.fullmatch(r"[1-9]\d{0,2}(\.[1-9]\d{0,2})*", arcs, re.ASCII):
        warn_unknown("arcs")
        arcs = ""
    heads = sorted({int(head) - 1 for head in arcs.split(".") if head})
    return Look(known("scale", SCALES), known("view", SHOWN), tuple(heads))


def _follow_the_link(layers: list[AnyLayer], best: Selection) -> None:
    """Select the head of the link, else after a change of the model the one most worth seeing, else keep the selection."""
    heads = [item.shape[0] for item in layers]
    in_link = {name: take_parameter(name) for name in ("head", "scale", "view", "arcs")}
    is_link = any(value is not None for value in in_link.values())
    if not is_link and st.session_state.get("heads_shown") == heads:
        return
    st.session_state["heads_shown"] = heads
    wanted = Selection.parse(in_link["head"] or "")
    if wanted is not None and wanted.is_in(heads):
        best = wanted
    elif in_link["head"] is not None:
        warn_unknown("head")
    choose_attention(KEY, replace(best, look=_look_of(in_link)) if is_link else best)


open_sidebar("Attention", "Which token attends to which, in every layer and head?").on_each_change(_attention)
