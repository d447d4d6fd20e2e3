"""Draw how alike the places of an image's patches are: a grid of little maps, one in the place of each patch.

viz.patch_places(reading)
"""

from __future__ import annotations

import math

import altair as alt
import numpy as np

from xformer.analysis.images import patch_places as places_table
from xformer.reading import Reading
from xformer.viz.images import Chart, tile_map

GAP = 0.6
"""Between two little maps, in tiles."""


def patch_places(reading: Reading, *, unit: float = 20.0, dark: bool = False) -> Chart:
    """`analysis.patch_places` on the fixed scale from −1 to 1, tiles `unit` pixels wide, that of the patch itself framed."""
    table = places_table(reading)
    side = math.isqrt(math.isqrt(len(table)))
    row, column, y, x = np.unravel_index(np.arange(len(table)), (side,) * 4)
    x, y = column * (side + GAP) + x, row * (side + GAP) + y
    frame = table.assign(x=x, x2=x + 1, y=y, y2=y + 1)
    return tile_map(frame, "cosine", 1.0, ["patch:N", "other:N", alt.Tooltip("cosine:Q", format=".6f")], dark, unit)
