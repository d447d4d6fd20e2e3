"""Where the players looked when they decided a step: a layer's whole patterns with their difference, and every head."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from pages.shared.ask import seed
from pages.shared.layout import chart_spec, is_dark
from pages.shared.literal import literal
from pages.shared.panels.compare_code import footer
from pages.shared.panels.compare_match import Match
from xformer.analysis.deciding import MEAN, Moment, cells, look, unlike
from xformer.viz.attention import layer_title
from xformer.viz.deciding import difference_map, look_chart, weight_map

ONE_LINE = 24
"""Characters of a title over one of three pictures; a longer name is given by its letter, so that they stand level."""
MOST_CELLS = 48 * 48
"""Of a pattern: up to so many are drawn cell by cell; a larger one would take the browser seconds."""


def attention_panel(match: Match, step: int, one: Moment, other: Moment, everyone: Sequence[Moment]) -> dict[str, str]:
    """Draw where `one` and `other` looked, and the rows that decided of everyone; returns what the link keeps."""
    link: dict[str, str] = {}
    if reason := unlike(one, other):
        st.info(f"{literal(reason)} Each player's own rows are below.", icon=":material/compare_arrows:")
    else:
        link = _patterns(match, step, one, other)
    _rows(match, step, everyone)
    return link


def _patterns(match: Match, step: int, one: Moment, other: Moment) -> dict[str, str]:
    paths = list(one.attention_layers())
    is_pair = one.trace.target is not None
    seed("layer", paths, paths[-1], key="compare_layer")
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        path = st.segmented_control(
            "Layer",
            paths,
            format_func=lambda name: layer_title(name, is_pair=is_pair),
            required=True,
            key="compare_layer",
            persist_state="session",
            width="content",
        )
        n_heads = one.trace[f"{path}.pattern"].shape[1]
        heads = ["mean", *map(str, range(1, n_heads + 1))] if n_heads > 1 else ["1"]
        seed("head", heads, heads[0], key="compare_head")
        asked = st.segmented_control(
            "Head", heads, required=True, key="compare_head", persist_state="session", width="content"
        )
    head = MEAN if asked == "mean" else int(asked) - 1
    frame = _cells(match, step, one, other, path, head)
    which = "the mean of its heads" if head == MEAN else f"head {head + 1}"
    st.caption(
        f"Who looks at whom in {layer_title(path, is_pair=is_pair)}, {which}: the row with ▶ decided {match.unit} {step}. In "
        "the difference, blue is where the second looks more, orange where it looks less. Grey cells are masked."
    )
    if len(frame) > MOST_CELLS:
        st.info(
            f"These patterns have {len(frame):,} cells; the rows that decided stand below.", icon=":material/grid_on:"
        )
    else:
        dark = is_dark()
        pictures = {
            one.name: lambda: weight_map(frame, "one", dark=dark),
            other.name: lambda: weight_map(frame, "other", dark=dark),
            f"Difference: {_letter(other)} − {_letter(one)}": lambda: difference_map(frame, dark=dark),
        }
        about = ("compare cells", match.order, *match.names, step, one.name, other.name, path, head, dark)
        for index, (place, (name, draw)) in enumerate(zip(st.columns(3, gap="small"), pictures.items(), strict=True)):
            place.markdown(f"**{literal(name if len(name) <= ONE_LINE else name.split(' ')[0])}**")
            spec = chart_spec((*about, name), draw)
            place.vega_lite_chart(spec, theme="streamlit", width="stretch", key=f"compare_cells_{index}")
    st.caption(_told(frame, one, other, match.unit))
    a, b = (match.names.index(at.name) for at in (one, other))
    lines = [
        "from xformer.analysis.deciding import cells, moment",
        "from xformer.viz.deciding import difference_map, weight_map",
        f"frame = cells(moment(plays[{a}], {step}), moment(plays[{b}], {step}), {path!r}, {head})",
        "weight_map(frame, 'one', dark=False) | weight_map(frame, 'other', dark=False) | difference_map(frame, dark=False)",
    ]
    footer(match, lines, frame, "patterns")
    return {"layer": path, "head": asked}


def _rows(match: Match, step: int, everyone: Sequence[Moment]) -> None:
    """Every layer and head of every player: the row that decided."""
    st.markdown(f"**The row that decided {match.unit} {step}, in every layer and head**")
    dark = is_dark()
    # the mean of a single head is that head
    looks = [_look(match, at, step) for at in everyone]
    frames = [frame[frame["head"] != MEAN] if frame["head"].max() == 0 else frame for frame in looks]
    groups = list(dict.fromkeys(_group(path) for frame in frames for path in frame["layer"]))
    for group in groups:
        places = [place for _ in range(0, len(everyone), 2) for place in st.columns(2, gap="medium")]
        for index, (place, at, frame) in enumerate(zip(places, everyone, frames, strict=False)):
            part = frame[[_group(path) == group for path in frame["layer"]]]
            if part.empty:
                place.caption(f"{literal(at.name)} has no {group}.")
                continue
            title = at.name if len(groups) == 1 else f"{at.name}: {group}"
            place.markdown(f"**{literal(title)}**")

            def draw(part: pd.DataFrame = part) -> object:
                return look_chart(part, dark=dark)

            spec = chart_spec(("compare look", match.order, step, title, group, dark), draw)
            place.vega_lite_chart(spec, theme="streamlit", width="stretch", key=f"compare_look_{group}_{index}")
    table = pd.concat([frame.assign(player=at.name) for at, frame in zip(everyone, frames, strict=True)])
    a = match.names.index(everyone[0].name)
    lines = [
        "from xformer.analysis.deciding import look, moment",
        "from xformer.viz.deciding import look_chart",
        f"frame = look(moment(plays[{a}], {step}))  # of the first player shown; the others likewise",
        f"look_chart(frame[frame['layer'].str.endswith({_ending(groups[0])!r})], dark=False)",
    ]
    footer(match, lines, table, "rows")


def _told(frame: pd.DataFrame, one: Moment, other: Moment, unit: str) -> str:
    """The largest difference of two patterns, in words."""
    largest = frame.loc[frame["difference"].abs().idxmax()]
    if largest["difference"] == 0:
        both = f"{_letter(one)} and {_letter(other)}"
        return f"{both} look alike here, to the last bit: any difference is in what they do with it."
    row = frame[frame["decides"]]
    here = row.loc[row["difference"].abs().idxmax()]
    where = f"to key {here['key']} ({literal(str(here['key_token']))})"
    return (
        f"The largest difference is {largest['difference']:+.3f}, from query {largest['query']} to key {largest['key']}; "
        f"in the row that decided this {unit} it is {here['difference']:+.3f}, {where}."
    )


def _letter(at: Moment) -> str:
    return at.name.split(" ")[0]


def _group(path: str) -> str:
    """Layers of one kind look at the same tokens and share a picture."""
    return {"cross_attn": "cross-attention", "self_attn": "self-attention"}.get(path.split(".")[-1], "attention")


def _ending(group: str) -> str:
    return {"cross-attention": "cross_attn", "self-attention": "self_attn"}.get(group, "attn")


def _cells(match: Match, step: int, one: Moment, other: Moment, path: str, head: int) -> pd.DataFrame:
    return _cached_cells(match.order, match.names, step, one.name, other.name, path, head, (one, other))


@st.cache_data(max_entries=64, show_spinner=False)
def _cached_cells(
    order: str,
    names: tuple[str, ...],
    step: int,
    one: str,
    other: str,
    path: str,
    head: int,
    _moments: tuple[Moment, Moment],
) -> pd.DataFrame:
    return cells(*_moments, path, head)


def _look(match: Match, at: Moment, step: int) -> pd.DataFrame:
    return _cached_look(match.order, match.names, at.name, step, at)


@st.cache_data(max_entries=128, show_spinner=False)
def _cached_look(order: str, names: tuple[str, ...], name: str, step: int, _at: Moment) -> pd.DataFrame:
    return look(_at)
