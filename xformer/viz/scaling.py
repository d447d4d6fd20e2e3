"""Draw why the scores are divided by √d: variances of products, and a softmax that saturates without the scale.

viz.product_variances(seed=3), viz.softmax_saturation(seed=3), viz.softmax_row(d=64, scaled=False)
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from xformer.analysis.principles import RAW, SCALED, WIDTHS
from xformer.analysis.principles import product_variances as variances_table
from xformer.analysis.principles import softmax_row as row_table
from xformer.analysis.principles import softmax_saturation as saturation_table
from xformer.viz import theme
from xformer.viz.charts import layered

HEIGHT = 300


def product_variances(*, d: int | None = None, seed: int = 0, dark: bool = False) -> alt.LayerChart | alt.FacetChart:
    """`analysis.product_variances` against the width, on logarithmic axes, with the lines d and 1 that they should lie on.

    `d` is the width with a line of its own.
    """
    frame = variances_table(seed=seed)
    measured = frame.melt("d", ["variance", "scaled"], "what", "value")
    names = {"variance": "q · k", "scaled": "q · k / √d"}
    measured["what"] = [names[what] for what in measured["what"]]
    theory = pd.concat(
        [
            pd.DataFrame({"d": frame["d"], "what": names["variance"], "value": frame["d"].astype(float)}),
            pd.DataFrame({"d": frame["d"], "what": names["scaled"], "value": 1.0}),
        ]
    )
    y = alt.Y(
        "value:Q",
        title="variance",
        scale=alt.Scale(type="log", domain=[0.5, 1024]),
        axis=alt.Axis(values=[1, 4, 16, 64, 256, 1024], format="d"),
    )
    colour = alt.Color(
        "what:N",
        title=None,
        scale=alt.Scale(domain=list(names.values()), range=[theme.head_hue(1, dark), theme.head_hue(0, dark)]),
        legend=alt.Legend(orient="top", symbolType="circle", symbolSize=90),
    )
    tooltip = [
        alt.Tooltip("d:Q"),
        alt.Tooltip("what:N", title="of"),
        alt.Tooltip("value:Q", format=".5f", title="variance"),
    ]
    layers: list[alt.Chart] = [
        alt.Chart(theory).mark_line(strokeDash=[5, 4], strokeWidth=1.5).encode(_width(), y, color=colour),
        alt.Chart(measured).mark_circle(size=70, opacity=1).encode(_width(), y, color=colour, tooltip=tooltip),
    ]
    return layered(*_here(d, dark), *layers, height=HEIGHT)


def softmax_saturation(
    *, what: str = "gradient", d: int | None = None, seed: int = 0, dark: bool = False
) -> alt.LayerChart | alt.FacetChart:
    """`analysis.softmax_saturation` with the scale and without: the "largest" weight, or the largest "gradient"."""
    frame = saturation_table(seed=seed)
    title, top = {
        "largest": ("largest weight of a row", 1.0),
        "gradient": ("largest p (1 − p)", 0.25),
    }[what]
    base = alt.Chart(frame).encode(
        _width(),
        alt.Y(f"{what}:Q", title=title, scale=alt.Scale(domain=[0, top])),
        color=alt.Color(
            "scale:N",
            title=None,
            scale=alt.Scale(domain=[RAW, SCALED], range=[theme.head_hue(1, dark), theme.head_hue(0, dark)]),
            legend=alt.Legend(orient="top", symbolStrokeWidth=4),
        ),
        tooltip=[alt.Tooltip("d:Q"), alt.Tooltip("scale:N"), alt.Tooltip(f"{what}:Q", format=".5f")],
    )
    return layered(
        *_here(d, dark), base.mark_line(strokeWidth=2.5), base.mark_circle(size=50, opacity=1), height=HEIGHT
    )


def softmax_row(*, d: int, scaled: bool = True, seed: int = 0, dark: bool = False) -> alt.LayerChart | alt.FacetChart:
    """The weights of `analysis.softmax_row` as bars from 0 to 1."""
    base = alt.Chart(row_table(d=d, scaled=scaled, seed=seed)).encode(
        alt.X("key:O", title="key", axis=alt.Axis(labelAngle=0)),
        alt.Y("weight:Q", title="weight", scale=alt.Scale(domain=[0, 1])),
        tooltip=[alt.Tooltip("key:O"), alt.Tooltip("score:Q", format=".4f"), alt.Tooltip("weight:Q", format=".6f")],
    )
    text = (
        base.transform_filter("datum.weight >= 0.05")
        .mark_text(dy=-8, color=theme.pick(theme.TEXT, dark))
        .encode(text=alt.Text("weight:Q", format=".2f"))
    )
    return layered(base.mark_bar(color=theme.head_hue(0, dark)), text, height=HEIGHT)


def _here(d: int | None, dark: bool) -> list[alt.Chart]:
    """A line at the width that is looked at."""
    if d is None:
        return []
    rule = alt.Chart(pd.DataFrame({"d": [d]})).mark_rule(
        color=theme.pick(theme.TEXT, dark), opacity=0.35, strokeWidth=2
    )
    return [rule.encode(_width())]


def _width() -> alt.X:
    return alt.X(
        "d:Q",
        title="d, the width of q and k",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(values=list(WIDTHS), format="d", grid=False, labelAngle=0),
    )
