"""The picture of an atom mapping: product above, reactants below, and a line from each atom to where it came from."""

from __future__ import annotations

import altair as alt
import pandas as pd

from xformer.analysis.reactions import ARROW
from xformer.analysis.reactions import atom_mapping as mapping_table
from xformer.reading import Reading
from xformer.viz.charts import layered
from xformer.viz.theme import RIGHT, TEXT, WRONG

STEP = 26
"""Pixels from token to token."""


def atom_mapping(reading: Reading, *, layer: int, head: int, dark: bool = False) -> alt.TopLevelMixin:
    """`analysis.atom_mapping`: lines as strong as their weight; another colour and a dash where the elements do not agree.

    Args:
        reading: The run.
        layer: The layer, from 0.
        head: The head, from 0.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("models/rxnmapper", "CC(=O)O.OCC>>CC(=O)OCC")  # doctest: +SKIP
        >>> chart = xformer.viz.atom_mapping(reading, layer=10, head=5)  # doctest: +SKIP
    """
    frame = mapping_table(reading, layer=layer, head=head)
    tokens, at = reading.tokens, reading.tokens.index(ARROW)
    top, bottom = len(tokens) - at - 1, at
    width = max(top, bottom)
    x = {position: position - at - 1 + (width - top) / 2 for position in range(at + 1, len(tokens))}
    x |= {position: position + (width - bottom) / 2 for position in range(at)}
    words = pd.DataFrame(
        [{"x": x[i], "y": float(i > at), "token": token, "position": i} for i, token in enumerate(tokens) if i != at]
    )
    lines = frame.assign(
        x=[x[position] for position in frame["product"]], x2=[x[position] for position in frame["reactant"]], y=0.93, y2=0.07,
        elements=["the same" if agrees else "differ" for agrees in frame["agrees"]],
    )  # fmt: skip
    hover = [
        alt.Tooltip("product_token", title="atom of the product"),
        alt.Tooltip("reactant_token", title="atom of the reactants"),
        alt.Tooltip("weight:Q", format=".4f"),
        "elements:N",
    ]
    across = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[-1, width], nice=False))
    colours = alt.Scale(domain=["the same", "differ"], range=[RIGHT.colour[dark], WRONG.colour[dark]])
    dashes = alt.Scale(domain=["the same", "differ"], range=[[1, 0], [4, 3]])
    rules = alt.Chart(lines).mark_rule().encode(
        x=across, x2="x2:Q", y=alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-0.1, 1.1])), y2="y2:Q",
        color=alt.Color("elements:N", scale=colours, title="elements"), strokeDash=alt.StrokeDash("elements:N", scale=dashes),
        strokeWidth=alt.StrokeWidth("weight:Q", scale=alt.Scale(domain=[0, 1], range=[0.5, 4]), legend=None), tooltip=hover,
    )  # fmt: skip
    text = alt.Chart(words).mark_text(fontSize=13, color=TEXT[dark], fontWeight=600).encode(
        x=across, y="y:Q", text="token:N", tooltip=["token:N", "position:Q"]
    )  # fmt: skip
    return layered(rules, text, width=max(320, STEP * width), height=170)
