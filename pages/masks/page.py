"""Masks: combine rules, see the mask, and what the model attends to and predicts under it."""

from __future__ import annotations

import re
from dataclasses import replace

import streamlit as st
import torch
from streamlit.delta_generator import DeltaGenerator

from pages.compute.byte_cache import shared
from pages.compute.call import PictureCall, picture_call
from pages.compute.picture import footer, heading, panel, shown
from pages.controls import embed
from pages.controls.text import escape_markdown, headline, what_to_notice
from pages.controls.widgets import choose
from pages.masks.controls import ask_recipe
from pages.state.session import open_sidebar
from pages.state.view import View, prediction_panel
from xformer import analysis, edits, masks, viz
from xformer.adapters import TaskModel
from xformer.errors import UnavailableError
from xformer.formatting import percent
from xformer.layer_path import head_title
from xformer.masks import MaskRecipe, Rule
from xformer.masks.recipe import LIBRARIES
from xformer.reading import ReadCall, Reading, rerun

MOST_MOVED = "most"
"""The value in the link for the head whose attention moves most."""
MAX_TOKENS = 512
"""The most tokens of an input on this screen."""
HEIGHT = 210
"""Pixels of the pictures: three fit side by side beside the sidebar at 1280 px, as only the first has labelled rows."""
LIBRARY_TITLES = dict(zip(LIBRARIES, ("FlexAttention", "Transformers", "torch.nn"), strict=True))
NAMES = re.compile(r"\b([a-z_]+)\(")


def _masks(view: View) -> None:
    original = view.original()
    tokens = _tokens(view, original)
    n = len(tokens)
    with embed.picture("rules"):
        recipe = ask_recipe(tokens)
    fitting = recipe.fitting(n)
    rule = fitting.rule(n)
    try:
        masked = _masked(view, original, fitting, rule)
    except UnavailableError as error:
        masked = None
        st.info(escape_markdown(str(error)), icon=":material/info:")
    prediction_panel(view, masked, "with this mask")
    with st.container(horizontal=True, vertical_alignment="center", key="mask_headline"):
        headline_at = st.container(width="stretch")
        head_at = st.container(width=260)
    groups = _groups(fitting, n)
    drawn = replace(rule, code=_qualified(rule))
    calls = [
        picture_call(
            viz.mask, drawn, n_query=n, tokens=list(tokens), groups=groups, height=HEIGHT, legend=False, title="Mask"
        )
    ]
    finding = ""
    with embed.picture():
        if masked is None:
            shown(view, calls[0], "mask")
        else:
            finding = _pictures(view, original, masked, calls, head_at)
    with headline_at:
        headline(finding)
    footer(view, "mask", calls, lambda: masks.cell_table(rule, n_query=n))
    panel(_code_panel, fitting, n)
    view.share(rule=recipe.text)
    has_positions = isinstance(view.adapter, TaskModel) and view.config.positions != "none"
    what_to_notice(_notes(rule, fitting, original, masked, has_positions=has_positions))


def _tokens(view: View, run: Reading) -> tuple[str, ...]:
    """Return the tokens among which the masks of this screen are. Raises `UnavailableError` if the model has others."""
    if view.is_encoder_decoder:
        raise UnavailableError("This screen is for models with one stack. Choose one that is not an encoder-decoder.")
    tokens = run.tokens
    shapes = {tuple(run[f"{site.path}.pattern"].shape[-2:]) for site in run.attention}
    if shapes != {(len(tokens), len(tokens))}:
        raise UnavailableError("This screen is for models whose attention has a row and a column for each token.")
    if len(tokens) > MAX_TOKENS:
        raise UnavailableError(f"This screen is for inputs of up to {MAX_TOKENS} tokens; this one has {len(tokens)}.")
    return tokens


def _masked(view: View, original: Reading, recipe: MaskRecipe, rule: Rule) -> Reading:
    """Return the run in which every attention has this mask in place of its own, cached for all visitors."""
    if view.shape.is_read_only:
        raise UnavailableError("This model can only be read, so it cannot run under another mask.")
    base, n = view.changed() or original, len(original.tokens)

    def make() -> Reading:
        cells = masks.as_mask(rule, n_query=n).cells()
        return rerun(base, [edits.set_mask("*attn", cells)])

    found = shared.get(("masked", *view.key(view.shown), recipe.text), make)
    return replace(found, code=_code_of(base.code, rule, n))


def _code_of(code: ReadCall | str | None, rule: Rule, n: int) -> str | None:
    """Return the call that repeats a run under this mask."""
    if not isinstance(code, ReadCall):
        return None
    before = [] if code.causal is None else [f"xformer.edits.set_causal({code.causal})"]
    before += [repr(code.edits)] if code.edits else []
    before.append(f"xformer.edits.set_mask('*attn', xformer.masks.as_mask({_qualified(rule)}, n_query={n}).cells())")
    return f"xformer.read({code.model!r}, {code.inputs!r}, edits=[{', '.join(before)}])"


def _qualified(rule: Rule) -> str:
    """Return the code of a rule in a script that imports xformer alone."""
    return NAMES.sub(r"xformer.masks.\1(", rule.code)


