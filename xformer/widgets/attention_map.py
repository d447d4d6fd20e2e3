"""The map of one head over a long input: scroll, drag or pinch from all cells to single ones; a click reads one query.

    summary = xformer.attention_summary(model, text)
    xformer.attention_map(summary, layer=3, head=2)                  in a notebook
    xformer.attention_map(summary, layer=3, head=2).save_html("map.html")

The page holds the largest weight of each block of 128 × 128 cells, and every single weight above a threshold that is as low as
the size of the file permits. It says so: a cell without a number is below the threshold.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xformer.analysis.long_inputs import head_sums
from xformer.files import write_atomically
from xformer.layer_path import layer_title
from xformer.long_inputs import AttentionSummary
from xformer.viz.packing import visible
from xformer.viz.theme import SEQUENTIAL, in_both_themes
from xformer.widgets.page import stand_alone_page

CELL_BYTES = 2_000_000
"""The largest size of the single weights, six bytes each; base64 adds a third, and a page stays below 4 MB."""
LEAST = 1e-4
"""Smaller weights are written as "under 0.01 %"."""
SIDE = 32
"""The largest number of rows and columns of the thumbnail of a head."""
LEVELS = 253
"""The code of the largest weight; codes are roots of shares of it."""


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The map as a notebook output, or a page that works without a network.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> "<iframe" in xformer.attention_map(summary, layer=2, head=1)._repr_html_()
        True
    """

    page: str
    threshold: float
    """Every weight above it is in the page; of smaller ones only the largest of each block."""

    def save_html(self, path: str | Path) -> None:
        """Write the map as one HTML file."""
        write_atomically(Path(path), self.page.encode())

    def _repr_html_(self) -> str:
        look = "width:100%;height:780px;border:0"
        return f'<iframe srcdoc="{escape(self.page)}" style="{look}" title="Attention over a long input"></iframe>'


def attention_map(summary: AttentionSummary, *, layer: int, head: int) -> AttentionMap:
    """Show the attention of one head over a long input as a map that can be enlarged to single cells.

    Args:
        summary: The sums of the run.
        layer: The attention layer, from 0.
        head: The head, from 0.

    Returns:
        The map: the output of a notebook's cell, or a file with `save_html`.

    Raises:
        EditError: There is no such layer or head.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> xformer.attention_map(summary, layer=2, head=1).threshold
        0.0
    """
    packed, threshold = map_data(summary, layer=layer, head=head)
    sums = summary.layer(layer)
    title = layer_title(summary.path(layer), is_encoder_decoder=summary.adapter.shape.is_encoder_decoder)
    caption = [
        f"{summary.adapter.name}, {title}, head {head + 1}: {sums.n_query:,} queries × {sums.n_key:,} keys.",
        f"Single weights above {threshold:.2g} are in this file, and of all others the largest in each block of {sums.block} × "
        f"{sums.block} cells."
        if threshold >= LEAST
        else f"Every weight{f' above {LEAST}' if threshold else ''} is in this file.",
    ]
    return AttentionMap(stand_alone_page("attention_map", "map", {"data": packed}, caption), threshold)


