"""When each player's answer was decided: the logit lens of all at the deciding position, the layer where two part marked."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from pages.compare.code import footer
from pages.compare.match import Match
from pages.shared.layout import chart_spec, is_dark
from pages.shared.literal import literal
from xformer.analysis.deciding import Moment, lens_at, lens_parting
from xformer.errors import InputError
from xformer.viz.deciding import lens_lanes


def lens_panel(match: Match, step: int, one: Moment, other: Moment, everyone: Sequence[Moment]) -> None:
    """Draw the lens of everyone at the position that decided a step; the rule is where `one` and `other` part."""
    frames = {at.name: lens_frame(match, step, at) for at in everyone}
    sentence, parting = lens_sentence(match, step, one, other)
    st.markdown(sentence)
    known = "✓ marks the right token, the" if any("right" in frame for frame in frames.values()) else "The"
    line = "; below the line the two differ to the end" if parting is not None else ""
    st.caption(
        "What the stream would say if it stopped there, from the embedding down to the output (the logit lens). "
        f"{known} colour how sure it is{line}."
    )
    shapes: dict[tuple[str, ...], dict[str, pd.DataFrame]] = {}
    for name, frame in frames.items():
        shapes.setdefault(tuple(frame["point"]), {})[name] = frame
    dark = is_dark()
    widths = [len(group) + 1 for group in shapes.values()]  # the names of the points take the room of a player
    for index, (place, group) in enumerate(zip(st.columns(widths, gap="medium"), shapes.values(), strict=True)):
        rule = parting if {one.name, other.name} <= set(group) else None

        def draw(group: dict[str, pd.DataFrame] = group, rule: tuple[int, str] | None = rule) -> object:
            return lens_lanes({name.split(" ")[0]: frame for name, frame in group.items()}, rule, dark=dark)

        spec = chart_spec(("compare lens", match.order, step, tuple(group), one.name, other.name, dark), draw)
        place.vega_lite_chart(spec, theme="streamlit", width="stretch", key=f"compare_lens_{index}")
    shown = next(iter(shapes.values()))
    indices = [match.names.index(name) for name in shown]
    both = {one.name, other.name} <= set(shown)
    lines = [
        "from xformer.analysis.deciding import lens_at, lens_parting, moment",
        "from xformer.viz.deciding import lens_lanes",
        f"frames = {{players[i].name.split(' ')[0]: lens_at(moment(plays[i], {step})) for i in {indices}}}",
        f"rule = lens_parting(frames[{one.name.split(' ')[0]!r}], frames[{other.name.split(' ')[0]!r}])"
        if both
        else "rule = None",
        "lens_lanes(frames, rule, dark=False)",
    ]
    footer(match, lines, pd.concat([frame.assign(player=name) for name, frame in frames.items()]), "lens")


def lens_frame(match: Match, step: int, at: Moment) -> pd.DataFrame:
    """The lens of one player at the position that decided a step."""
    return _lens(match.order, match.names, at.name, step, at)


def lens_sentence(match: Match, step: int, one: Moment, other: Moment) -> tuple[str, tuple[int, str] | None]:
    """Where the two part in the lens, in words and as `lens_parting` says it."""
    a, b = (at.name.split(" ")[0] for at in (one, other))
    left, right = lens_frame(match, step, one), lens_frame(match, step, other)
    try:
        parting = lens_parting(left, right)
    except InputError as error:
        return literal(str(error)), None
    if parting is None:
        return f"In the lens {a} and {b} end in the same likeliest token at {match.unit} {step}.", None
    depth, point = parting
    return (
        f"At {match.unit} {step} the likeliest tokens of {a} and {b} differ to the end from **{point}** on: "
        f"{literal(str(left['token'].iloc[depth]))} against {literal(str(right['token'].iloc[depth]))}.",
        parting,
    )


@st.cache_data(max_entries=128, show_spinner=False)
def _lens(order: str, names: tuple[str, ...], name: str, step: int, _at: Moment) -> pd.DataFrame:
    return lens_at(_at)
