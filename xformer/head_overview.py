"""All heads of a run as one small image, for a notebook: a row for each layer, a column for each head."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from xformer.blocks import block_max, factor

TALL, WIDE, LARGEST, GAP = 560, 900, 44, 3
"""Pixels: of a whole overview, of the largest head in it, and between two."""
BLUE = bytes((62, 110, 228))
"""Reads on white and on black; a weight is how much of it there is."""


def head_overview(layers: Sequence[np.ndarray | Tensor], longest: int = 0) -> str:
    """All heads of a run as one image, made of one head at a time.

    Args:
        layers: The weights of each layer, [head, query, key].
        longest: The most queries or keys that a layer has, where the weights given are the largest of blocks already.

    Returns:
        HTML with the image and a sentence on it; nothing where there are no layers.
    """
    if not layers:
        return ""
    most = max(len(layer) for layer in layers)
    side = max(8, min(LARGEST, TALL // len(layers), WIDE // most))
    rows = [np.concatenate([_padded(_fitted(head, side)) for head in layer], axis=1) for layer in layers]
    width = max(row.shape[1] for row in rows)
    pixels = np.concatenate([np.pad(row, ((0, 0), (0, width - row.shape[1]))) for row in rows])
    given = max(max(layer.shape[1:]) for layer in layers)
    block = factor(max(longest, given), given) * factor(given, side)
    caption = f"attention of {sum(map(len, layers))} heads: a row for each layer; in a head a row for each query"
    if block > 1:
        caption += f"; a pixel is the largest weight of up to {block} × {block}"
    return (
        f'<img width="{width}" height="{len(pixels)}" style="image-rendering:pixelated;max-width:none" '
        f'alt="{caption}" src="data:image/png;base64,{b64encode(_png(pixels)).decode()}">'
        f'<br><small style="opacity:.65">{caption}</small>'
    )


def _fitted(head: np.ndarray | Tensor, side: int) -> np.ndarray:
    """Weights [query, key] as alpha from 0 to 255, on at most `side` pixels; of several in one pixel the largest counts."""
    weights = head.float().numpy(force=True) if isinstance(head, Tensor) else head
    for axis in (0, 1):
        weights = block_max(weights, factor(weights.shape[axis], side), axis)
    grown = weights.repeat(max(1, side // max(weights.shape)), axis=0).repeat(
        max(1, side // max(weights.shape)), axis=1
    )
    return (20 + 235 * np.nan_to_num(grown).clip(0, 1)).astype(np.uint8)  # an unused cell is still to be seen


def _padded(cell: np.ndarray) -> np.ndarray:
    return np.pad(cell, ((0, GAP), (0, GAP)))


def _png(alpha: np.ndarray) -> bytes:
    """An image of one colour, as strong as `alpha` [row, column] says."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = np.pad(alpha, ((0, 0), (1, 0))).tobytes()  # each line begins with 0: it stands as it is
    header = struct.pack(">IIBBBBB", alpha.shape[1], alpha.shape[0], 8, 3, 0, 0, 0)
    palette = chunk(b"PLTE", BLUE * 256) + chunk(b"tRNS", bytes(range(256)))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + palette
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )
