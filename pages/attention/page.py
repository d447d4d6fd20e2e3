"""Attention: who looks at whom, in every layer and head? Under the model's own mask, and under another beside it."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import streamlit as st

from pages.attention.attention_steps import stages_panel
from pages.attention.best_task_head import attention_notes, telling_head
from pages.attention.change import change_panel, follow_cutting_click, head_tools
from pages.attention.head_scores import scores_panel
from pages.attention.over_image import over_image_panel
from pages.attention.rollout import rollout_panel
from pages.components.attention_view import (
    SHOWN,
    Look,
    Selection,
    attention_choice,
    attention_view,
    choose_attention,
)
from pages.shared.ask import choose, not_here
from pages.shared.link import asked
from pages.shared.notebook import footer, recording
from pages.shared.prediction import prediction_panel
from pages.shared.session import open_page
from pages.shared.view import View
from xformer.reading import Reading
from xformer.viz.attention import pattern_frame, pattern_layers
from xformer.viz.packing import PatternLayer, pack

KEY = "attention"
PANELS = {name: name for name in ("scores of all heads", "step by step", "change the run", "rollout")}


def page() -> None:
    view = open_page("Attention", "Who looks at whom, in every layer and head?")
    original, changed = view.original(), view.changed()
    prediction_panel(view)
    if view.task.rule.is_image:
        over_image_panel(view)

    layers = _layers(view, original)
    other = None if changed is None else _layers(view, changed)
    paths = [layer.name for layer in layers]
    best = telling_head(view, changed or original, paths)
    _follow_the_link(layers, best.at if changed is None else telling_head(view, original, paths).at)
    # A line of its own at the picture, as what it changes is known only below.
    tools = st.container(horizontal=True, gap="small", vertical_alignment="center", key="head_tools")
    chosen = attention_choice(KEY, layers)
    chosen = attention_view(pack(layers, other, selected=(chosen.layer, chosen.head)), key=KEY)
    follow_cutting_click(layers[chosen.layer], chosen)
    run, layer = changed or original, (other or layers)[chosen.layer]
    with tools:
        head_tools(view, layer, chosen)
        _footer(view, layers[chosen.layer], layer, chosen)

    # The panels that are not shown are not computed.
    panel = choose("panel", PANELS, next(iter(PANELS)), "Panel", label_visibility="collapsed")
    if panel == "scores of all heads":
        scores_panel(view, run, KEY)
    elif panel == "step by step":
        stages_panel(view, run, layer, chosen.head, *_cell(chosen, layer))
    elif panel == "change the run":
        change_panel(view, layer, chosen)
    else:
        rollout_panel(view, run)
    view.share(head=_head_text(chosen), **_look_texts(chosen.looks))
    attention_notes(view, other or layers, run, best)


def _layers(view: View, run: Reading) -> list[PatternLayer]:
    return pattern_layers(run.trace, view.reads(run), view.reads(run, "decoder") if view.is_pair else None)


def _footer(view: View, original: PatternLayer, layer: PatternLayer, chosen: Selection) -> None:
    """The code and the numbers of the enlarged head: with a changed run of both runs, and of their difference."""
    head, scale = chosen.head, ", own_scale=True" if chosen.looks.own_scale else ""
    of = f'"{layer.name}", {head}, {layer.query_labels!r}, {layer.key_labels!r}'
    drawn = "head_chart" if layer is original else "changed_chart"
    lines = [f"from xformer.viz.attention import {drawn}, head_frame"]
    if chosen.looks.shown == "arcs":
        lines.append("# Arcs are drawn in the browser alone; this is the same head as a matrix.")
    if layer is original:
        footer(view, [*lines, f"head_chart(head_frame(trace, {of}){scale})"], partial(_cells, layer, head), "pattern")
        return
    before = f'"{original.name}", {head}, {original.query_labels!r}, {original.key_labels!r}'
    lines += [
        f"own = {recording(view.original())}",
        f"before, after = head_frame(own, {before}), head_frame(trace, {of})",
    ]

    def table() -> pd.DataFrame:
        return pd.concat(
            [_cells(original, head).assign(run="original"), _cells(layer, head).assign(run=view.what_changed())]
        )

    footer(view, [*lines, f"changed_chart(before, after{scale})"], table, "pattern")


def _cells(layer: PatternLayer, head: int) -> pd.DataFrame:
    allowed = np.broadcast_to(layer.allowed, layer.pattern.shape)[head]
    return pattern_frame(layer.pattern[head], allowed, layer.query_labels, layer.key_labels)


def _look_texts(look: Look) -> dict[str, str]:
    """How the enlarged head is drawn, for the link, where that is not the usual way."""
    arcs = ".".join(str(head + 1) for head in look.arcs)
    texts = {
        "scale": "own" if look.own_scale else "",
        "view": "" if look.shown == SHOWN[0] else look.shown,
        "arcs": arcs,
    }
    return {name: text for name, text in texts.items() if text}


def _look_of(asks: dict[str, str | None]) -> Look:
    """What a link asks for; what is not here is said."""
    scale, shown, arcs = (asks[name] or "" for name in ("scale", "view", "arcs"))
    if scale not in ("", "own"):
        not_here("scale")
    if shown not in ("", *SHOWN):
        not_here("view")
    if arcs and not re.fullmatch(r"[1-9]\d{0,2}(\.[1-9]\d{0,2})*", arcs, re.ASCII):
        not_here("arcs")
        arcs = ""
    heads = sorted({int(head) - 1 for head in arcs.split(".") if head})
    return Look(scale == "own", shown if shown in SHOWN else SHOWN[0], tuple(heads))


def _head_text(chosen: Selection) -> str:
    """The chosen head, and the locked cell where there is one, for the link: "3.2" or "3.2.0-5"."""
    text = f"{chosen.layer + 1}.{chosen.head + 1}"
    return text if chosen.query is None or chosen.key is None else f"{text}.{chosen.query}-{chosen.key}"


def _cell(chosen: Selection, layer: PatternLayer) -> tuple[int, int]:
    """The locked cell; where only a row is locked, or nothing, the strongest cell of the row or of the first query."""
    query = 0 if chosen.query is None else chosen.query
    if chosen.key is not None:
        return query, chosen.key
    return query, int(layer.pattern[chosen.head, query].argmax())


def _follow_the_link(layers: list[PatternLayer], best: Selection) -> None:
    """Choose what a link asks for; else, whenever the model changes, the telling head; then the visitor chooses."""
    heads = [item.pattern.shape[0] for item in layers]
    asks = {name: asked(name) for name in ("head", "scale", "view", "arcs")}
    is_link = any(value is not None for value in asks.values())
    if not is_link and st.session_state.get("heads_shown") == heads:
        return
    st.session_state["heads_shown"] = heads
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,5})-(\d{1,5}))?", asks["head"] or "", re.ASCII)
    if match and 1 <= int(match[1]) <= len(heads) and 1 <= int(match[2]) <= heads[int(match[1]) - 1]:
        cell = (None, None) if match[3] is None else (int(match[3]), int(match[4]))
        best = Selection(int(match[1]) - 1, int(match[2]) - 1, *cell)
    elif asks["head"] is not None:
        not_here("head")
    choose_attention(KEY, replace(best, look=_look_of(asks)) if is_link else best)


page()
