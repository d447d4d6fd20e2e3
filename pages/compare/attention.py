"""Where the players looked when they decided a step: a layer's whole patterns with their difference, or every head's row."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from pages.compare.code import footer
from pages.compare.match import Match
from pages.shared.ask import seed
from pages.shared.layout import chart_spec, is_dark
from pages.shared.literal import literal
from pages.shared.notebook import heads_from_1
from xformer.analysis.deciding import MEAN, Moment, cells, look, rows_of, unlike
from xformer.site import Site
from xformer.viz.attention import layer_title
from xformer.viz.deciding import difference_map, look_chart, weight_map

ONE_LINE = 24
"""Characters of a title over one of three pictures; a longer name is given by its letter, so that they stand level."""
MOST_BLOCKS, MOST_KEYS = 32, 48
"""Rows and columns of a pattern, and keys of a row, that are drawn one by one; longer ones are drawn in blocks."""
MOST_HEADS = 16
"""Rows that are drawn of all; of more heads those that tell most."""
TELLING = 12
SAME = 1e-5
"""Differences of weights below this are float32's rounding."""


def patterns_panel(match: Match, step: int, one: Moment, other: Moment) -> dict[str, str]:
    """Draw where `one` and `other` looked, whole patterns of a layer; returns what the link keeps."""
    if reason := unlike(one, other):
        st.info(f"{literal(reason)} “each head” shows each player’s own.", icon=":material/compare_arrows:")
        return {}
    paths = list(one.attention_layers())
    is_pair = one.trace.target is not None
    seed("layer", paths, paths[-1], key="compare_layer")
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        path = st.segmented_control(
            "Layer",
            paths,
            label_visibility="collapsed",
            format_func=lambda name: layer_title(name, is_pair=is_pair),
            required=True,
            key="compare_layer",
            persist_state="session",
            width="content",
        )
        assert path is not None  # required, and one of them is set before it is drawn
        n_heads = one.trace[f"{path}.pattern"].shape[1]
        heads = ["mean", *map(str, range(1, n_heads + 1))] if n_heads > 1 else ["1"]
        seed("head", heads, heads[0], key="compare_head")
        asked = st.segmented_control(
            "Head",
            heads,
            label_visibility="collapsed",
            format_func=lambda head: "mean of heads" if head == "mean" else head,
            required=True,
            key="compare_head",
            persist_state="session",
            width="content",
        )
    assert asked is not None  # required, and one of them is set before it is drawn
    head = MEAN if asked == "mean" else int(asked) - 1
    frame = _cells(match, step, one, other, path, head)
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
    which = "the mean of its heads" if head == MEAN else f"head {head + 1}"
    size = frame["key_end"].iloc[0] - frame["key"].iloc[0] + 1
    blocks = (
        f" These are large patterns, so a cell stands for {size} queries and {size} keys: the weights on its keys are added "
        "up, and averaged over its queries."
        if size > 1
        else ""
    )
    st.caption(
        f"Who looks at whom in {layer_title(path, is_pair=is_pair)}, {which}: the row with ▶ decided {match.unit} {step}. In "
        f"the difference, blue is where the second looks more, orange where it looks less. Grey cells are masked.{blocks}"
    )
    a, b = (match.names.index(at.name) for at in (one, other))
    lines = [
        "from xformer.analysis.deciding import cells, moment",
        "from xformer.viz.deciding import pattern_maps",
        f"frame = cells(moment(plays[{a}], {step}), moment(plays[{b}], {step}), {path!r}, {head}, most={MOST_BLOCKS})",
        f"pattern_maps(frame, {one.name!r}, {other.name!r}, dark=False)",
    ]
    footer(match, lines, frame, "patterns")
    return {"layer": path, "head": asked}


