"""What a patch of an image, or the class token, looks at in layers and heads, as a table."""

from __future__ import annotations

import pandas as pd
from torch import Tensor

from xformer.analysis.attention_patterns import rollout_matrices
from xformer.errors import EditError, UnavailableError
from xformer.reading import Reading
from xformer.subjects.foreign.image_input import PatchedImage

CROWDED = 6
"""From so many heads on, a panel is called “2.3” for layer 2, head 3."""


def over_image(
    reading: Reading, *, query: int = 0, laid: str = "heads", layer: int | None = None, head: int | None = None
) -> pd.DataFrame:
    """What one position of a vision model looks at.

    Args:
        reading: A run on an image.
        query: The position that looks, from 0: the class token where there is one.
        laid: "heads", a panel a head and their mean in a row for each layer, or "rollout", a panel after each layer.
        layer: Only this attention layer, from 0.
        head: Only this head of each layer, from 0.

    Returns:
        One row a key: row and panel of the picture, place (the class token or a patch), weight of that key.

    Raises:
        UnavailableError: The model reads no image that is cut into patches.
        EditError: There is no such layer or head.
    """
    patch_grid(reading)
    panels = _rollout(reading, query) if laid == "rollout" else _heads(reading, query, layer, head)
    names = reading.tokens
    rows = [
        {"row": row, "panel": title, "place": name, "weight": weight}
        for row, title, weights in panels
        for name, weight in zip(names, weights, strict=True)
    ]
    return pd.DataFrame(rows)


def patch_grid(reading: Reading) -> tuple[int, int]:
    """Rows and columns of the patches of an image; they are its last positions.

    Raises:
        UnavailableError: The model reads no image that is cut into patches.
    """
    shape, of, n = reading.subject.shape, reading.subject.input, len(reading.ids())
    if shape.image:
        return shape.image // shape.patch, shape.image // shape.patch
    pixels = (reading.example.arguments or {}).get("pixel_values")
    if isinstance(of, PatchedImage) and isinstance(pixels, Tensor):
        rows, columns = (side // patch for side, patch in zip(pixels.shape[-2:], of.patch, strict=True))
        if rows * columns <= n:
            return rows, columns
    raise UnavailableError(f"{reading.subject.name} reads no image that is cut into patches.")


def _heads(reading: Reading, query: int, layer: int | None, head: int | None) -> list[tuple[int, str, list[float]]]:
    panels = []
    for at, site in enumerate(reading.sites):
        if layer is not None and at != layer:
            continue
        rows = reading[f"{site.path}.pattern"][0, :, query].float()  # [head, key]
        if head is not None and not 0 <= head < len(rows):
            raise EditError(f"Layer {at} has heads 0 to {len(rows) - 1}, got {head}.")
        of_layer = f"layer {at + 1} · head " if len(rows) < CROWDED or head is not None else f"{at + 1}."
        panels += [(at, f"{of_layer}{one + 1}", row.tolist()) for one, row in enumerate(rows) if head in (None, one)]
        if len(rows) > 1 and head is None:
            panels.append((at, f"{of_layer.removesuffix('head ')}mean", rows.mean(dim=0).tolist()))
    if not panels:
        raise EditError(f"This model has attention layers 0 to {len(reading.sites) - 1}, got {layer}.")
    return panels


def _rollout(reading: Reading, query: int) -> list[tuple[int, str, list[float]]]:
    reached = rollout_matrices(reading.trace)[:, query]  # [layer, key]
    return [(0, f"after layer {layer + 1}", row) for layer, row in enumerate(reached.tolist())]
