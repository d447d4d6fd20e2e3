"""The running model with its positions switched off: what it says then, and how far its heads look elsewhere."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.shared import resources
from pages.shared.ask import choose
from pages.shared.layout import is_dark
from pages.shared.notebook import footer
from pages.shared.panels.prediction import prediction_lanes, prediction_sentence
from pages.shared.resources import Run
from pages.shared.session import toggle_intervention
from pages.shared.view import View
from xformer.analysis import positions as analysis
from xformer.interventions import join
from xformer.viz import positions as viz
from xformer.viz.attention import layer_title

OFF = "positions:off"
MOST = "most"


def positions_off_panel(view: View) -> str:
    """The switch, one head with and without positions, and all heads' moves; returns the head chosen, for the link."""
    what = "positions off" if view.on == {OFF} and view.mask == resources.MASKS[0] else view.what_changed()
    prediction_lanes(view, what)
    if view.checkpoint.config.positions == "none":
        st.info("This model has no positions that could be switched off.", icon=":material/info:")
        return MOST
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
    original, changed = view.original(), view.changed()
    without, off = with_and_without(view)
    moved = analysis.attention_moved(without.trace, off.trace)
    path, head, watch = _ask_head(view, moved)
    columns = st.columns([1, 1, 1] if changed is not None else [1, 1], gap="large")
    runs = [("as it is", original)] if changed is None else [("the model’s own run", original), (what, changed)]
    for index, (column, (name, run)) in enumerate(zip(columns, runs, strict=False)):
        with column:
            _attention(view, run, path, head, name, index)
    with columns[-1]:
        _moved(view, moved)
    return watch


def with_and_without(view: View) -> tuple[Run, Run]:
    """The run without and with positions off, under whatever else is changed."""
    rest = join(tuple(change for change in view.interventions if change.text != OFF))
    off = ",".join(word for word in (rest, OFF) if word)
    return (
        resources.run(view.model, view.source, view.mask, rest),
        resources.run(view.model, view.source, view.mask, off),
    )


def _ask_head(view: View, moved: pd.DataFrame) -> tuple[str, int, str]:
    """The head on show: the one that moves most, or the one chosen."""
    paths = list(dict.fromkeys(moved["layer"]))
    most = moved.loc[moved["moved"].idxmax()]
    names = {
        f"{paths.index(row.layer) + 1}.{row.head + 1}": (
            f"{layer_title(row.layer, is_pair=view.is_pair)} · head {row.head + 1}"
        )
        for row in moved.itertuples()
    }
    where = names[f"{paths.index(most['layer']) + 1}.{most['head'] + 1}"]
    options = {MOST: f"the one that moves most: {where}", **names}
    chosen = choose("watch", options, MOST, "Attention of", widget=st.selectbox, width=420)
    if chosen == MOST:
        return most["layer"], int(most["head"]), MOST
    layer, _, head = chosen.partition(".")
    return paths[int(layer) - 1], int(head) - 1, chosen


def _attention(view: View, run: Run, path: str, head: int, name: str, index: int) -> None:
    queries = view.reads(run, path.partition(".")[0])
    keys = view.reads(run) if path.endswith("cross_attn") else queries
    table = analysis.pattern_table(run.trace, path, head, queries, keys)
    st.markdown(f"**{layer_title(path, is_pair=view.is_pair)} · head {head + 1}**, {name}")
    st.altair_chart(viz.pattern_heatmap(table, dark=is_dark()), width="stretch", key=f"pattern_{index}")
    lines = [
        "from xformer.analysis import positions as analysis",
        "from xformer.viz import positions as viz",
        f"queries, keys = {queries}, {keys}",
        f'table = analysis.pattern_table(trace, "{path}", {head}, queries, keys)',
        "viz.pattern_heatmap(table, dark=False)",
    ]
    footer(view, lines, table, f"pattern{'-changed' if index else ''}", changed=index > 0)


def _moved(view: View, moved: pd.DataFrame) -> None:
    titles = [layer_title(path, is_pair=view.is_pair) for path in moved["layer"]]
    st.markdown("**How far each head’s attention moves** when positions go off")
    chart = viz.moved_bars(moved.assign(where=titles, head=moved["head"] + 1), dark=is_dark())
    st.altair_chart(chart, width="stretch", key="moved")
    st.caption("0: it looks where it looked before. 1: nothing of it is left where it was.")
    lines = [
        "from xformer.analysis import positions as analysis",
        "from xformer.viz import positions as viz",
        "off = xformer.record(checkpoint.model, trace.tokens, trace.target, edits=[xformer.edits.zero_positions()])",
        "moved = analysis.attention_moved(trace, off)",
        'table = moved.assign(where=moved["layer"], head=moved["head"] + 1)',
        "viz.moved_bars(table, dark=False)",
    ]
    footer(view, lines, moved, "moved", changed=False)
