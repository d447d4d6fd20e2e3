"""The picture of all heads; of a long input, a click on a head brings that head before the rest of the page.

Each head of a short input is in the browser already. Of a long one the browser has small pictures, and asks for the exact
weights of the head that is enlarged; that part runs alone, so that nobody waits for the panels below to see a head.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import streamlit as st

from pages.components.attention_view import Selection, attention_choice, attention_view, choose_attention
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
"""Seconds until Streamlit has sent a drawn element; a rerun before that discards it."""
_SENT = "attention_head_sent"
"""The session's key for the head whose exact weights the browser has."""
_WHOLE = "attention_page_runs"
"""Set while the whole page runs; absent where the fragment runs alone."""


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
    st.rerun()  # for the rest of the page
    return chosen


def zoom(view: View, chosen: Selection, pooled: int) -> None:
    """For a long input, whose cells hold `pooled` × `pooled` weights: the single weights around the locked cell."""
    drawn = f"This input is long: a cell of the enlarged head is the largest of {pooled} × {pooled} weights."
    if chosen.query is None or chosen.key is None:
        st.caption(f"{drawn} Click a cell to see the single weights around it.")
        return
    st.caption(
        f"{drawn} Below: the single weights around query {chosen.query} and key {chosen.key}, {REACH} on each side."
    )
    readings, options = call_of(view, chosen)
    picture(view, "zoom", viz.attention, *readings, around=(chosen.query, chosen.key), **options)


def call_of(view: View, chosen: Selection) -> tuple[tuple[Reading], dict[str, Any]]:
    """The reading and the options of `viz.attention` for the enlarged head, with the original before a changed run."""
    original, changed = view.original(), view.changed()
    before = {} if changed is None else {"before": original}
    return (changed or original,), {"layer": chosen.layer, "head": chosen.head, "scale": chosen.looks.scale, **before}


def standalone(view: View, chosen: Selection) -> Callable[[Sequence[str]], str]:
    """A function that makes the attention view as a page of its own, given its caption."""
    changes = ", ".join([*mask_words(view.mask), *filter(None, [join(view.interventions)])])

    def page(caption: Sequence[str]) -> str:
        cell = (chosen.query, chosen.key)
        original, changed = view.original(), view.changed()
        return view_page(
            original, changed, layer=chosen.layer, head=chosen.head, cell=cell, changes=changes, caption=caption
        )

    return page


CLEAR = 0.4
"""How far a clear score is on the way from chance to 1."""
TELLS_NOTHING = 0.9
"""From this chance level on, a score is not informative."""


@dataclass(frozen=True)
class BestTaskHead:
    """The head with the highest score for the task, its score, and the score of uniform attention."""

    at: Selection
    weight: float
    chance: float

    @property
    def is_clear(self) -> bool:
        return self.chance < TELLS_NOTHING and self.weight >= self.chance + CLEAR * (1 - self.chance)


PATTERNS = {
    "previous": ("previous token", "the token before"),
    "next": ("next token", "the token after"),
    "anti_diagonal": ("mirrored", "the mirrored token"),
    "diagonal": ("itself", "its own token"),
    "induction": ("induction", "what followed the same token earlier"),
}
"""A pattern of `analysis.notable_heads` on a button, and in a sentence."""
MOST_BUTTONS = 4
_NOTABLE = "notable_head"


def notable_heads(view: View, run: Reading) -> pd.DataFrame:
    """All heads with a clear pattern, see `analysis.notable_heads`."""
    return table(view, analysis.notable_heads, run, n=10_000)


def headline(found: pd.DataFrame, layer: AnyLayer, head: int) -> None:
    """Say what the enlarged head attends to, where that is clear."""
    name = f"{layer.title} · head {head + 1}"
    for row in found.to_dict("records"):
        if (row["layer"], row["head"]) == (layer.name, head):
            what = PATTERNS[row["pattern"]][1]
            st.markdown(
                f"**{name}** attends to **{what}**: {row['share']:.0%} of its attention, {row['even']:.0%} if it were even."
            )
            return
    st.markdown(f"**{name}** follows no simple pattern on this input.")


def notable_buttons(found: pd.DataFrame, paths: Sequence[str]) -> None:
    """A button for each of the clearest heads, which enlarges it."""
    heads = {}
    for row in found.head(MOST_BUTTONS).to_dict("records"):
        layer = paths.index(row["layer"])
        heads[layer, row["head"]] = f"{layer + 1}.{row['head'] + 1} {PATTERNS[row['pattern']][0]}"

    def show() -> None:
        if (at := st.session_state.get(_NOTABLE)) is not None:
            choose_attention(KEY, Selection(*at))
            st.session_state[_NOTABLE] = None

    st.pills("Heads worth seeing", list(heads), format_func=lambda at: heads[at], key=_NOTABLE, on_change=show,
             label_visibility="collapsed", help="Layer and head of those whose attention follows a clear pattern.")  # fmt: skip


