"""What carries the difference: parts of one player's run copied into the other's, one at a time, in both directions."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from pages.shared.ask import choose
from pages.shared.layout import chart_spec, is_dark
from pages.shared.literal import literal
from pages.shared.panels.compare_code import footer
from pages.shared.panels.compare_match import Match
from xformer.analysis.deciding import Moment
from xformer.analysis.patching import patching_both_ways
from xformer.errors import XformerError
from xformer.viz.patching import patching_chart

WHERE = {"here": "at the deciding position", "everywhere": "at all positions"}


def patching_panel(match: Match, step: int, one: Moment, other: Moment) -> dict[str, str]:
    """Draw both directions and the table; or say in one sentence why nothing can be copied."""
    where = choose("copied", WHERE, "here", "Copied", key="compare_copied", label_visibility="collapsed")
    link = {"copied": where}
    try:
        frame = _patching(match.order, match.names, step, one.name, other.name, where, (one, other))
    except XformerError as error:
        st.info(literal(str(error)), icon=":material/content_copy:")
        return link
    st.markdown(result(frame, one, other))
    dark = is_dark()
    for index, (place, (source, into)) in enumerate(
        zip(st.columns(2, gap="medium"), ((one, other), (other, one)), strict=True)
    ):
        part = _direction(frame, source)
        names = [at.name.split(" ")[0] for at in (source, into)]

        def draw(part: pd.DataFrame = part, names: list[str] = names) -> Any:
            short = part.assign(source=names[0], into=names[1])
            return patching_chart(short, dark=dark, title=f"Out of {names[0]}, into {names[1]}")

        spec = chart_spec(("compare patch", match.order, step, source.name, into.name, where, dark), draw)
        place.vega_lite_chart(spec, theme="streamlit", width="stretch", key=f"compare_patch_{index}")
    st.caption(
        "Share of the logit difference between the two answers that a copy restores: 0 leaves the run as it was, 1 makes it "
        "the other's; beyond both ends is possible. ⇒ marks a copy that turns the answer."
    )
    shown = frame.drop(columns="difference")
    st.dataframe(
        shown,
        hide_index=True,
        height=260,
        column_config={"restored": st.column_config.NumberColumn(format="%+.4f", help="The share that it carries.")},
        key="compare_patch_table",
    )
    a, b = (match.names.index(at.name) for at in (one, other))
    lines = [
        "from xformer.analysis.deciding import moment",
        "from xformer.analysis.patching import patching_both_ways",
        "from xformer.viz.patching import patching_chart",
        f"one, other = moment(plays[{a}], {step}), moment(plays[{b}], {step})",
        f"frame = patching_both_ways(one, other, everywhere={where == 'everywhere'})",
        f"patching_chart(frame[frame['source'] == players[{a}].name], dark=False)",
    ]
    footer(match, lines, frame, "patching")
    return link


def result(frame: pd.DataFrame, one: Moment, other: Moment) -> str:
    """What the copies say, in one sentence: the smallest part each way that carries most."""
    words = []
    for source, into in ((one, other), (other, one)):
        part = _direction(frame, source)
        heads = part[part["component"] != "residual"]
        best = (heads if len(heads) else part).iloc[0]
        a, b = (at.name.split(" ")[0] for at in (source, into))
        turns = (
            f" and turns the answer to {literal(str(best['says']))}"
            if best["turns"]
            else " and does not turn the answer"
        )
        words.append(
            f"**{best['part']}** of {a} copied into {b} restores {best['restored']:+.2f} of the difference{turns}"
        )
    return "; ".join(words) + "."


def _direction(frame: pd.DataFrame, source: Moment) -> pd.DataFrame:
    return frame[frame["source"] == source.name].reset_index(drop=True)


@st.cache_data(max_entries=32, show_spinner=False)
def _patching(
    order: str, names: tuple[str, ...], step: int, one: str, other: str, where: str, _moments: tuple[Moment, Moment]
) -> pd.DataFrame:
    return patching_both_ways(*_moments, everywhere=where == "everywhere")
