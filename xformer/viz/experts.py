"""Draw which experts of a mixture each token takes.

viz.expert_weights(reading, layer=3)
"""

from __future__ import annotations

import altair as alt

from xformer.analysis.feed_forward import expert_weights as weights_table
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import layered
from xformer.viz.embeddings import rows_height
from xformer.viz.residual import flat_axis, place_labels


def expert_weights(
    reading: Reading, *, layer: int, title: str = "", dark: bool = False
) -> alt.LayerChart | alt.FacetChart:
    """A column for each position, a row for each expert; the colour is the weight, nothing where it is not taken."""
    table = weights_table(reading, layer=layer)
    stack = reading.feed_forward_site(layer).stack
    places = place_labels(reading.tokens_of(stack), sorted(table["position"].unique().tolist()))
    table = table.assign(place=[places[position] for position in table["position"]])
    n_experts = max(table["expert"].tolist()) + 1
    scale = alt.Scale(**theme.vega_scale(theme.sequential(dark), 0, max(1.0, *table["weight"].tolist())))
    base = alt.Chart(table).encode(
        alt.X("place:N", sort=list(places.values()), title="position · token read there", axis=flat_axis(len(places))),
        alt.Y("expert:O", title="expert", axis=alt.Axis(labelOverlap=True)),
        tooltip=[
            alt.Tooltip("place:N", title="position"),
            alt.Tooltip("expert:O"),
            alt.Tooltip("weight:Q", format=".4f"),
        ],
    )
    taken = base.transform_filter("datum.weight != 0")
    return layered(
        base.mark_rect(opacity=0),
        taken.mark_rect().encode(color=alt.Color("weight:Q", scale=scale, title="weight")),
        height=rows_height(n_experts, most=600, around=90),
        **({"title": title} if title else {}),
    )
