"""The panel on one cell that attributes its score to its sources."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

import pandas as pd
import streamlit as st

from pages.attention.heads import KEY
from pages.components.attention_view import Selection, choose_attention
from pages.compute.byte_cache import shared
from pages.compute.call import picture_call
from pages.compute.picture import footer, shown
from pages.controls.text import caption, escape_markdown, signed
from pages.state.link import take_parameter
from pages.state.view import View
from xformer import viz
from xformer.analysis.score_decomposition import (
    Contribution,
    check,
    contributions,
    deciding_sources,
    has_choice_to_explain,
    opposing_source,
    score_parts,
    table_of,
    without_source,
)
from xformer.formatting import percent
from xformer.layer_path import head_title, layer_title
from xformer.reading import Reading

_KEY = "why_trail"


@dataclass(frozen=True)
class HeadCell(Selection):
    """A query and a key of a head, all counted from 0."""

    query: int = 0
    key: int = 0


def trail_to(run: Reading) -> list[HeadCell]:
    """Return the cells that the visitor came from, without cells that this model does not have."""
    if (text := take_parameter("trail")) is not None:
        st.session_state[_KEY] = [cell for step in text.split("_") if "-" in step and (cell := HeadCell.parse(step))]
    found: list[HeadCell] = st.session_state.get(_KEY, [])
    return [cell for cell in found if _is_there(run, cell)]


def title_of(run: Reading, cell: HeadCell) -> str:
    """Return the title of the cell's head."""
    path = run.attention_path(cell.layer).path
    return head_title(path, cell.head, is_encoder_decoder=run.is_encoder_decoder).capitalize()


def _is_there(run: Reading, cell: HeadCell) -> bool:
    if not 0 <= cell.layer < len(run.attention):
        return False
    n_heads, n_query, n_key = run[f"{run.attention[cell.layer].path}.pattern"].shape[1:]
    return 0 <= cell.head < n_heads and cell.query < n_query and cell.key < n_key


def breadcrumbs(run: Reading, trail: list[HeadCell]) -> None:
    """Draw buttons that lead back to earlier cells."""
    if not trail:
        return
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.markdown("From:", width="content")
        for index, cell in enumerate(trail):
            there, back = f"{title_of(run, cell)}, {cell.query} → {cell.key}", partial(open_cell, cell, trail[:index])
            st.button(there, key=f"why_step_{index}", on_click=back, type="tertiary")


def open_cell(cell: HeadCell, trail: list[HeadCell]) -> None:
    """Enlarge a head and lock one of its cells. A callback."""
    st.session_state[_KEY] = trail
    choose_attention(KEY, cell)


class CellOptions(TypedDict):
    """The options of `viz.score_attribution`: a cell, and the key to compare with; None for the mean of the others."""

    layer: int
    head: int
    query: int
    key: int
    against: int | None


@dataclass(frozen=True, eq=False)
class Attribution:
    """The attribution of one cell's score to its sources."""

    table: pd.DataFrame
    total: float
    residue: float
    advantage: float
    """In nats, like all contributions."""
    weight: float
    n_allowed: int
    contributions: list[Contribution]
    """Sorted, the largest first."""
    deciding: tuple[Contribution, ...]
    opposing: Contribution | None
    removed: Contribution | None
    """The source whose removal is measured; None where the score is not explained."""
    check: pd.DataFrame
    is_moved: bool | None
    """Whether its removal changes a prediction; None for a model without predictions."""


def attribute(run: Reading, options: CellOptions) -> Attribution:
    """Split the score of a cell, and measure the removal of the largest contribution.

    Raises `UnavailableError` where the parts of the score are not known.
    """
    parts = score_parts(run, **options)
    found, removed = contributions(parts), None
    table, is_moved = pd.DataFrame(), False
    if has_choice_to_explain(parts):
        removed = found[0]
        at = {"layer": options["layer"], "head": options["head"]}
        without = without_source(run, **at, side=removed.side, source=removed.writer.name, parts=parts)
        table, is_moved = check(run, without, **options).dropna(), None
        if run.has_logits:
            is_moved = not run.logits.argmax(dim=-1).equal(without.logits.argmax(dim=-1))
    return Attribution(
        table_of(parts), parts.total, parts.residue, parts.total_advantage, parts.weight, parts.n_allowed, found,
        deciding_sources(parts), opposing_source(parts), removed, table, is_moved,
    )  # fmt: skip


def sentence(found: Attribution, over: str) -> str:
    """Explain why the head prefers the key, as Markdown; `over` names the reference of its score."""
    if found.weight * found.n_allowed < 1.0:
        return f"This is less than a uniform share of {found.n_allowed} keys, so no source is named."
    if found.advantage <= 0:
        return f"Its score is not above {over}, so there is no preference to explain."
    text = f"Its score is **{found.advantage:.2f} nats** above {over}"
    if found.removed is None:
        return f"{text}, too little to explain."
    if not found.deciding:
        first, second = (f"{one.title} ({signed(one.adds)})" for one in found.contributions[:2])
        return f"{text}. No single source decides this; the largest contributions are {first} and {second}."
    named = [(one.writer.name, one.title.removeprefix(one.writer.name), signed(one.adds)) for one in found.deciding]
    text += ". The largest contribution is " if len(named) == 1 else ". The two largest contributions are "
    text += " and ".join(f"**{name}**{rest} ({adds})" for name, rest, adds in named)
    if found.opposing is not None:
        text += f"; the largest opposing one is {found.opposing.title} ({signed(found.opposing.adds)})"
    return f"{text}."


LISTED = 5
"""Largest number of sources considered for a button that opens their head."""
FEW, MAX_LAYERS = 24, 10
"""With up to `FEW` sources the matrix shows all of them; with more, up to `MAX_LAYERS` layers can be opened."""
MEAN = -1
"""The option that compares the key with the mean of all others."""


def score_attribution_panel(view: View, run: Reading, chosen: Selection) -> dict[str, str]:
    """Draw the explanation, its matrix, the buttons to contributing heads and the measurement; return what the link keeps."""
    cell = _cell(run, chosen)
    trail = trail_to(run)
    breadcrumbs(run, trail)
    site = run.attention_path(cell.layer)
    queries, keys = run.tokens_of(site.query_stack), run.tokens_of(site.key_stack)
    against = _against(run, cell, keys)
    options: CellOptions = {
        "layer": cell.layer, "head": cell.head, "query": cell.query, "key": cell.key, "against": against
    }  # fmt: skip
    found = shared.get(("attribution", view.model, str(run.code), repr(options)), lambda: attribute(run, options))
    query_name = f"**{cell.query} · {escape_markdown(queries[cell.query])}**"
    key_name = f"**{cell.key} · {escape_markdown(keys[cell.key])}**"
    over = "the mean of the others" if against is None else f"that of {against} · {escape_markdown(keys[against])}"
    weight = f"{percent(found.weight)} of its attention"
    st.markdown(f"{title_of(run, cell)} at {query_name} gives {key_name} {weight}. {sentence(found, over)}")
    opened = _opened(cell, found, is_encoder_decoder=run.is_encoder_decoder)
    call = picture_call(viz.score_attribution, run, **options, opened=opened, table=found.table)
    shown(view, call, "why")
    footer(view, "why", [call])
    caption(
        f"The parts sum to the score {found.total:.4f} up to rounding ({abs(found.residue):.0e}). One more nat "
        "makes the weight of a key 2.7 times larger relative to the others. Computed from this run with frozen norms, "
        "not measured."
    )
    _way_back(run, cell, found, trail)
    _check(found)
    return {
        "trail": "_".join(map(str, trail)),
        "against": "" if against is None else str(against),
        "opened": "_".join(opened or ()),
    }


def _opened(cell: HeadCell, found: Attribution, *, is_encoder_decoder: bool) -> list[str] | None:
    """Ask which layers the matrix shows head by head; None where it shows all heads."""
    sizes: defaultdict[str, float] = defaultdict(float)
    for part in found.contributions:
        if part.writer.layer_path is not None and part.writer.head is not None:
            sizes[layer_title(part.writer.layer_path.path, is_encoder_decoder=is_encoder_decoder)] += abs(part.adds)
    if len(found.contributions) <= FEW:
        return None
    layers, key = sorted(sizes, key=lambda layer: -sizes[layer])[:MAX_LAYERS], f"why_opened_{cell}"
    wanted = take_parameter("opened")
    if key not in st.session_state or wanted is not None:
        st.session_state[key] = layers[:1] if wanted is None else [name for name in wanted.split("_") if name in layers]
    return st.pills("Layers shown head by head", layers, selection_mode="multi", key=key)


def _cell(run: Reading, chosen: Selection) -> HeadCell:
    """Return the locked cell, else the largest weight of the locked key, the locked query or the last query."""
    pattern = run[f"{run.attention_path(chosen.layer).path}.pattern"][0, chosen.head]  # [query, key]
    query = chosen.query
    if query is None:
        query = len(pattern) - 1 if chosen.key is None else int(pattern[:, chosen.key].argmax())
    key = int(pattern[query].argmax()) if chosen.key is None else chosen.key
    return HeadCell(chosen.layer, chosen.head, query, key)


def _against(run: Reading, cell: HeadCell, keys: tuple[str, ...]) -> int | None:
    """Ask for the key to compare with; None for the mean of the others."""
    scores = run[f"{run.attention_path(cell.layer).path}.scores"][0, cell.head, cell.query]
    allowed = [key for key in scores.isfinite().nonzero()[:, 0].tolist() if key != cell.key]
    wanted = take_parameter("against")
    if wanted is not None and wanted.isdecimal() and int(wanted) in allowed:
        st.session_state["why_against"] = int(wanted)
    if st.session_state.get("why_against") not in allowed:
        st.session_state["why_against"] = MEAN
    names = {MEAN: "the mean of all other allowed keys"} | {key: f"{key} · {keys[key]}" for key in allowed}
    chosen = st.selectbox("Compared with", list(names), format_func=names.__getitem__, key="why_against", width=400)
    return None if chosen == MEAN else chosen


def _way_back(run: Reading, cell: HeadCell, found: Attribution, trail: list[HeadCell]) -> None:
    """Draw a button for each head among the largest contributions; it opens that head at the position where it wrote."""
    named = [one for one in found.contributions if one.writer.kind != "bias"]
    named.sort(key=lambda one: -abs(one.adds))
    heads = [(one, one.writer.layer_path, one.writer.head) for one in named[:LISTED]]
    if all(head is None for *_, head in heads):
        return
    st.markdown("**Walk back:** open a head that contributed, at the position where it wrote.")
    with st.container(horizontal=True, gap="small"):
        for one, site, head in heads:
            if site is None or head is None:
                continue
            layer, at = run.attention.index(site), cell.key if one.side == "key" else cell.query
            target = HeadCell(layer, head, at, int(run[f"{site.path}.pattern"][0, head, at].argmax()))
            walk, key = partial(open_cell, target, [*trail, cell]), f"why_back_{one.side}_{layer}_{head}"
            st.button(f"{one.title}: {signed(one.adds)}", key=key, on_click=walk)


def _check(found: Attribution) -> None:
    """Draw the cell as measured in a run without the largest contribution."""
    if found.removed is None:
        return
    inputs = {None: "scores", "query": "queries", "key": "keys"}[found.removed.side]
    st.markdown(f"**Measured** by removing {found.removed.writer.name} from this head’s {inputs}:")
    st.dataframe(found.check, hide_index=True, width="content", key="why_check")
    moved = {None: "This model makes no predictions.", True: "A prediction changes.", False: "No prediction changes."}
    st.caption(f"Advantage, score and loss are in nats. {moved[found.is_moved]}")