def _groups(recipe: MaskRecipe, n: int) -> list[str] | None:
    """Return the document or the kind of each token; None if there is one of them only."""
    documents, blocks = recipe.document_ids(n), recipe.block_ids(n)
    names = []
    for at in range(n):
        if at in recipe.padding:
            names.append("padding")
        elif blocks[at] >= 0:
            names.append(f"image {blocks[at] + 1}")
        else:
            names.append(f"document {documents[at] + 1}" if any(documents) else "text")
    return names if len(set(names)) > 1 else None


def _pictures(view: View, original: Reading, masked: Reading, calls: list[PictureCall], head_at: DeltaGenerator) -> str:
    """Draw the mask, one head as trained, and the head under this mask; return the finding."""
    moved = analysis.attention_moved(masked, before=original)
    paths = list(dict.fromkeys(moved["layer"]))
    names, cells = {}, {}
    for path, head in zip(moved["layer"], moved["head"], strict=True):
        name = f"{paths.index(path) + 1}.{head + 1}"
        names[name] = head_title(path, head, is_encoder_decoder=view.is_encoder_decoder)
        cells[name] = (paths.index(path), int(head))
    most = list(names)[int(moved["moved"].to_numpy().argmax())]
    options = {MOST_MOVED: f"{names[most]} (moves most)", **names}
    with head_at:
        chosen = choose("watch", options, "Attention of", widget=st.selectbox, hide_label=True)
    layer, head = cells[most if chosen == MOST_MOVED else chosen]
    at = {"layer": layer, "head": head, "height": HEIGHT, "legend": False, "row_labels": False}
    calls.append(picture_call(viz.attention, original, **at, title="As trained"))
    calls.append(picture_call(viz.attention, masked, **at, title="With this mask"))
    with st.container(horizontal=True, gap="xsmall", key="mask_pictures"):
        for number, call in enumerate(calls):
            shown(view, call, f"mask_{number}")
    path = original.attention[layer].path
    [share] = moved.loc[(moved["layer"] == path) & (moved["head"] == head), "moved"]
    return _finding(original, masked, float(share), head_title(path, head, is_encoder_decoder=view.is_encoder_decoder))


def _finding(original: Reading, masked: Reading, share: float, title: str) -> str:
    """Say how many predictions become others under this mask, and how far the attention of a head moves."""
    moved = "" if share == 0 else f"**{percent(share, 0)}** of {title}’s attention moves"
    n = len(original.predicted)
    if not n:
        return f"{moved} under this mask." if moved else "Nothing changes under this mask."
    changed = sum(a != b for a, b in zip(original.predicted, masked.predicted, strict=True))
    predictions = f"**{changed}** of {n} predictions change" if changed else "no prediction changes"
    return f"Under this mask {predictions}{', and ' + moved if moved else ''}."


def _code_panel(recipe: MaskRecipe, n: int) -> None:
    """Draw the code that makes this mask."""
    heading("Code for this mask")
    library = choose("library", LIBRARY_TITLES, "Library", hide_label=True)
    st.code(recipe.code(library, n), language="python", wrap_lines=True)


def _notes(
    rule: Rule, recipe: MaskRecipe, original: Reading, masked: Reading | None, *, has_positions: bool
) -> list[str]:
    n = len(original.tokens)
    cells = masks.as_mask(rule, n_query=n).cells()
    found = masks.describe(cells)
    described = escape_markdown(rule.text if found.rule is None else found.sentence)
    notes = [f"The mask: **{described}**; {int(cells.sum()):,} of {n * n:,} cells are allowed."]
    empty = (~cells.any(dim=1)).nonzero()[:, 0].tolist()
    if empty:
        who = f"{len(empty)} queries see" if len(empty) > 1 else f"Query {empty[0]} sees"
        notes.append(
            f"{who} no key at all. Attention has nothing to average there, and code that forgets it gives NaN."
        )
    if recipe.window and masked is not None:
        layers, reach = len(original.attention), (recipe.window - 1) * len(original.attention) + 1
        if recipe.causal and layers > 1 and reach < n and not (recipe.sinks or recipe.prefix or recipe.blocks):
            notes.append(
                f"A window of {recipe.window} reaches further than it looks: through {layers} layers, an output depends on up "
                f"to {reach} tokens, as each layer sees what the one before has moved."
            )
    if any(recipe.document_ids(n)) and masked is not None and has_positions:
        notes.append(
            "The documents are separate in the mask, but not in the positions: here the second document does not start at 0. "
            "Packed training data restart the positions as well."
        )
    if masked is not None and _is_own_mask(original, cells):
        notes.append("This is the model’s own mask.")
    return notes


def _is_own_mask(original: Reading, cells: torch.Tensor) -> bool:
    """Whether every attention of the original run has these cells, [query, key]; False if one has no recorded mask."""
    found = [original.get(f"{site.path}.mask") for site in original.attention]
    return all(one is not None and bool((one[0].cpu().bool() == cells).all()) for one in found)


def _draw(view: View) -> None:
    try:
        _masks(view)
    except UnavailableError as error:
        st.info(escape_markdown(str(error)), icon=":material/info:")
        view.share()


def page() -> None:
    open_sidebar("Masks", "Who may attend to whom?").on_each_change(_draw)


page()
