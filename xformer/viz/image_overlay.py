"""Lay over an image what one of its patches, or the class token, looks at in every layer and head.

viz.over_image(reading, query=0, laid="rollout")
"""

from __future__ import annotations

import numpy as np

from xformer.analysis.image_overlay import over_image as overlay_table
from xformer.reading import Reading
from xformer.viz.images import Chart, overlay_chart, overlay_frame


def over_image(reading: Reading, *, query: int = 0, laid: str = "heads", dark: bool = False) -> Chart:
    """`analysis.over_image` on the pixels; the patch that does the looking has an outline."""
    table = overlay_table(reading, query=query, laid=laid)
    panels = [
        [(str(title), of["weight"].to_numpy()) for title, of in row.groupby("panel", sort=False)]
        for _, row in table.groupby("row", sort=False)
    ]
    pixels = reading.example.stream[0].numpy(force=True)  # [pixel]
    n_patches = len(reading.tokens) - 1
    patch = round((len(pixels) / n_patches) ** 0.5)
    what = "share" if laid == "rollout" else "attention"
    return overlay_chart(
        overlay_frame(np.asarray(pixels), panels, patch), dark=dark, what=what, query=reading.tokens[query]
    )
