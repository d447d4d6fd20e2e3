"""Draw waves in the embeddings of numbers: how much turns how often, and the numbers in the plane of one frequency.

viz.spectrum(reading)
viz.circle(reading, frequency=17)
"""

from __future__ import annotations

import altair as alt

from xformer.analysis.number_waves import circle as circle_table
from xformer.analysis.number_waves import spectrum as spectrum_table
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import label_layers, layered, place_labels

HEIGHT_OF_SPECTRUM, SIDE_OF_CIRCLE = 300, 330
MOST_TICKS = 15
"""So many numbers stand under an axis."""


def spectrum(
    reading: Reading, *, stack: str | None = None, chosen: int | None = None, dark: bool = False
) -> alt.LayerChart | alt.FacetChart:
    """The shares of `analysis.spectrum`; the dashed line is the most that any shuffle showed, `chosen` has a frame.

    Args:
        reading: The run.
        stack: "encoder" or "decoder", where a model has both.
        chosen: The frequency with a frame.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> modular = xformer.read("checkpoints/modular", "7 12")
        >>> chart = xformer.viz.spectrum(modular)
    """
    table = spectrum_table(reading, stack=stack)
    quiet, loud = theme.pick(theme.PART_HUES["tokens"], dark), theme.pick(theme.PRIMARY, dark)
    ink = theme.pick(theme.TEXT, dark)
    every = -(-len(table) // MOST_TICKS)
    base = alt.Chart(table).encode(
        x=alt.X(
            "frequency:O",
            title="frequency: turns over all numbers",
            axis=alt.Axis(labelAngle=0, values=[k for k in table["frequency"].tolist() if (k - 1) % every == 0]),
        ),
        tooltip=[
            "frequency:O",
            alt.Tooltip("period:Q", title="numbers for one turn", format=".4~g"),
            alt.Tooltip("share:Q", format=".4%"),
            alt.Tooltip("chance:Q", title="most by chance", format=".4%"),
        ],
    )
    y = alt.Y("share:Q", title="share of the variance", axis=alt.Axis(format="%"))
    line = alt.Chart(table.head(1)).encode(y="chance:Q")
    layers = [
        base.mark_bar().encode(y=y, color=alt.condition("datum.above_chance", alt.value(loud), alt.value(quiet))),
        line.mark_rule(strokeDash=[5, 4], color=ink),
        line.mark_text(align="right", baseline="bottom", dy=-3, color=ink, fontSize=12).encode(
            x=alt.value("width"), text=alt.value("most by chance")
        ),
    ]
    if chosen is not None:
        framed = base.transform_filter(alt.datum.frequency == chosen)
        layers.append(framed.mark_bar(filled=False, stroke=ink, strokeWidth=2).encode(y=y))
    return layered(*layers, height=HEIGHT_OF_SPECTRUM)


def circle(
    reading: Reading, *, frequency: int, stack: str | None = None, dark: bool = False
) -> alt.LayerChart | alt.FacetChart:
    """The numbers of `analysis.circle` in the plane of a frequency, as wide as it is high.

    Args:
        reading: The run.
        frequency: The frequency, in turns over all numbers.
        stack: "encoder" or "decoder", where a model has both.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> modular = xformer.read("checkpoints/modular", "7 12")
        >>> chart = xformer.viz.circle(modular, frequency=4)
    """
    table = circle_table(reading, frequency=frequency, stack=stack)
    x, y = "cosine_axis", "sine_axis"
    points = table[[x, y]].to_numpy()
    limit = 1.18 * max(abs(points).max().item(), 1e-12)
    scale = alt.Scale(domain=[-limit, limit], nice=False)
    inside = SIDE_OF_CIRCLE * float(max(points.max(axis=0) - points.min(axis=0))) / (2 * limit)
    sides = place_labels(points, table["number"].tolist(), width=inside, height=inside)
    hue, ink = theme.pick(theme.PRIMARY, dark), theme.pick(theme.TEXT, dark)
    base = alt.Chart(table.assign(side=sides)).encode(
        x=alt.X(f"{x}:Q", title=f"cosine of frequency {frequency}", scale=scale),
        y=alt.Y(f"{y}:Q", title=f"sine of frequency {frequency}", scale=scale),
        tooltip=[
            "number:N",
            alt.Tooltip("radius:Q", title="distance from the middle", format=".4g"),
            alt.Tooltip("phase:Q", title="phase (turns)", format=".3f"),
        ],
    )
    dots = base.mark_circle(size=50, color=hue, opacity=0.8)
    names = label_layers(base, "number:N", color=ink)
    return layered(dots, *names, width=SIDE_OF_CIRCLE, height=SIDE_OF_CIRCLE)
