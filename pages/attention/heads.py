"""The parts around the picture of all heads: headline, buttons, “change the run”, rollout and notes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from pages.components.attention_view import Selection, choose_attention
from pages.compute.cached_runs import MASKS, mask_words
from pages.compute.picture import of_each_run, picture, table
from pages.controls.text import caption, escape_markdown, signed, what_to_notice
from pages.controls.widgets import choose, find_tokens
from pages.state.view import OFF, View, requested_edits, switch, toggle_edit
from xformer import analysis, viz
from xformer.analysis.attention_patterns import MAX_TOKENS, REACH, TASK, Focus, focus
from xformer.analysis.embeddings import token_labels
from xformer.edit_links import join_edits
from xformer.formatting import percent
from xformer.model_shape import READ_ONLY
from xformer.reading import Reading
from xformer.viz.packing import AnyLayer
from xformer.widgets.page import view_page

KEY = "attention"


def zoom(view: View, chosen: Selection, pooled: int) -> None:
    """Draw the single weights around the locked cell of a long input, whose cells pool `pooled` × `pooled` weights."""
    drawn = f"This input is long: each cell of the enlarged head shows the largest of {pooled} × {pooled} weights."
    if chosen.query is None or chosen.key is None:
        st.caption(f"{drawn} Click a cell to see the single weights around it.")
        return
    st.caption(f"{drawn} Below: {REACH} single weights on each side of query {chosen.query} and key {chosen.key}.")
    readings, options = attention_call(view, chosen)
    picture(view, "zoom", viz.attention, *readings, around=(chosen.query, chosen.key), **options)


def attention_call(view: View, chosen: Selection) -> tuple[tuple[Reading], dict[str, Any]]:
    """Return the reading and the options of `viz.attention` for the enlarged head; of a changed run with the original."""
    run, before = view.compared
    return (run,), {"layer": chosen.layer, "head": chosen.head, "scale": chosen.looks.scale, **before}


def arcs_of(chosen: Selection) -> tuple[int, ...]:
    """Return the heads whose arcs are drawn, the enlarged one among them."""
    return tuple(sorted({chosen.head, *chosen.looks.arcs}))


def standalone(view: View, chosen: Selection) -> Callable[[Sequence[str]], str]:
    """Return a function that renders the attention view as a standalone page, given its caption."""
    edits = ", ".join([*mask_words(view.mask), *filter(None, [join_edits(view.edit_links)])])

    def page(caption: Sequence[str]) -> str:
        at = {"layer": chosen.layer, "head": chosen.head, "cell": (chosen.query, chosen.key)}
        look = replace(chosen.looks, arcs=arcs_of(chosen)).packed
        return view_page(view.original(), view.changed(), **at, look=look, edits=edits, caption=caption)

    return page


PATTERNS = {
    "previous": ("previous token", "is on the previous token"),
    "next": ("next token", "is on the next token"),
    "anti_diagonal": ("mirrored", "is on the mirrored token"),
    "diagonal": ("itself", "is on its own token"),
    "induction": ("induction", "is on what followed the same token earlier"),
    "": ("needed", ""),
}
"""The patterns of `analysis.heads_worth_seeing` as the label of a button, and in a sentence."""
MAX_BUTTONS = 3
_NOTABLE = "notable_head"


def heads_worth_seeing(view: View, run: Reading) -> pd.DataFrame:
    """Return all heads with a clear pattern or effect; see `analysis.heads_worth_seeing`."""
    return table(view, analysis.heads_worth_seeing, run, n=10_000)


def pattern_words(view: View, pattern: str) -> tuple[str, str]:
    """Return a pattern as the label of a button, and in a sentence."""
    if pattern != TASK:
        return PATTERNS[pattern]
    assert view.task is not None
    return view.task.rule.score_name, view.task.rule.score_meaning


def finding(view: View, run: Reading, found: pd.DataFrame, layer: AnyLayer, head: int) -> str:
    """Describe what the enlarged head attends to and the effect of ablating it, as Markdown."""
    name = f"**{layer.title} · head {head + 1}**"
    if head in layer.ablated:
        if not run.has_logits:
            return f"{name} is ablated."
        before, after = (one.logits[0].argmax(dim=-1) for one in (view.original(), run))
        return f"{name} is ablated: {int((before != after).sum())} of {len(before)} predictions differ."
    own = found[(found["layer"] == layer.name) & (found["head"] == head)]
    row = {"pattern": "", "right": math.nan, "effect": math.nan} if own.empty else own.iloc[0].to_dict()
    if target := pattern_words(view, row["pattern"])[1]:
        share = f"{percent(row['share'], 0)} of attention {target} (uniform: {percent(row['even'], 0)})"
        return f"{name}: {share}{_ablation_sentence(run, row)}"
    at = [site.path for site in run.attention].index(layer.name)
    seen = focus(run, layer=at, head=head)
    return f"{name}{focus_words(seen, layer.key_labels)}{_ablation_sentence(run, row)}"


def focus_words(seen: Focus, labels: Sequence[str]) -> str:
    """Describe what all queries of a head attend to, after the name of the head; `labels` are the tokens at the keys."""
    if seen.kind == "one_key":
        return ": this mask leaves each query a single key at most"
    if seen.kind == "uniform":
        moved = "less than 1%" if seen.share < 0.01 else percent(seen.share, 0)
        return f" attends almost uniformly: {moved} of its attention differs from it"
    if seen.kind == "none":
        return " follows no simple pattern on this input"
    first, *more = seen.keys
    text = escape_markdown(labels[first])
    where = f"the {len(seen.keys)} tokens “{text}”" if more else f"token {first} · {text}"
    return f": {percent(seen.share, 0)} of attention is on {where} (uniform: {percent(seen.even, 0)})"


def _ablation_sentence(run: Reading, row: dict[str, Any]) -> str:
    """Describe the measured effect of ablating a head."""
    if not math.isnan(row["right"]):
        n, right = len(run.answer), int(row["right"])
        same = "still " if right == run.n_correct else ""
        return f". Without it, {right} of {n} answers {'is' if right == 1 else 'are'} {same}right."
    if math.isnan(row["effect"]):
        return "."
    if abs(row["effect"]) < 0.005:
        return ". Without it, the loss stays the same to within 0.005 nats."
    return f". Without it, the loss changes by {signed(row['effect'])} nats."


def notable_buttons(view: View, found: pd.DataFrame, paths: Sequence[str]) -> None:
    """Draw a button for each of the top heads worth seeing, which enlarges it."""
    heads = {}
    for row in found.head(MAX_BUTTONS).to_dict("records"):
        layer = paths.index(row["layer"])
        heads[layer, row["head"]] = f"{layer + 1}.{row['head'] + 1} {pattern_words(view, row['pattern'])[0]}"

    def show() -> None:
        if (at := st.session_state.get(_NOTABLE)) is not None:
            choose_attention(KEY, Selection(*at))
            st.session_state[_NOTABLE] = None

    st.pills("Heads worth seeing", list(heads), format_func=lambda at: heads[at], key=_NOTABLE, on_change=show,
             label_visibility="collapsed", width="content",
             help="Layer and head of the heads with a clear pattern or an effect on the answer.")  # fmt: skip


def attention_notes(view: View, layers: Sequence[AnyLayer], run: Reading, *, all_seen: bool = True) -> None:
    """Draw what to notice about the pattern and the mask. `all_seen` is false where the picture leaves out a key."""
    notes, causal = [], "each position then sees only itself and earlier ones."
    if view.task is not None:
        notes, causal = [view.task.rule.attention_hint], view.task.rule.about_causal_mask(run.example.source)
    if view.mask != MASKS[0]:
        notes.append(f"The mask is now **{view.mask}**; **as trained** restores the mask of the training.")
    elif run.trace.tokens.shape[1] > 1 and not view.shape.is_read_only:
        full = "Set the mask to **Full**: each position then also sees later ones, which it never saw in training."
        notes.append(full if view.shape.is_causal else f"Set the mask to **Causal**: {causal}")
    if all_seen and any(layer.is_masked for layer in layers):
        notes.append("Hatched grey cells are masked, which differs from a weight of zero.")
    what_to_notice([" ".join(notes)])


MAX_LISTED = 500
"""Largest vocabulary that is listed in full as replacements; a larger one has a search field."""


def head_tools(view: View, layer: AnyLayer, chosen: Selection) -> None:
    """Draw the buttons next to the picture: ablate the enlarged head, cut the locked edge."""
    path, head, on = layer.name, chosen.head, view.on
    if view.shape.is_read_only:
        return
    title, ablated = f"{chosen.layer + 1}.{head + 1}", f"ablate:{path}.{head}"
    words = f"Ablated: {title}" if ablated in on else f"Ablate {title}"
    switch(words, ablated, ablated in on, help="Sets its output z to zero.")
    if chosen.query is not None and chosen.key is not None:
        edge_button(layer, chosen, str(head), on)


def change_panel(view: View, layer: AnyLayer, chosen: Selection) -> None:
    """Draw the buttons that change the run. Active changes are listed at the top of the page and in its link."""
    on = view.on
    if view.shape.is_read_only:
        st.info(READ_ONLY, icon=":material/visibility:")
        if view.input.replacements:
            _replace_panel(view)
        return
    first, second, third = st.columns(3, gap="medium")
    with first:
        st.markdown("**Heads and positions**")
        solo, is_only = f"solo:{layer.name}.{chosen.head}", view.shape.heads[layer.name] == 1
        words = f"Only head {chosen.head + 1}" if solo in on else f"Solo head {chosen.head + 1}"
        help = "Ablates all other heads of its layer."
        switch(words, solo, solo in on, width="stretch", help=help, disabled=is_only)
        words, help = "Positions are off" if OFF in on else "Positions off", "Removes all position information."
        switch(words, OFF, OFF in on, width="stretch", help=help, disabled=not view.shape.can_drop_positions)
    with second:
        st.markdown("**One edge**")
        if chosen.query is None or chosen.key is None:
            st.caption("Click a cell of the matrix to cut that edge.")
        else:
            edge_button(layer, chosen, "*", on, width="stretch")
        explained = "Clicking a cell then cuts that edge in this head, or restores it."
        st.toggle("Click to cut a connection", key="click_cuts", persist_state="session", help=explained)
    with third:
        if view.shape.image or view.input.replacements:
            st.markdown("**One pixel**" if view.shape.image else "**One token**")
            _replace_panel(view)


def _replace_panel(view: View) -> None:
    """Ask for another token at a position, or another ink value of a pixel."""
    side, label = view.shape.image, token_labels(view.adapter)
    if side:
        names = {at: f"y{at // side + 1} x{at % side + 1}: ink {ink}" for at, ink in enumerate(view.source)}
        label = [str(ink) for ink in range(view.shape.n_inputs)]
    else:
        names = {at: f"{at}: {label[token]}" for at, token in enumerate(view.source)}
    where, becomes = ("Pixel", "gets the ink value") if side else ("Position", "becomes")
    st.selectbox(where, list(names), format_func=lambda at: names.get(at, "–"), key="replace_position")
    found = list(range(view.shape.n_inputs)) if side else _found_tokens(view)
    st.selectbox(becomes, found, format_func=lambda token: label[token], key="replace_token", disabled=not found)
    st.button("Replace", on_click=_replace, width="stretch", key="replace", disabled=not found)


def _found_tokens(view: View) -> list[int]:
    """Return the tokens to choose from: all of a small vocabulary, or the results of a search."""
    tokens, label = view.input.replacements, token_labels(view.adapter)
    if len(tokens) <= MAX_LISTED:
        return list(tokens)
    explained = "Part of a token; · is the space before a word."
    text = st.text_input(f"Search {len(tokens):,} tokens", key="replace_search", help=explained)
    found = find_tokens(label, text, MAX_LISTED) if text else list(tokens)[:MAX_LISTED]
    if not found:
        st.caption("No token contains this text.")
    return [token for token in found if token in tokens]


def _replace() -> None:
    """Replace a token, or an earlier replacement at that position. A callback.

    It reads the session state: arguments would hold the values before the last keystroke.
    """
    if st.session_state["replace_token"] is None:
        return
    position, token = st.session_state["replace_position"], int(st.session_state["replace_token"])
    kept = [word for word in requested_edits() if not word.startswith(f"token:{position}.")]
    st.session_state["edits"] = ",".join([*kept, f"token:{position}.{token}"])


def follow_cutting_click(layer: AnyLayer, chosen: Selection) -> None:
    """Cut the edge of a newly clicked cell and rerun, while “Click to cut a connection” is on."""
    cell = (layer.name, chosen.head, chosen.query, chosen.key)
    before = st.session_state.get("last_cell")
    st.session_state["last_cell"] = cell
    is_new = before is not None and cell != before and chosen.query is not None and chosen.key is not None
    if st.session_state.get("click_cuts") and is_new:
        at = f"{layer.name}.{chosen.head}.{chosen.query}-{chosen.key}"
        opened = f"open:{at}"
        toggle_edit(opened if opened in requested_edits() else f"cut:{at}")
        st.rerun()


def edge_button(layer: AnyLayer, chosen: Selection, heads: str, on: frozenset[str], **look: Any) -> None:
    """Draw a button that cuts or opens the locked edge in one head, or in all heads of its layer (`"*"`)."""
    query, key = chosen.query, chosen.key
    assert query is not None
    assert key is not None
    edge = f"{query} · {escape_markdown(layer.query_labels[query])} → {key} · {escape_markdown(layer.key_labels[key])}"
    masked = not bool(layer.allowed[min(chosen.head, layer.allowed.shape[0] - 1), query, key])
    at = f"{layer.name}.{heads}.{query}-{key}"
    cut, opened = f"cut:{at}", f"open:{at}"
    verbs = {cut: "Restore", opened: "Close again"}
    active = next((text for text in verbs if text in on), "")
    text, verb = (active, verbs[active]) if active else (opened, "Open") if masked else (cut, "Cut")
    which, help = (" in all heads", "In every head of this layer.") if heads == "*" else ("", "In this head only.")
    switch(f"{verb} {edge}{which}", text, text in on, help=help, **look)


LAID = {"heads": "attention of every head", "rollout": "rollout"}
OF_A_PHOTOGRAPH = {"head": "the enlarged head", "heads": "all heads of its layer", "rollout": "rollout"}
"""The options for an image with too many patches to show all heads of all layers."""


def over_image_panel(view: View, chosen: Selection | None = None) -> None:
    """Overlay attention on the image: of all heads, or on a photograph of the `chosen` head, from its locked query."""
    names = view.original().tokens
    laid_over, locked = LAID if chosen is None else OF_A_PHOTOGRAPH, None if chosen is None else chosen.query
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        laid = choose("laid", laid_over, "Overlaid on the image")
        if locked is None:
            who = choose("from", {name: name for name in names}, "From query", widget=st.selectbox, width=160)
        else:
            who = names[locked]
    what: dict[str, Any] = {"what": laid}
    if chosen is not None and laid != "rollout":
        what = {"layer": chosen.layer} | ({"head": chosen.head} if laid == "head" else {})
    options = what | {"query": names.index(who)}
    if chosen is not None and view.is_changed:  # both runs on one scale
        both = pd.concat([table(view, analysis.over_image, run, **options) for run in view.runs().values()])
        options["limit"] = both.loc[both["place"].str.startswith("r"), "weight"].to_numpy().max().item()
    of_each_run(view, "over-image", viz.over_image, **options)
    if laid == "rollout":
        st.caption(f"How much of each patch could have reached **{who}** after each layer. {ROLLOUT}")
    else:
        scale = "(0 to 1, on a square-root scale)" if chosen is None else "(the colours end at the largest one)"
        lock = "" if chosen is None else " Lock a cell of the matrix to use its query."
        st.caption(f"What **{who}** attends to: tiles are the attention weights of the patches {scale}.{lock}")


ROLLOUT = (
    "Rollout averages each layer’s mean attention over heads with the identity (the residual connection), and multiplies the "
    "layers (Abnar & Zuidema 2020). It ignores values, norms and feed-forward layers."
)


def rollout_panel(view: View, run: Reading) -> None:
    """Draw the rollout of each stack of the model."""
    caption(ROLLOUT)
    for stack in ("encoder", "decoder") if view.is_encoder_decoder else (None,):
        n = len(run.tokens_of(stack))
        if n > MAX_TOKENS:
            st.caption(f"{n} tokens, pooled to at most {MAX_TOKENS} rows.")
        picture(view, f"rollout{'' if stack is None else f'-{stack}'}", viz.rollout, run, stack=stack)
