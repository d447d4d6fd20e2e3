"""What a patch of an image, or the class token, looks at in every layer and head, as a table."""

from __future__ import annotations

import pandas as pd

from xformer.analysis.attention_rollout import rollout_matrices
from xformer.reading import Reading

CROWDED = 6
"""From so many heads on, a panel is called “2.3” for layer 2, head 3."""


def over_image(reading: Reading, *, query: int = 0, laid: str = "heads") -> pd.DataFrame:
    """One row a key: row and panel of the picture, place (the class token or a patch), weight of that key.

    `laid` is "heads", one panel a head and their mean in a row for each layer, or "rollout", a panel after each layer.
    """
    panels = _rollout(reading, query) if laid == "rollout" else _heads(reading, query)
    names = reading.tokens
    rows = [
        {"row": row, "panel": title, "place": name, "weight": weight}
        for row, title, weights in panels
        for name, weight in zip(names, weights, strict=True)
    ]
    return pd.DataFrame(rows)


def _heads(reading: Reading, query: int) -> list[tuple[int, str, list[float]]]:
    panels = []
    for layer, site in enumerate(reading.sites):
        rows = reading[f"{site.path}.pattern"][0, :, query].float()  # [head, key]
        of_layer = f"layer {layer + 1} · head " if len(rows) < CROWDED else f"{layer + 1}."
        panels += [(layer, f"{of_layer}{head + 1}", row.tolist()) for head, row in enumerate(rows)]
        if len(rows) > 1:
            panels.append((layer, f"{of_layer.removesuffix('head ')}mean", rows.mean(dim=0).tolist()))
    return panels


def _rollout(reading: Reading, query: int) -> list[tuple[int, str, list[float]]]:
    reached = rollout_matrices(reading.trace)[:, query]  # [layer, key]
    return [(0, f"after layer {layer + 1}", row) for layer, row in enumerate(reached.tolist())]
