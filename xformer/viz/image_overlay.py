"""Lay over an image what one of its patches, or the class token, looks at.

viz.over_image(reading, query=0, laid="rollout")
viz.over_image(reading, layer=2, head=1)
"""

from __future__ import annotations

import base64
import io

from torch import Tensor

from xformer.adapters.image_input import PatchedImage
from xformer.analysis.images import over_image as overlay_table
from xformer.analysis.images import patch_grid
from xformer.reading import Reading
from xformer.viz.images import Chart, overlay_chart, overlay_frame

IN_A_LINE = 5
"""So many panels stand beside each other."""
SMALL, LARGE = 8.0, 14.0
"""How tall an image is in the units of the frame: one of several, and one alone."""


def over_image(
    reading: Reading,
    *,
    query: int = 0,
    laid: str = "heads",
    layer: int | None = None,
    head: int | None = None,
    top: float | None = None,
    dark: bool = False,
) -> Chart:
    """`analysis.over_image` on the pixels; the patch that does the looking has an outline.

    Digits are drawn as ink on tiles on a scale from 0 to 1. A photograph is drawn in grey under tiles that are the more
    opaque the larger their weight, up to `top`, or to the largest weight of a patch.
    """
    table = overlay_table(reading, query=query, laid=laid, layer=layer, head=head)
    of_rows = [
        [(str(title), of["weight"].to_numpy()) for title, of in row.groupby("panel", sort=False)]
        for _, row in table.groupby("row", sort=False)
    ]
    lines = [of_row[at : at + IN_A_LINE] for of_row in of_rows for at in range(0, len(of_row), IN_A_LINE)]
    rows, columns = patch_grid(reading)
    height = SMALL if len(lines[0]) > 1 or reading.subject.shape.image else LARGE
    names, patch = reading.tokens, height / rows
    ink = reading.example.stream[0].numpy(force=True) if reading.subject.shape.image else None  # [pixel]
    frame = overlay_frame(lines, names, (rows, columns), patch, ink)
    what = "share" if laid == "rollout" else "attention"
    photograph = None if ink is not None else photograph_url(reading)
    return overlay_chart(frame, dark=dark, what=what, query=names[query], photograph=photograph, top=top)


def photograph_url(reading: Reading) -> str:
    """The image that a vision model saw, in grey, as the address of its data."""
    from PIL import Image

    of = reading.subject.input
    assert isinstance(of, PatchedImage)
    pixels = (reading.example.arguments or {})["pixel_values"]
    assert isinstance(pixels, Tensor)
    file = io.BytesIO()
    Image.fromarray(of.shown(pixels[0])).convert("L").save(file, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