def map_data(summary: AttentionSummary, *, layer: int, head: int) -> tuple[bytes, float]:
    """Pack the map of one head and the thumbnails of all; return the threshold of single weights too.

    A header in JSON is followed by: the codes of blocks; the first cell of each query, uint32; the range of the keys that the
    mask permits to each, uint32; the keys, uint32, and the weights, float16, of the cells by query; codes of the thumbnails.
    """
    sums = summary.head(layer, head)
    rows, keys, weights, threshold = _largest_cells(summary, layer, head)
    blocks = sums.block_max[head].numpy()
    peak = float(blocks.max(initial=0.0))
    counts = np.bincount(rows, minlength=sums.n_query)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype("<u4")
    thumbnails, arrays = [], []
    measured = head_sums(summary).set_index(["layer", "head"])["entropy"].to_dict()
    for at, site in enumerate(summary.attention):
        one = summary.sums[site.path]
        title = layer_title(site.path, is_encoder_decoder=summary.adapter.shape.is_encoder_decoder)
        for number in range(len(one.block_max)):
            small = _thumbnail(one.block_max[number].numpy())
            thumbnails.append(
                {"layer": at, "head": number, "title": f"{title} · {number + 1}", "shape": list(small.shape)}
                | {"entropy": round(measured[site.path, number], 3)}
            )
            arrays.append(_codes(small, float(small.max(initial=0.0))))
    stacks = summary.adapter.shape.stacks_of(summary.attention[layer])
    header = {
        "layer": layer,
        "head": head,
        "shape": [sums.n_query, sums.n_key],
        "block": sums.block,
        "peak": peak,
        "threshold": threshold,
        "n_cells": len(keys),
        "queries": _tokens(summary, stacks[0], sums.n_query),
        "keys": _tokens(summary, stacks[1], sums.n_key) if stacks[0] != stacks[1] else None,
        "thumbnails": thumbnails,
        "colours": in_both_themes(SEQUENTIAL),
    }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    parts = [_codes(blocks, peak), starts.tobytes(), sums.permitted.numpy().astype("<u4").tobytes()]
    parts += [keys.astype("<u4").tobytes(), weights.astype("<f2").tobytes(), *arrays]
    return struct.pack("<II", 0, len(text)) + text + b"".join(parts), threshold


def _tokens(summary: AttentionSummary, stack: str | None, n: int) -> list[str]:
    tokens = () if stack is None else summary.tokens_of(stack)
    return [visible(one) for one in tokens] if len(tokens) == n else [str(at) for at in range(n)]


def _largest_cells(
    summary: AttentionSummary, layer: int, head: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], float]:
    """The largest weights of a head, with their queries and keys, ordered by query; and the smallest weight not left out."""
    most, threshold = CELL_BYTES // 6, 0.0
    found: list[tuple[NDArray[Any], ...]] = []
    for first, block in _row_blocks(summary, layer, head):
        rows, keys = np.nonzero(block > threshold)
        found.append((rows + first, keys, block[rows, keys]))
        if sum(len(one[0]) for one in found) > 2 * most:
            threshold = _cut(found, most)
    if sum(len(one[0]) for one in found) > most:
        threshold = _cut(found, most)
    rows, keys, weights = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return rows, keys, weights, threshold


def _cut(found: list[tuple[NDArray[Any], ...]], most: int) -> float:
    """Drop all but about `most` of the largest weights, and return the largest that was dropped."""
    weights = np.concatenate([one[2] for one in found])
    threshold = float(np.partition(weights, len(weights) - most - 1)[len(weights) - most - 1])
    found[:] = [tuple(part[weight > threshold] for part in (row, key, weight)) for row, key, weight in found]
    return threshold


def _row_blocks(summary: AttentionSummary, layer: int, head: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    sums = summary.layer(layer)
    step = max(1, 16_000_000 // sums.n_key)
    for first in range(0, sums.n_query, step):
        rows = slice(first, min(first + step, sums.n_query))
        yield first, summary.weights(layer, head=head, queries=rows).numpy()


def _thumbnail(blocks: NDArray[np.float32]) -> NDArray[np.float32]:
    """The maxima of at most `SIDE` × `SIDE` groups of blocks."""
    size = math.ceil(max(blocks.shape) / SIDE)
    padded = np.pad(blocks, [(0, -n % size) for n in blocks.shape])
    return padded.reshape(padded.shape[0] // size, size, padded.shape[1] // size, size).max(axis=(1, 3))


def _codes(weights: NDArray[np.float32], peak: float) -> bytes:
    """One byte for each weight: the root of its share of the largest."""
    return np.rint(LEVELS * np.sqrt(weights / (peak or 1.0))).clip(0, LEVELS).astype(np.uint8).tobytes()
