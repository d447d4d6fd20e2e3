"""Draw what carries a difference: how much of it each copied activation restores.

viz.patching([one, other], out_of=0)
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from xformer.analysis.activation_patching import patching as patching_table
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import layered
from xformer.viz.generation import Drawing, short_names


def patching(
    readings: Sequence[Reading],
    *,
    everywhere: bool = False,
    out_of: int = 0,
    max_parts: int = 20,
    table: pd.DataFrame | None = None,
    dark: bool = False,
) -> Drawing:
    """The `max_parts` parts of one reading that tell most as bars; 0 leaves the other run as it was, 1 is this one's.

    Heads have their own hues, the other parts those of their kind; ⇒ marks a copy that turns the answer, and to what. `table`
    is that of `analysis.patching` where it has been made already.
    """
    table = patching_table(readings, everywhere=everywhere) if table is None else table
    whole = [reading.subject.name for reading in (readings[out_of], readings[1 - out_of])]
    names = short_names(whole)
    source, into = (names[name] for name in whole)
    shown = table.loc[table["source"] == whole[0]].head(max_parts)
    data = shown.assign(
        hue=[_hue(row, dark) for row in shown.to_dict("records")],
        text=[
            f"{share:+.2f}  ⇒ {says}" if turns else f"{share:+.2f}"
            for share, says, turns in zip(shown["restored"], shown["says"], shown["turns"], strict=True)
        ],
        turned=["yes" if turns else "no" for turns in shown["turns"]],
    )
    shares = data["restored"].tolist()
    low, high = min(0.0, *shares), max(1.0, *shares)
    room = 0.22 * (high - low)
    name = f"share restored: {source} → {into}"
    x = alt.X(
        "restored:Q", title=name, scale=alt.Scale(domain=[low - (room if low < 0 else 0), high + room], nice=False)
    )
    y = alt.Y(
        "part:N", sort=data["part"].tolist(), title="what is copied", axis=alt.Axis(labelLimit=260, labelOverlap=False)
    )
    base = alt.Chart(data).encode(
        x,
        y,
        tooltip=[
            alt.Tooltip("part:N"),
            alt.Tooltip("restored:Q", title="share restored", format="+.6f"),
            alt.Tooltip("difference:Q", title="logit difference", format="+.6f"),
            alt.Tooltip("says:N", title="now says"),
            alt.Tooltip("turned:N", title="answer turns"),
        ],
    )
    ink = theme.pick(theme.TEXT, dark)
    number = {"fontSize": 12, "color": ink}
    ends = pd.DataFrame({"at": [0.0, 1.0], "is": [f"{into} as it was", f"as in {source}"]})
    rules = (
        alt.Chart(ends)
        .mark_rule(color=ink, strokeDash=[4, 3])
        .encode(alt.X("at:Q", title=name), tooltip=alt.Tooltip("is:N"))
    )
    return layered(
        rules,
        base.mark_bar().encode(alt.Color("hue:N", scale=None)),
        base.transform_filter("datum.restored >= 0")
        .mark_text(align="left", dx=5, **number)
        .encode(text=alt.Text("text:N")),
        base.transform_filter("datum.restored < 0")
        .mark_text(align="right", dx=-5, **number)
        .encode(text=alt.Text("text:N")),
        height=24 * len(data) + 144,
        title=f"Out of {source}, into {into}",
    )


def _hue(row: dict[str, object], dark: bool) -> str:
    head, component = row["head"], str(row["component"])
    if isinstance(head, int) and head:
        return theme.head_hue(head - 1, dark)
    kind = {"residual": "sum", "feed-forward": "feed_forward"}.get(component, "attention")
    return theme.pick(theme.PART_HUES[kind], dark)
