"""First principle: why the scores are divided by √d, measured on numbers drawn now."""

from __future__ import annotations

import math

import pandas as pd
import streamlit as st

from pages.first_principles.sentence import Sentence
from pages.shared.ask import seed
from pages.shared.layout import is_dark
from pages.shared.notebook import code_and_data
from xformer.analysis import principles
from xformer.viz.principles import RAW, SCALED, saturation_chart, variance_chart, weight_bars

TITLE = "Scale"
POWERS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
SAMPLES, ROWS, KEYS = 2000, 200, 8


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
    seed("dk", POWERS, 64, key="principle_dk")
    seed("scaled", (1, 0), 1, key="principle_scaled")
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        d = st.select_slider("d, the width of q and k", POWERS, key="principle_dk", persist_state="session", width=280)
        is_scaled = st.segmented_control(
            "Scale",
            (1, 0),
            format_func={1: "divide by √d", 0: "leave it out"}.__getitem__,
            required=True,
            key="principle_scaled",
            persist_state="session",
        )
        st.button("Draw again", icon=":material/casino:", key="principle_scale_redraw", on_click=_redraw)
    measured, saturated = _measured(sentence.seed)
    scores, weights = principles.one_row(d, KEYS, scaled=bool(is_scaled), seed=sentence.seed)
    row = pd.DataFrame({"key": range(KEYS), "score": scores.tolist(), "weight": weights.tolist()})
    dark = is_dark()
    left, middle, right = st.columns(3, gap="medium")
    with left:
        st.markdown(f"**Variance of q · k**  \n:small[{SAMPLES:,} pairs; dashed: d, 1]")
        st.altair_chart(variance_chart(measured, dark=dark, d=d), width="stretch", key="scale_variance")
    with middle:
        st.markdown(f"**One query, {KEYS} keys, d = {d}**  \n:small[{'divided by √d' if is_scaled else 'no scale'}]")
        st.altair_chart(weight_bars(row, dark=dark), width="stretch", key="scale_row")
    with right:
        st.markdown(f"**Gradient of the softmax**  \n:small[mean of {ROWS} queries, {KEYS} keys]")
        st.altair_chart(saturation_chart(saturated, "gradient", dark=dark, d=d), width="stretch", key="scale_gradient")
    code = [
        "from xformer.analysis import principles",
        "from xformer.viz.principles import *",
        f"measured = principles.product_variances({list(POWERS)}, samples={SAMPLES}, seed={sentence.seed})",
        f"saturated = principles.saturation({list(POWERS)}, {KEYS}, samples={ROWS}, seed={sentence.seed})",
        'variance_chart(measured, dark=False) | saturation_chart(saturated, "gradient", dark=False)',
    ]
    code_and_data(code, measured.merge(saturated, on="d"), "scale", "first-principles")
    link = {"dk": str(d), "scaled": str(is_scaled)}
    return link, _notes(measured.set_index("d"), saturated.set_index(["d", "scale"]), d, weights.max().item())


@st.cache_data(max_entries=128, show_spinner=False)
def _measured(seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    return (
        principles.product_variances(POWERS, SAMPLES, seed),
        principles.saturation(POWERS, KEYS, ROWS, seed),
    )


def _redraw() -> None:
    st.session_state["principle_seed"] = st.session_state["principle_seed"] % 99 + 1


def _notes(measured: pd.DataFrame, saturated: pd.DataFrame, d: int, largest: float) -> list[str]:
    here, raw, scaled = measured.loc[d], saturated.loc[(d, RAW)], saturated.loc[(d, SCALED)]
    narrow, wide = saturated.loc[(POWERS[0], RAW)], saturated.loc[(POWERS[-1], RAW)]
    return [
        f"At d = {d} the variance of q · k was measured as **{here['variance']:.4g}** (expected {d}, give or take "
        f"{here['error']:.2g}); divided by √{d} = {math.sqrt(d):.3g} it is **{here['scaled']:.3f}**.",
        f"Without the scale the largest of {KEYS} weights is {raw['largest']:.2f} on average at d = {d}, with it "
        f"{scaled['largest']:.2f}. (In the one row shown: {largest:.2f}.)",
        f"The gradient of a softmax is p (1 − p) at its largest, 1/4 at most. Without the scale it falls from "
        f"{narrow['gradient']:.3f} at d = {POWERS[0]} to {wide['gradient']:.3f} at d = {POWERS[-1]}; with it, it stays at "
        f"{saturated.loc[(POWERS[-1], SCALED)]['gradient']:.3f}. **A saturated softmax hardly learns.**",
        "The lines hold for entries that are independent, with mean 0 and variance 1, as fresh weights make them. "
        "Training is free to leave that behind.",
    ]
