"""The picture of all heads; of a long input, a click on a head brings that head before the rest of the page.

Each head of a short input is in the browser already. Of a long one the browser has small pictures, and asks for the exact
weights of the head that is enlarged; that part runs alone, so that nobody waits for the panels below to see a head.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from pages.components.attention_view import Selection, attention_choice, attention_view
from pages.shared.layout import caption, what_to_notice
from pages.shared.picture import of_each_run, picture, table
from pages.shared.resources import mask_words
from pages.shared.view import View
from pages.shared.widgets import choose
from xformer import analysis, viz
from xformer.analysis.attention_patterns import MOST_TOKENS, REACH
from xformer.analysis.reactions import agreement_by_chance, atom_mapping
from xformer.formatting import percent
from xformer.interventions import join
from xformer.reading import Reading
from xformer.tasks import Task
from xformer.viz.packing import AnyLayer, header_of, pack, pattern_layers
from xformer.widgets.page import view_page

KEY = "attention"
SENT_AFTER = 0.04
"""Seconds within which Streamlit sends what is drawn; what it has not sent when a page runs again, it throws away."""
_SENT = "attention_head_sent"
"""The head whose exact weights the browser has."""
_WHOLE = "attention_page_runs"
"""Set while the whole page runs, and taken away by the part; the part finds nothing where it runs alone."""


def draw_heads(original: Reading, changed: Reading | None) -> tuple[Selection, int]:
    """Draw the heads of a run, with those of the changed run beside them. Returns what is chosen, and how many queries and keys
    of the enlarged head became one cell."""
    layers, other = _layers(original, changed)
    chosen = attention_choice(KEY, layers)
    packed = pack(layers, other, selected=(chosen.layer, chosen.head))
    header = header_of(packed)
    if all(layer["pool"] == [1, 1] for layer in header["layers"]):
        return attention_view(packed, key=KEY), 1
    st.session_state[_WHOLE] = (chosen.layer, chosen.head)
    # Streamlit keeps what a fragment is given for as long as the visit lasts: the readings hold no activations.
    return st.fragment(_draw)(packed, original, changed), max(header["exactPool"])


def _layers(original: Reading, changed: Reading | None) -> tuple[list[AnyLayer], list[AnyLayer] | None]:
    return pattern_layers(original), None if changed is None else pattern_layers(changed)


def _draw(packed: bytes, original: Reading, changed: Reading | None) -> Selection:
    drawn = st.session_state.pop(_WHOLE, None)
    if drawn is not None:
        st.session_state[_SENT] = drawn
        return attention_view(packed, key=KEY)
    layers, other = _layers(original, changed)
    chosen = attention_choice(KEY, layers)
    at = (chosen.layer, chosen.head)
    if at != st.session_state.get(_SENT):
        attention_view(pack(layers, other, selected=at), key=KEY)
        time.sleep(SENT_AFTER)
    st.rerun()  # for everything else that is said of the head
    return chosen


def zoom(view: View, chosen: Selection, pooled: int) -> None:
    """Say how the head above is drawn, with `pooled` queries and keys a cell, and show what a click asks for."""
    drawn = f"This input is long: a cell of the enlarged head is the largest of {pooled} × {pooled} weights."
    if chosen.query is None or chosen.key is None:
        st.caption(f"{drawn} Click a cell to see those around it one by one.")
        return
    st.caption(
        f"{drawn} Below, one by one, those around query {chosen.query} and key {chosen.key}, up to {REACH} on each side."
    )
    readings, options = call_of(view, chosen)
    picture(view, "zoom", viz.attention, *readings, around=(chosen.query, chosen.key), **options)


def call_of(view: View, chosen: Selection) -> tuple[tuple[Reading], dict[str, Any]]:
    """The reading and the options of `viz.attention` for the enlarged head: with a changed run of both runs, and of their
    difference."""
    original, changed = view.original(), view.changed()
    before = {} if changed is None else {"before": original}
    return (changed or original,), {"layer": chosen.layer, "head": chosen.head, "scale": chosen.looks.scale, **before}


def standalone(view: View, chosen: Selection) -> Callable[[Sequence[str]], str]:
    """What makes the page of its caption, once it is asked for."""
    changes = ", ".join([*mask_words(view.mask), *filter(None, [join(view.interventions)])])

    def page(caption: Sequence[str]) -> str:
        cell = (chosen.query, chosen.key)
        original, changed = view.original(), view.changed()
        return view_page(
            original, changed, layer=chosen.layer, head=chosen.head, cell=cell, changes=changes, caption=caption
        )

    return page


CLEAR = 0.4

TELLS_NOTHING = 0.9
"""Where looking at everything alike gets so much already, a score says nothing about a head."""


@dataclass(frozen=True)
class BestTaskHead:
    """The head with the most of what the task needs, how much that is, and what chance would give it."""

    at: Selection
    weight: float
    chance: float

    @property
    def is_clear(self) -> bool:
        return self.chance < TELLS_NOTHING and self.weight >= self.chance + CLEAR * (1 - self.chance)


def best_task_head(view: View, run: Reading, paths: Sequence[str]) -> BestTaskHead:
    """The head of a run with the most of what this task needs; where none has any, the first of the last layer."""
    best = BestTaskHead(Selection(len(paths) - 1, 0), 0.0, 0.0)
    if view.task is None:
        return best
    scores, chances = (of(run.trace, run.example) for of in (view.task.head_scores, view.task.chance_scores))
    silenced = {path: _silenced(run, path) for path in scores}
    for layer, path in enumerate(paths):
        for head, weight in enumerate(scores.get(path, [])):
            if weight > best.weight and head not in silenced[path]:
                best = BestTaskHead(Selection(layer, head), weight, chances[path][head])
    return best


def attention_notes(
    view: View, layers: Sequence[AnyLayer], run: Reading, best: BestTaskHead, *, all_seen: bool = True
) -> None:
    """What to notice in the run that is shown, with what `best_task_head` found in it; `all_seen`: no key is left out."""
    task = [] if view.task is None else [view.task.rule.look_for + closest(view, view.task, layers, best)]
    what_to_notice([*task, *_about_the_mask(view, layers if all_seen else (), run)])


def closest(view: View, task: Task, layers: Sequence[AnyLayer], best: BestTaskHead) -> str:
    """Which head comes closest, where one clearly does; else how little there is of it; nothing where that tells nothing."""
    says, where = task.rule.score_says, f"With {view.what_changed()}" if view.is_changed else "Here"
    even = f"a head that looks at everything alike has {percent(best.chance, 0)}"
    if best.weight == 0:
        return ""
    if best.chance >= TELLS_NOTHING:
        return f" On this input {even} of its attention there already, so it does not tell such a head from any other."
    if not best.is_clear:
        return f" {where} no head does that clearly: of the closest, {percent(best.weight, 0)} of its attention {says}; {even}."
    name = f"{layers[best.at.layer].title} · head {best.at.head + 1}"
    return f" {where} **{name}** comes closest: {percent(best.weight, 0)} of its attention {says} ({even})."


def _about_the_mask(view: View, layers: Sequence[AnyLayer], run: Reading) -> list[str]:
    """What another mask would do, where another is not on already; and what hatching means, where some is to be seen."""
    notes = []
    if view.shape.is_read_only:
        pass  # no other mask can be had
    elif view.mask == "as trained" and run.trace.tokens.shape[1] > 1:
        notes.append(_other_mask(view, run))
    elif view.mask != "as trained":
        is_own = (view.mask == "causal") == view.shape.is_causal
        notes.append(
            f"The mask is **{view.mask}** now, which is what this model was trained with."
            if is_own
            else f"The mask is **{view.mask}** now; with **as trained** the model runs as it was trained."
        )
    if any(layer.is_masked for layer in layers):
        notes.append("Hatched grey cells are masked, which is not the same as a weight of zero.")
    return [" ".join(notes)] if notes else []


def _other_mask(view: View, run: Reading) -> str:
    if view.shape.is_causal:
        return (
            "Set the mask to **Full**: every position then also sees what comes later, which it never did in training."
        )
    if view.task is None:
        return "Set the mask to **Causal**: a position then sees only itself and what came before."
    return f"Set the mask to **Causal**: {view.task.rule.about_causal_mask(run.example.source)}"


def _silenced(run: Reading, path: str) -> set[int]:
    """The heads of a layer whose z is 0 everywhere: what they look at reaches nobody."""
    z = run.trace[f"{path}.z"][0]  # [head, query, d_value]
    return {head for head, one in enumerate(z) if not bool(one.any())}


LAID = {"heads": "attention of every head", "rollout": "rollout"}

OF_A_PHOTOGRAPH = {"head": "the enlarged head", "heads": "all heads of its layer", "rollout": "rollout"}
"""What is laid over an image of many patches: all heads of all layers would be too small to be seen."""


def over_image_panel(view: View, chosen: Selection | None = None) -> None:
    """Draw it for every run; of a photograph for the head that is `chosen`, from the query that is locked there."""
    names = view.original().tokens
    laid_over, locked = LAID if chosen is None else OF_A_PHOTOGRAPH, None if chosen is None else chosen.query
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        laid = choose("laid", laid_over, next(iter(laid_over)), "Laid over the image")
        if locked is None:
            options = {name: name for name in names}
            who = choose("from", options, names[0], "Looking from", widget=st.selectbox, width=160)
        else:
            who = names[locked]
    options: dict[str, Any] = {"laid": laid}
    if chosen is not None and laid != "rollout":
        options = {"layer": chosen.layer} | ({"head": chosen.head} if laid == "head" else {})
    options["query"] = names.index(who)
    if chosen is not None and view.is_changed:  # both runs on one scale
        both = [table(view, analysis.over_image, run, **options) for run in view.runs().values()]
        options["top"] = max(of.loc[of["place"].str.startswith("r"), "weight"].to_numpy().max().item() for of in both)
    of_each_run(view, "over-image", viz.over_image, **options)
    if laid == "rollout":
        st.caption(
            f"How much of each patch could have reached **{who}** after each layer, by the patterns alone: half of a stream "
            "passes by each attention, half is mixed by the mean of its heads (Abnar & Zuidema 2020). What values, norms and "
            "feed-forward layers do is not in it."
        )
    elif chosen is None:
        st.caption(
            f"Where **{who}** looks: one row per layer, one column per head, last their mean. Tiles are the patches' shares "
            "(from 0 to 1, spaced by the square root), squares the ink, and above each picture is what goes to the class token."
        )
    else:
        from_where = "" if locked is None else ", the query of the locked cell"
        st.caption(
            f"Where **{who}**{from_where} looks, on the image as the model reads it. The stronger the colour of a patch, the "
            "larger its weight; the scale ends at the largest weight of a patch. Lock a cell of the matrix to look from its "
            "query."
        )


def rollout_panel(view: View, run: Reading) -> None:
    """Draw the rollout of each stack that the model has."""
    caption(
        "Half of a stream passes by each attention, half is mixed by the mean of its heads (Abnar & Zuidema 2020). "
        "Rollout multiplies these through the layers: it shows where information could have come from, by the patterns "
        "alone; what values, norms and feed-forward layers do to it is not in it."
    )
    for stack in ("encoder", "decoder") if view.is_pair else (None,):
        n = len(run.tokens_of(stack))
        if n > MOST_TOKENS:
            st.caption(f"{n} tokens: neighbours are drawn as one, {n} in at most {MOST_TOKENS} rows.")
        picture(view, f"rollout{'' if stack is None else f'-{stack}'}", viz.rollout, run, stack=stack)


CLEARLY = 0.2
"""How far above chance a share of agreeing elements has to be before it is said to mean anything."""


def atom_mapping_panel(view: View, run: Reading, chosen: Selection) -> None:
    """The lines of the chosen head, and how many of them join atoms of one element."""
    caption(
        "Each atom of the product is joined to the atom of the reactants that this head puts most weight on, counted from both "
        "sides. That elements agree is checked against chemistry: the model was never told which atoms are which."
    )
    picture(view, "atom_mapping", viz.atom_mapping, run, layer=chosen.layer, head=chosen.head)
    found = atom_mapping(run, layer=chosen.layer, head=chosen.head)["agrees"].tolist()
    n, chance = len(found), agreement_by_chance(run)
    said = f"{sum(found)} of {n} atoms of the product are joined to an atom of their own element"
    if sum(found) / n >= chance + CLEARLY:
        st.markdown(f"**{said}**; by chance it would be {percent(chance)}.")
    else:
        st.markdown(f"{said}, and by chance it would be {percent(chance)}: this head does not follow atoms here.")