def rows_panel(match: Match, step: int, one: Moment, other: Moment, everyone: Sequence[Moment]) -> None:
    """The row that decided, in every layer and head of every player; of many heads those in which `one` and `other` differ."""
    dark = is_dark()
    frames = {at.name: _look(match, at, step) for at in everyone}
    n_heads = max(len(frame.groupby(["layer", "head"])) for frame in frames.values())
    comparable = unlike(one, other) is None
    if is_many := n_heads > MOST_HEADS:
        pair = (frames[one.name], frames[other.name])
        frames = {name: rows_of(frame, *pair, comparable=comparable) for name, frame in frames.items()}
    st.markdown(_rows_told(match, step, one, other, is_many=is_many, comparable=comparable))
    groups = list(dict.fromkeys(_group(path) for frame in frames.values() for path in frame["layer"]))
    for group in groups:
        places = [place for _ in range(0, len(everyone), 2) for place in st.columns(2, gap="medium")]
        for index, (place, (name, frame)) in enumerate(zip(places, frames.items(), strict=False)):
            part = frame.loc[[_group(path) == group for path in frame["layer"]]]
            if part.empty:
                place.caption(f"{literal(name)} has no {group} here.")
                continue
            title = name if len(groups) == 1 else f"{name}: {group}"
            place.markdown(f"**{literal(title)}**")

            def draw(part: pd.DataFrame = part) -> object:
                return look_chart(part, dark=dark)

            spec = chart_spec(("compare look", match.order, step, title, group, one.name, other.name, dark), draw)
            place.vega_lite_chart(spec, theme="streamlit", width="stretch", key=f"compare_look_{group}_{index}")
    table = pd.concat([frame.assign(player=name) for name, frame in frames.items()])
    indices = [match.names.index(name) for name in frames]
    a, b = (match.names.index(at.name) for at in (one, other))
    lines = [
        "import altair as alt",
        "from xformer.analysis.deciding import look, moment, most_apart, rows_of",
        "from xformer.viz.deciding import look_chart",
        f"frames = {{players[i].name: look(moment(plays[i], {step}), most={MOST_KEYS}) for i in {indices}}}",
    ]
    if is_many:
        lines += [
            f"pair = frames[players[{a}].name], frames[players[{b}].name]",
            f"frames = {{name: rows_of(frame, *pair, comparable={comparable}, n={TELLING}) for name, frame in frames.items()}}",
        ]
    endings = tuple({_ending(group) for group in groups})
    lines += [
        f"parts = [(name, frame[frame['layer'].str.endswith(kind)]) for kind in {endings!r} for name, frame in frames.items()]",
        "alt.vconcat(*[look_chart(part, dark=False, title=name) for name, part in parts if len(part)])",
    ]
    footer(match, lines, heads_from_1(table, no_head="mean"), "rows")


def _rows_told(match: Match, step: int, one: Moment, other: Moment, *, is_many: bool, comparable: bool) -> str:
    """What the rows are, and which of them where not all are drawn."""
    what = f"**The row that decided {match.unit} {step}**"
    if not is_many:
        return f"{what}, in every layer and head."
    which = (
        f"in which {_letter(one)} and {_letter(other)} differ most"
        if comparable
        else "that look at one key most of all"
    )
    return (
        f"{what}, in the {TELLING} heads {which}; the CSV has the same rows, “where they looked” every layer and head."
    )


def _told(frame: pd.DataFrame, one: Moment, other: Moment, unit: str) -> str:
    """The largest difference of two patterns, in words."""
    largest = frame.loc[frame["difference"].abs().idxmax()]
    if abs(largest["difference"]) < SAME:
        both = f"{_letter(one)} and {_letter(other)}"
        return f"{both} look alike here, to within {SAME:g}: any difference is in what they do with it."
    row = frame.loc[frame["decides"]]
    here = row.loc[row["difference"].abs().idxmax()]
    is_pooled = largest["query"] != largest["query_end"]
    deciding = f"rows with the one that decided this {unit}" if is_pooled else f"row that decided this {unit}"
    return (
        f"The largest difference is {largest['difference']:+.3f}, from query {_span(largest, 'query')} to key "
        f"{_span(largest, 'key')}; in the {deciding} it is {here['difference']:+.3f}, to key {_span(here, 'key')}"
        + ("." if is_pooled else f" ({literal(str(here['key_token']))}).")
    )


def _span(row: pd.Series, at: str) -> str:
    """A position, or the block of positions from its first to its last."""
    first, last = row.to_dict()[at], row.to_dict()[f"{at}_end"]
    return str(first) if first == last else f"{first}–{last}"


def _letter(at: Moment) -> str:
    return at.name.split(" ")[0]


def _group(path: str) -> str:
    """Layers of one kind look at the same tokens and share a picture."""
    return Site.parse(path).does


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
    return cells(*_moments, path, head, most=MOST_BLOCKS)


def _look(match: Match, at: Moment, step: int) -> pd.DataFrame:
    return _cached_look(match.order, match.names, at.name, step, at)


@st.cache_data(max_entries=128, show_spinner=False)
def _cached_look(order: str, names: tuple[str, ...], name: str, step: int, _at: Moment) -> pd.DataFrame:
    return look(_at, most=MOST_KEYS)
