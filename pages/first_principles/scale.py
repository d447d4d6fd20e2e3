"""First principle: why the scores are divided by √d, measured on numbers drawn now."""

from __future__ import annotations

import math

import pandas as pd
import streamlit as st

from pages.first_principles.sentence import PLACE, draw_again
from pages.shared.call import Call
from pages.shared.picture import footer, shown, table
from pages.shared.widgets import seed
from xformer import analysis, viz
from xformer.analysis.principles import N_KEYS, N_PAIRS, N_QUERIES, RAW, SCALED, WIDTHS, Sentence

TITLE = "Scale"


def scale_panel(sentence: Sentence) -> tuple[dict[str, str], list[str]]:
    """Draw the step; returns what the link keeps, and what to notice."""
    st.latex(
        r"\mathrm{Var}(q_i k_i) = 1 \;\Rightarrow\; \mathrm{Var}(q \cdot k) = \mathrm{Var}\Big(\sum_{i=1}^{d} q_i k_i\Big) = d "
        r"\;\Rightarrow\; \mathrm{Var}\big(q \cdot k / \sqrt{d}\big) = 1"
    )
    st.caption(
        "For independent entries of mean 0 and variance 1, variances of a sum add up: the wider the vectors, the larger "
        "their products, and the more the softmax picks a single key."
    )
    seed("dk", WIDTHS, 64, key="principle_dk")
    seed("scaled", (1, 0), 1, key="principle_scaled")
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        d = st.select_slider("d, the width of q and k", WIDTHS, key="principle_dk", persist_state="session", width=280)
        is_scaled = st.segmented_control(
            "Scale",
            (1, 0),
            format_func={1: "divide by √d", 0: "leave it out"}.__getitem__,
            required=True,
            key="principle_scaled",
            persist_state="session",
        )
        st.button("Draw again", icon=":material/casino:", key="principle_scale_redraw", on_click=draw_again)
    numbers = {"seed": sentence.seed}
    here = {"d": d, **numbers}
    row = Call(viz.softmax_row, (), {**here, "scaled": bool(is_scaled)})
    charts = {
        f"Variance of q · k**  \n:small[{N_PAIRS:,} pairs; dashed: d, 1]": Call(viz.product_variances, (), here),
        f"One query, {N_KEYS} keys, d = {d}**  \n:small[{'divided by √d' if is_scaled else 'no scale'}]": row,
        f"Gradient of the softmax**  \n:small[mean of {N_QUERIES} queries, {N_KEYS} keys]": Call(
            viz.softmax_saturation, (), here
        ),
    }
    for place, (title, call) in zip(st.columns(3, gap="medium"), charts.items(), strict=True):
        with place:
            st.markdown(f"**{title}")
            shown(PLACE, call, f"scale_{call.name}")
    measured = table(PLACE, analysis.product_variances, **numbers)
    saturated = table(PLACE, analysis.softmax_saturation, **numbers)
    footer(PLACE, "scale", list(charts.values()), lambda: measured.merge(saturated, on="d"))
    largest = max(table(PLACE, analysis.softmax_row, **row.options)["weight"].tolist())
    link = {"dk": str(d), "scaled": str(is_scaled)}
    return link, _notes(measured.set_index("d"), saturated.set_index(["d", "scale"]), d, largest)


def _notes(measured: pd.DataFrame, saturated: pd.DataFrame, d: int, largest: float) -> list[str]:
    here, raw, scaled = measured.loc[d], saturated.loc[(d, RAW)], saturated.loc[(d, SCALED)]
    narrow, wide = saturated.loc[(WIDTHS[0], RAW)], saturated.loc[(WIDTHS[-1], RAW)]
    return [
        f"At d = {d} the variance of q · k was measured as **{here['variance']:.4g}** (expected {d}, give or take "
        f"{here['error']:.2g}); divided by √{d} = {math.sqrt(d):.3g} it is **{here['scaled']:.3f}**.",
        f"Without the scale the largest of {N_KEYS} weights is {raw['largest']:.2f} on average at d = {d}, with it "
        f"{scaled['largest']:.2f}. (In the one row shown: {largest:.2f}.)",
        f"The gradient of a softmax is p (1 − p) at its largest, 1/4 at most. Without the scale it falls from "
        f"{narrow['gradient']:.3f} at d = {WIDTHS[0]} to {wide['gradient']:.3f} at d = {WIDTHS[-1]}; with it, it stays at "
        f"{saturated.loc[(WIDTHS[-1], SCALED)]['gradient']:.3f}. **A saturated softmax hardly learns.**",
        "The lines hold for entries that are independent, with mean 0 and variance 1, as fresh weights make them. "
        "Training is free to leave that behind.",
    ]