def best_task_head(view: View, run: Reading, paths: Sequence[str]) -> BestTaskHead:
    """The head of a run with the highest score for its task; without a task the clearest of the notable heads, else the first
    head of the last layer."""
    best = BestTaskHead(Selection(len(paths) - 1, 0), 0.0, 0.0)
    if view.task is None:
        clear = notable_heads(view, run).head(1).to_dict("records")
        return replace(best, at=Selection(paths.index(clear[0]["layer"]), clear[0]["head"])) if clear else best
    scores, chances = (of(run.trace, run.example) for of in (view.task.head_scores, view.task.chance_scores))
    ablated = {path: _ablated(run, path) for path in scores}
    for layer, path in enumerate(paths):
        for head, weight in enumerate(scores.get(path, [])):
            if weight > best.weight and head not in ablated[path]:
                best = BestTaskHead(Selection(layer, head), weight, chances[path][head])
    return best


def attention_notes(
    view: View, layers: Sequence[AnyLayer], run: Reading, best: BestTaskHead, *, all_seen: bool = True
) -> None:
    """What to notice: the best head for the task, and the mask; `all_seen`: the picture leaves out no key."""
    task = [] if view.task is None else [view.task.rule.look_for + closest(view, view.task, layers, best)]
    what_to_notice([*task, *_about_the_mask(view, layers if all_seen else (), run)])


def closest(view: View, task: Task, layers: Sequence[AnyLayer], best: BestTaskHead) -> str:
    """The best head for the task against chance; "" where no head has any of it."""
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
    """What another mask would do, and what hatching means."""
    notes = []
    if view.mask != "as trained":
        is_own = (view.mask == "causal") == view.shape.is_causal
        own = ", the mask of its training" if is_own else "; with **as trained** the model runs as it was trained"
        notes.append(f"The mask is **{view.mask}** now{own}.")
    elif run.trace.tokens.shape[1] > 1 and not view.shape.is_read_only:
        notes.append(_other_mask(view, run))
    if any(layer.is_masked for layer in layers):
        notes.append("Hatched grey cells are masked, which is not the same as a weight of zero.")
    return [" ".join(notes)] if notes else []


def _other_mask(view: View, run: Reading) -> str:
    if view.shape.is_causal:
        return "Set the mask to **Full**: every position then also sees later ones, which it never did in training."
    if view.task is None:
        return "Set the mask to **Causal**: a position then sees only itself and earlier ones."
    return f"Set the mask to **Causal**: {view.task.rule.about_causal_mask(run.example.source)}"


def _ablated(run: Reading, path: str) -> set[int]:
    """The heads of a layer whose z is 0 everywhere."""
    z = run.trace[f"{path}.z"][0]  # [head, query, d_value]
    return {head for head, one in enumerate(z) if not bool(one.any())}


LAID = {"heads": "attention of every head", "rollout": "rollout"}
OF_A_PHOTOGRAPH = {"head": "the enlarged head", "heads": "all heads of its layer", "rollout": "rollout"}
"""The options for an image of many patches, on which all heads of all layers would be too small."""


def over_image_panel(view: View, chosen: Selection | None = None) -> None:
    """Attention laid over the image: of all heads, or of a photograph for the `chosen` head and its locked query."""
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
        st.caption(f"How much of each patch could have reached **{who}** after each layer. {ROLLOUT}")
    elif chosen is None:
        st.caption(
            f"Where **{who}** looks: one row per layer, one column per head, then their mean. Tiles are the weights of patches "
            "(0 to 1, on a square-root scale), squares the ink; above each picture is the weight of the class token."
        )
    else:
        from_where = "" if locked is None else ", the query of the locked cell"
        st.caption(
            f"Where **{who}**{from_where} looks, on the image as the model reads it; the colour scale ends at the "
            "largest weight of a patch. Lock a cell of the matrix to look from its query."
        )


ROLLOUT = (
    "Rollout takes half of each stream past each attention and half as the mean of its heads, multiplied through the layers "
    "(Abnar & Zuidema 2020). It excludes the effects of values, norms and feed-forward layers."
)


def rollout_panel(view: View, run: Reading) -> None:
    """Draw the rollout of each stack that the model has."""
    caption(ROLLOUT)
    for stack in ("encoder", "decoder") if view.is_pair else (None,):
        n = len(run.tokens_of(stack))
        if n > MOST_TOKENS:
            st.caption(f"{n} tokens, pooled to at most {MOST_TOKENS} rows.")
        picture(view, f"rollout{'' if stack is None else f'-{stack}'}", viz.rollout, run, stack=stack)


CLEARLY = 0.2
"""How far above chance the agreement of elements has to be."""


def atom_mapping_panel(view: View, run: Reading, chosen: Selection) -> None:
    """Lines from atoms of the product to those of the reactants, by the chosen head; how many join equal elements."""
    caption(
        "Each atom of the product is joined to the atom of the reactants with the largest weight of this head, both ways "
        "together. The model was trained without any mapping of atoms."
    )
    picture(view, "atom_mapping", viz.atom_mapping, run, layer=chosen.layer, head=chosen.head)
    found = atom_mapping(run, layer=chosen.layer, head=chosen.head)["agrees"].tolist()
    n, chance = len(found), agreement_by_chance(run)
    share = f"{sum(found)} of {n} atoms of the product are joined to an atom of their own element"
    is_clear = sum(found) / n >= chance + CLEARLY
    share, more = (f"**{share}**", "") if is_clear else (share, " This head does not follow atoms here.")
    st.markdown(f"{share}; the chance level is {percent(chance)}.{more}")
