"""Draw how far apart what two runs believe is, along one text.

viz.beliefs_apart([one, other])
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from xformer.analysis.differences import beliefs_apart as beliefs_table
from xformer.reading import Reading
from xformer.viz import theme


def beliefs_apart(readings: Sequence[Reading], *, at: int | None = None, dark: bool = False) -> alt.Chart:
    """A bar a position: KL of what the first believes comes next from what the other does; `at` is marked."""
    table = beliefs_table(readings)
    places = [f"{position} {token}" for position, token in zip(table["position"], table["token"], strict=True)]
    table = table.assign(place=places, chosen=table["position"] == at)
    names = [reading.subject.name for reading in readings]
    x = alt.X(
        "place:N",
        sort=places,
        title=None,
        axis=alt.Axis(labelAngle=-60, labelLimit=110, labelOverlap=True),
    )
    tooltip = [
        alt.Tooltip("place:N", title="position"),
        alt.Tooltip("kl:Q", title="KL (nats)", format=".4g"),
        alt.Tooltip("kl_back:Q", title="KL the other way", format=".4g"),
        alt.Tooltip("total_variation:Q", title="total variation", format=".3f"),
    ]
    for which, name in zip(("one", "other"), names, strict=True):
        tooltip.append(alt.Tooltip(f"{which}_says:N", title=f"{name[:24]}: likeliest"))
        tooltip.append(alt.Tooltip(f"{which}_probability:Q", title=f"{name[:24]}: its probability", format=".3f"))
    colour = alt.condition(
        "datum.chosen",
        alt.value(theme.pick(theme.PART_HUES["positions"], dark)),
        alt.value(theme.pick(theme.PRIMARY, dark)),
    )
    y = alt.Y("kl:Q", title="KL (nats)")
    return alt.Chart(table).mark_bar().encode(x=x, y=y, color=colour, tooltip=tooltip).properties(height=220)
