"""HTML for notebooks: the representation of a reading, a checkpoint or a run, without scripts, in the notebook's text colour.

card("reverse", facts([("parameters", "84,948")]), curve(rows, "exact_match"))
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from xformer.pooling import block_size, max_pool

INK = bytes((62, 110, 228))
"""A colour that is legible on white and on black."""
BLUE = f"rgb({INK[0]} {INK[1]} {INK[2]})"


def card(title: str, *parts: str) -> str:
    """A frame with a title and parts below it; empty parts are left out."""
    inside = "".join(f'<div style="margin-top:.5em">{part}</div>' for part in parts if part)
    frame = "border:1px solid rgb(128 128 128 / .35);border-radius:8px;padding:.7em 1em;max-width:960px;overflow-x:auto"
    return f'<div style="{frame}"><b>{escape(title)}</b>{inside}</div>'


def text(line: str) -> str:
    """A line of untrusted text."""
    return f'<span style="opacity:.8">{escape(line)}</span>'


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """Names and values side by side; empty values and None are left out."""
    cells = "".join(
        f'<div><small style="opacity:.65">{escape(name)}</small><br>{escape(str(value))}</div>'
        for name, value in rows
        if value not in (None, "")
    )
    return f'<div style="display:flex;flex-wrap:wrap;gap:.4em 1.6em">{cells}</div>'


def scores(figures: Any, *names: str) -> list[tuple[str, str]]:
    """Selected scores of a model from an untrusted file, formatted; values that are not numbers are left out."""
    known = figures if isinstance(figures, dict) else {}
    numbers = {name: known[name] for name in (*names, "samples") if isinstance(known.get(name), (int, float))}
    return [
        (name.replace("_", " "), f"{n:,}" if name == "samples" else f"{n:.4f}" if name == "loss" else f"{n:.2%}")
        for name, n in numbers.items()
    ]


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A plain table."""
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def curve(rows: Any, name: str) -> str:
    """A small line chart of a fraction over the steps, from rows of an untrusted file; empty for fewer than two points."""
    known = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    pairs = [(row.get("step"), row.get(name)) for row in known]
    points = [(at, y) for at, y in pairs if type(at) is int and isinstance(y, (int, float)) and 0 <= y <= 1]
    if len(points) < 2:
        return ""
    first, last = points[0][0], points[-1][0]
    path = " ".join(f"{4 + 292 * (at - first) / (last - first or 1):.1f},{44 - 40 * y:.1f}" for at, y in points)
    line = f'<polyline points="{path}" fill="none" stroke="{BLUE}" stroke-width="2"/>'
    frame = '<path d="M4 4H296M4 44H296" stroke="rgb(128 128 128 / .4)" fill="none"/>'
    caption = escape(f"{name.replace('_', ' ')} from 0 to 1, over steps {first:,} to {last:,}")
    svg = f'<svg width="300" height="48" role="img" aria-label="{caption}">{frame}{line}</svg>'
    return f'{svg}<br><small style="opacity:.65">{caption}</small>'


TALL, WIDE, LARGEST, GAP = 560, 900, 44, 3
"""Sizes in pixels: the height and width of an overview, the largest side of a head in it, and the gap between heads."""


def head_overview(layers: Sequence[np.ndarray], longest: int = 0) -> str:
    """The patterns of all heads of a run as one image.

    Args:
        layers: The attention weights of each layer, [head, query, key].
        longest: The largest number of queries or keys of a layer, if `layers` holds maxima of blocks of cells.

    Returns:
        HTML with the image and a caption; empty if there are no layers.
    """
    if not layers:
        return ""
    most = max(len(layer) for layer in layers)
    side = max(8, min(LARGEST, TALL // len(layers), WIDE // most))
    rows = [np.concatenate([np.pad(_fitted(head, side), (0, GAP)) for head in layer], axis=1) for layer in layers]
    width = max(row.shape[1] for row in rows)
    pixels = np.concatenate([np.pad(row, ((0, 0), (0, width - row.shape[1]))) for row in rows])
    n_cells = max(max(layer.shape[1:]) for layer in layers)
    block = block_size(max(longest, n_cells), n_cells) * block_size(n_cells, side)
    caption = f"attention of {sum(map(len, layers))} heads: one row per layer; within a head, one row per query"
    if block > 1:
        caption += f"; each pixel is the largest weight of up to {block} × {block}"
    return (
        f'<img width="{width}" height="{len(pixels)}" style="image-rendering:pixelated;max-width:none" '
        f'alt="{caption}" src="data:image/png;base64,{b64encode(_png(pixels)).decode()}">'
        f'<br><small style="opacity:.65">{caption}</small>'
    )


def _fitted(weights: np.ndarray, side: int) -> np.ndarray:
    """Weights [query, key] as alpha from 0 to 255, on at most `side` pixels. A pixel shows the largest of its weights."""
    weights = max_pool(weights, side)
    times = max(1, side // max(weights.shape))
    grown = weights.repeat(times, axis=0).repeat(times, axis=1)
    return (20 + 235 * np.nan_to_num(grown).clip(0, 1)).astype(np.uint8)  # cells with weight 0 remain visible


def _png(alpha: np.ndarray) -> bytes:
    """A PNG image in one colour with the opacity `alpha` [row, column]."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = np.pad(alpha, ((0, 0), (1, 0))).tobytes()  # each line begins with filter type 0, none
    header = struct.pack(">IIBBBBB", alpha.shape[1], alpha.shape[0], 8, 3, 0, 0, 0)
    chunks = [chunk(b"IHDR", header), chunk(b"PLTE", INK * 256), chunk(b"tRNS", bytes(range(256)))]
    chunks += [chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
