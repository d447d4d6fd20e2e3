"""The running model with its positions switched off: what it says then, and how far its heads look elsewhere."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.shared import resources
from pages.shared.ask import choose
from pages.shared.layout import is_dark
from pages.shared.notebook import footer, heading, heads_from_1
from pages.shared.prediction import prediction_lanes, prediction_sentence
from pages.shared.session import toggle_intervention
from pages.shared.view import View
from xformer.analysis import positions as analysis
from xformer.interventions import join
from xformer.names import layer_title
from xformer.reading import Reading
from xformer.site import Site
from xformer.viz import positions as viz

OFF = "positions:off"
FURTHEST = "most"
MOST_CELLS = 48
"""Rows and columns of an attention pattern that can be read; more are put together into blocks."""


def positions_switch(view: View) -> None:
    """What the model says, with the positions' switch beside it."""
    what = _what(view)
    prediction_lanes(view, what)
    if view.checkpoint.config.position_kind.acts_on == "nothing":
        st.info("This model has no positions that could be switched off.", icon=":material/info:")
        return
    is_off = OFF in view.on
    with st.container(horizontal=True, gap="medium", vertical_alignment="center"):
        st.button(
            "Switch the positions back on" if is_off else "Switch the positions off in the running model",
            icon=":material/location_on:" if is_off else ":material/location_off:",
            type="secondary" if is_off else "primary",
            on_click=toggle_intervention,
            args=(OFF,),
            key="positions_off",
        )
        prediction_sentence(view, what)


def positions_off_panel(view: View) -> None:
    """One head with and without positions, and how far each head's attention moves."""
    original, changed = view.original(), view.changed()
    moved = _moved_of(view)
    path, head = _ask_head(view, moved)
    columns = st.columns([1, 1, 1] if changed is not None else [1, 1], gap="medium")
    own = "This head’s attention" if changed is None else "Own run"
    runs = [(own, original)] if changed is None else [(own, original), (_what(view).capitalize(), changed)]
    for index, (column, (name, run)) in enumerate(zip(columns, runs, strict=False)):
        with column:
            _attention(view, run, path, head, name, index)
    with columns[-1]:
        _moved(view, moved)


def with_and_without(view: View) -> tuple[Reading, Reading]:
    """The run without and with positions off, under whatever else is changed."""
    return resources.run(*_keys(view)[0]), resources.run(*_keys(view)[1])


def _keys(view: View) -> tuple[tuple[str, tuple[int, ...], str, str], tuple[str, tuple[int, ...], str, str]]:
    rest = join(tuple(change for change in view.interventions if change.text != OFF))
    off = ",".join(word for word in (rest, OFF) if word)
    return (view.model, view.source, view.mask, rest), (view.model, view.source, view.mask, off)


def _what(view: View) -> str:
    return "positions off" if view.on == {OFF} and view.mask == resources.MASKS[0] else view.what_changed()


def _moved_of(view: View) -> pd.DataFrame:
    return _cached_moves(*_keys(view))


@st.cache_data(max_entries=64, show_spinner=False)
def _cached_moves(
    without: tuple[str, tuple[int, ...], str, str], off: tuple[str, tuple[int, ...], str, str]
) -> pd.DataFrame:
    return analysis.attention_moved(resources.run(*without).trace, resources.run(*off).trace)


def _ask_head(view: View, moved: pd.DataFrame) -> tuple[str, int]:
    """The head on show: the one that moves most, or the one chosen."""
    paths = list(dict.fromkeys(moved["layer"]))
    furthest = moved.loc[moved["moved"].idxmax()]
    titles = {path: layer_title(path, is_pair=view.is_pair) for path in paths}
    names = {
        f"{paths.index(path) + 1}.{head + 1}": f"{titles[path]} · head {head + 1}"
        for path, head in zip(moved["layer"], moved["head"], strict=True)
    }
    where = names[f"{paths.index(furthest['layer']) + 1}.{furthest['head'] + 1}"]
    most = f"moves most: {where}" if furthest["moved"] > 0 else f"none moves; the first: {where}"
    chosen = choose(
        "watch",
        {FURTHEST: most, **names},
        FURTHEST,
        "Attention of",
        widget=st.selectbox,
        width=420,
        label_visibility="collapsed",
    )
    if chosen == FURTHEST:
        return furthest["layer"], int(furthest["head"])
    layer, _, head = chosen.partition(".")
    return paths[int(layer) - 1], int(head) - 1


def _attention(view: View, run: Reading, path: str, head: int, name: str, index: int) -> None:
    site = Site.parse(path)
    queries, keys = view.reads(run, site.query_stack), view.reads(run, site.key_stack)
    table, dark = analysis.pattern_table(run.trace, path, head, queries, keys, MOST_CELLS), is_dark()
    heading(name)
    chart = viz.pattern_heatmap(table, dark=dark, height=190)
    st.altair_chart(chart, width="stretch", key=f"pattern_{index}")
    rows, columns = analysis.block_size(len(queries), MOST_CELLS), analysis.block_size(len(keys), MOST_CELLS)
    if max(rows, columns) > 1:
        st.caption(
            f"{len(queries)} queries and {len(keys)} keys, put together into blocks of {rows} × {columns}: a cell is the "
            "share of its queries’ attention, on average, that goes to any of its keys."
        )
    lines = [
        "from xformer.analysis import positions as analysis",
        "from xformer.viz import positions as viz",
        f"queries, keys = {queries}, {keys}",
        f'table = analysis.pattern_table(trace, "{path}", {head}, queries, keys, {MOST_CELLS})',
        f"viz.pattern_heatmap(table, dark={dark}, height=190)",
    ]
    footer(view, lines, table, f"pattern{'-changed' if index else ''}", changed=index > 0)


def _moved(view: View, moved: pd.DataFrame) -> None:
    titles = [layer_title(path, is_pair=view.is_pair) for path in moved["layer"]]
    table, dark = moved.assign(where=titles, head=moved["head"] + 1), is_dark()
    heading("How far heads move")
    st.altair_chart(viz.moved_bars(table, dark=dark), width="stretch", key="moved")
    others = ""
    if len(table) > viz.MOST_HEADS:
        rest = table.nlargest(len(table), "moved")["moved"].iloc[viz.MOST_HEADS]
        others = f" The {viz.MOST_HEADS} of {len(table)} heads that move most; of the others none moves more than {rest:.2f}."
    st.caption(
        f"Each head’s attention when positions go off. 0: it looks where it looked before. 1: nothing of it is left where it "
        f"was.{others}"
    )
    (_, _, mask, rest), _ = _keys(view)
    more = "" if (mask, rest) == (resources.MASKS[0], "") else ", edits=given"
    lines = [
        "from xformer.analysis import positions as analysis",
        "from xformer.viz import positions as viz",
        *_given(mask, rest),
        f"before = xformer.record(checkpoint.model, trace.tokens, trace.target{more})",
        "off = [xformer.edits.zero_positions()]",
        f"after = xformer.record(checkpoint.model, trace.tokens, trace.target, edits={'given + off' if more else 'off'})",
        "moved = analysis.attention_moved(before, after)",
        f'table = moved.assign(where={titles}, head=moved["head"] + 1)',
        f"viz.moved_bars(table, dark={dark})",
    ]
    footer(view, lines, heads_from_1(table, 1), "moved", changed=view.is_changed)


def _given(mask: str, changes: str) -> list[str]:
    """The lines that name the other changes, under which positions are compared with none."""
    if (mask, changes) == (resources.MASKS[0], ""):
        return []
    causal = [] if mask == resources.MASKS[0] else [f"xformer.edits.set_causal({mask == 'causal'})"]
    every = [f'*all_edits(parse("{changes}", checkpoint.config))'] if changes else []
    return ["from xformer.interventions import all_edits, parse", f"given = [{', '.join(causal + every)}]"]
