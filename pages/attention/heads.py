"""The picture of all heads; of a long input, a click on a head brings that head before the rest of the page.

Each head of a short input is in the browser already. Of a long one the browser has small pictures, and asks for the exact
weights of the head that is enlarged; that part runs alone, so that nobody waits for the panels below to see a head.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
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
from xformer.analysis.attention_patterns import MOST_TOKENS, REACH, TASK
from xformer.analysis.reactions import agreement_by_chance, atom_mapping
from xformer.formatting import percent
from xformer.interventions import join
from xformer.reading import Reading
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


PATTERNS = {
    "previous": ("previous token", "is on the token before"),
    "next": ("next token", "is on the token after"),
    "anti_diagonal": ("mirrored", "is on the mirrored token"),
    "diagonal": ("itself", "is on its own token"),
    "induction": ("induction", "is on what followed the same token earlier"),
    "": ("matters", ""),
}
"""A pattern of `analysis.heads_worth_seeing` on a button, and in a sentence."""
MOST_BUTTONS = 3
_NOTABLE = "notable_head"


def heads_worth_seeing(view: View, run: Reading) -> pd.DataFrame:
    """All heads with a clear pattern or effect, see `analysis.heads_worth_seeing`."""
    return table(view, analysis.heads_worth_seeing, run, n=10_000)


def pattern_words(view: View, pattern: str) -> tuple[str, str]:
    """A pattern on a button, and in a sentence."""
    if pattern != TASK:
        return PATTERNS[pattern]
    assert view.task is not None
    return view.task.rule.score_name, view.task.rule.score_says


def finding(view: View, run: Reading, found: pd.DataFrame, layer: AnyLayer, head: int) -> str:
    """What the enlarged head attends to and what the model loses without it, as Markdown."""
    name = f"**{layer.title} · head {head + 1}**"
    if head in layer.silenced:
        return f"{name} is ablated. {_downstream(view, run)}"
    for row in found.to_dict("records"):
        if (row["layer"], row["head"]) == (layer.name, head):
            says = pattern_words(view, row["pattern"])[1]
            looks = f"{name}: {percent(row['share'], 0)} of attention {says} (even: {percent(row['even'], 0)})"
            return (looks if says else f"{name} follows no simple pattern") + _cost(run, row)
    return f"{name} follows no simple pattern on this input."


def _cost(run: Reading, row: dict[str, Any]) -> str:
    """What ablating a head does, where that was measured."""
    if not math.isnan(row["right"]):
        n, right = len(run.answer), int(row["right"])
        same = "still " if right == run.n_correct else ""
        return f". Without it, {right} of {n} answers {'is' if right == 1 else 'are'} {same}right."
    if math.isnan(row["effect"]):
        return "."
    return f". Without it, the loss changes by {row['effect']:+.2f} nats."


def _downstream(view: View, run: Reading) -> str:
    """How far an ablation has moved the end of the residual stream, and how many predictions differ."""
    original = view.original()
    moved = table(view, analysis.stream_moved, run, before=original)
    if moved.empty or not run.has_logits:
        return ""
    share = moved.loc[moved["layer"] == moved["layer"].iloc[-1], "moved"].mean()
    differ = int((original.logits[0].argmax(dim=-1) != run.logits[0].argmax(dim=-1)).sum())
    n = run.logits.shape[1]
    return f"After the last layer, the residual stream has moved by {percent(share, 0)}; {differ} of {n} predictions differ."


def notable_buttons(view: View, found: pd.DataFrame, paths: Sequence[str]) -> None:
    """A button for each of the first heads worth seeing, which enlarges it."""
    heads = {}
    for row in found.head(MOST_BUTTONS).to_dict("records"):
        layer = paths.index(row["layer"])
        heads[layer, row["head"]] = f"{layer + 1}.{row['head'] + 1} {pattern_words(view, row['pattern'])[0]}"

    def show() -> None:
        if (at := st.session_state.get(_NOTABLE)) is not None:
            choose_attention(KEY, Selection(*at))
            st.session_state[_NOTABLE] = None

    st.pills("Heads worth seeing", list(heads), format_func=lambda at: heads[at], key=_NOTABLE, on_change=show,
             label_visibility="collapsed", width="content",
             help="Layer and head of those that follow a clear pattern or that the answer needs.")  # fmt: skip


def first_head(found: pd.DataFrame, paths: Sequence[str]) -> Selection:
    """The head to open on: the first one worth seeing, else the first head of the last layer."""
    if found.empty:
        return Selection(len(paths) - 1, 0)
    return Selection(paths.index(found["layer"].iloc[0]), int(found["head"].iloc[0]))


def attention_notes(view: View, layers: Sequence[AnyLayer], run: Reading, *, all_seen: bool = True) -> None:
    """What to notice: what to look for, and the mask; `all_seen`: the picture leaves out no key."""
    task = [] if view.task is None else [view.task.rule.look_for]
    what_to_notice([" ".join([*task, *_about_the_mask(view, layers if all_seen else (), run)])])


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
