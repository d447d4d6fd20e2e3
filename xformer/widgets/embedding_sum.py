"""The animation “token + position = sum”: how each token of an input becomes the vector that enters layer 1.

    from xformer.widgets.embedding_sum import embedding_sum
    embedding_sum(xformer.read("checkpoints/reverse", "3 7 12 9"))   # in a notebook

It shows at most `MAX_ROWS` tokens and `MAX_VALUES` numbers of each vector, all of them values of the run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import torch

from xformer.analysis.embeddings import input_vectors, is_the_sum
from xformer.reading import Reading
from xformer.viz.packing import visible
from xformer.viz.theme import DIVERGING, in_both_themes, signed_limit
from xformer.widgets.page import sum_page

MAX_ROWS = 20
MAX_VALUES = 64
SUM, INPUT = "sum: input of layer 1", "input of layer 1"


def embedding_sum_data(reading: Reading, *, stack: str | None = None, positions: Sequence[int] | None = None) -> bytes:
    """Pack the data of the animation for the first input of a reading, as JSON.

    Args:
        reading: The run.
        stack: "encoder" or "decoder", where a model has both.
        positions: The positions, from 0; the first `MAX_ROWS` by default.
    """
    parts, tokens = input_vectors(reading, stack), reading.tokens_of(stack)
    shown = list(range(len(tokens)) if positions is None else positions)[:MAX_ROWS]
    is_image = bool(reading.adapter.shape.image)
    ids = [None] * len(tokens) if is_image else reading.ids(stack)
    is_sum, what = is_the_sum(parts), "patch" if is_image else "token"
    titles = {"tokens": f"{what} vectors", "positions": "position vectors", "sum": SUM if is_sum else INPUT}
    drawn = torch.cat([vectors[shown].detach().float().cpu().flatten() for vectors in parts.values()])
    data = {
        "rows": [{"position": at, "token": visible(tokens[at]), "id": ids[at]} for at in shown],
        "columns": [_column(name, vectors[shown]) for name, vectors in parts.items()],
        "titles": [titles[name] for name in parts],
        "is_sum": is_sum,
        "limit": signed_limit(drawn.numpy()),
        "n": len(tokens),
        "what": "patches" if is_image else "tokens",
        "colours": in_both_themes(DIVERGING),
    }
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _column(name: str, vectors: torch.Tensor) -> dict[str, Any]:
    """Select numbers of each vector, evenly spaced over its dimensions."""
    width = vectors.shape[1]
    n = min(width, MAX_VALUES)
    dimensions = [index * width // n for index in range(n)]
    values = vectors[:, dimensions].detach().double().nan_to_num(0.0).tolist()
    rounded = [[float(f"{value:.5g}") for value in row] for row in values]
    return {"name": name, "dimensions": dimensions, "width": width, "values": rounded}


@dataclass(frozen=True)
class EmbeddingSum:
    """The animation as a notebook output."""

    page: str

    def _repr_html_(self) -> str:
        look = "width:100%;height:700px;border:0"
        return f'<iframe srcdoc="{escape(self.page)}" style="{look}" title="token + position = sum"></iframe>'


def embedding_sum(
    reading: Reading, *, stack: str | None = None, positions: Sequence[int] | None = None
) -> EmbeddingSum:
    """Show how tokens become vectors, as an animation in a notebook; the arguments are those of `embedding_sum_data`.

    Example:
        >>> import xformer
        >>> from xformer.widgets.embedding_sum import embedding_sum
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9")
        >>> "<iframe" in embedding_sum(reading)._repr_html_()
        True
    """
    return EmbeddingSum(sum_page(embedding_sum_data(reading, stack=stack, positions=positions)))
