"""Pack the attention patterns of a run into one block of bytes that a browser can draw without asking again.

    bytes = "XATT" · header length (uint32, little endian) · header (JSON, padded) · planes (uint8) · exact (float32)

A plane is one head in a byte a cell, above the byte budget pooled (xformer/viz/planes.py). Behind the planes of a layer stands
their first column once more, as it is without the first key, on which most of a large model's attention may rest. The chosen
head comes a second time, exact, as float32 (masked: +inf, not a number: NaN), pooled too where even one head is too large.
"""

import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from xformer.blocks import block_max
from xformer.site import Site
from xformer.viz.layers import AnyLayer, PatternLayer
from xformer.viz.theme import DIVERGING, HEAD_HUES, SEQUENTIAL

__all__ = ["AnyLayer", "PatternLayer", "header_of", "pack", "visible"]
MAGIC = b"XATT"

POWER = 2
"""How weights become bytes: see `xformer.viz.planes`."""
MOST_BYTES = 1_950_000
"""A head that is not exact within so many bytes is pooled."""
_SHOWN = str.maketrans({" ": "·", "\n": "↵", "\r": "↵", "\t": "⇥"})


def pack(
    layers: Sequence[AnyLayer],
    changed: Sequence[AnyLayer] | None = None,
    *,
    selected: tuple[int, int] = (0, 0),
    max_thumbnail: int = 64,
    budget: int = 1_400_000,
    first_head: int = 1,
    first_position: int = 0,
) -> bytes:
    """Pack the layers for the attention view; see the module for the layout.

    `changed` is the same layers under another mask or edit, shown next to the original. `selected` is the (layer,
    head) that carries exact values. Planes keep full resolution while they fit in `budget` bytes with the exact block,
    and are never pooled below `max_thumbnail` cells a side. Heads and positions are counted from `first_head` and
    `first_position` on the screen. Raises ValueError where the layers do not fit together.
    """
    layers = tuple(layers)
    runs = [layers] if changed is None else [layers, tuple(changed)]
    _check(runs, selected, max_thumbnail)
    layer, head = selected

    floats = [run[layer].exact(head) for run in runs]
    room = budget - sum(block.nbytes for block in floats)
    side = _side(layers, room // len(runs), max_thumbnail)
    floats, exact_pool = _fitted(floats, MOST_BYTES - len(runs) * sum(_plane_bytes(item, side) for item in layers))

    labels: dict[tuple[str, tuple[str, ...]], int] = {}
    blocks: list[bytes] = []
    described: list[dict[str, Any]] = []
    offset = 0
    for index, item in enumerate(layers):
        heads, queries, keys = item.shape
        queried, looked_at = _sequences(item.name)
        record: dict[str, Any] = {
            "name": item.name, "title": item.title, "heads": heads, "queries": queries, "keys": keys,
            "queryLabels": labels.setdefault((queried, item.query_labels), len(labels)),
            "keyLabels": labels.setdefault((looked_at, item.key_labels), len(labels)),
            "pool": list(item.pool(side)), "runs": [],
        }  # fmt: skip
        for run in runs:
            small = run[index].reduced(side)
            sizes = [size if np.isfinite(size) else None for size in run[index].z_size]  # JSON has no infinity
            record["runs"].append({
                "offset": offset, "peaks": small.peaks.tolist(), "restPeaks": small.rest_peaks.tolist(),
                "z": sizes, "silenced": list(run[index].silenced),
            })  # fmt: skip
            record["rows"], record["cols"] = small.planes.shape[1:]
            blocks += [small.planes.tobytes(), small.rest.tobytes()]
            offset += small.planes.size + small.rest.size
        if changed is not None:
            record["moved"] = runs[1][index].moved_from(item).tolist()
        described.append(record)

    blocks.append(bytes(-offset % 4))
    exact = offset + (-offset % 4)
    body = b"".join([*blocks, *(block.tobytes() for block in floats)])
    header = {
        "layers": described, "labels": [[visible(text) for text in row] for _, row in labels],
        "selected": [layer, head], "exact": exact, "thumbnail": max_thumbnail, "power": POWER, "exactPool": exact_pool,
        "firstHead": first_head, "firstPosition": first_position,
        "hues": HEAD_HUES, "sequential": SEQUENTIAL, "diverging": DIVERGING,
        "content": zlib.crc32(body[:offset]), "whole": zlib.crc32(body),
    }  # fmt: skip
    text = json.dumps(header, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    text += b" " * (-(len(text) + 8) % 8)  # the planes, and so the floats, start on a multiple of 8
    return MAGIC + struct.pack("<I", len(text)) + text + body


def header_of(packed: bytes) -> dict[str, Any]:
    """Return the header of packed patterns. Raises ValueError when the bytes do not come from `pack`."""
    if packed[:4] != MAGIC or len(packed) < 8:
        raise ValueError(f"Packed patterns begin with {MAGIC!r}; received {packed[:4]!r}.")
    (length,) = struct.unpack_from("<I", packed, 4)
    return json.loads(packed[8 : 8 + length])


def visible(text: str) -> str:
    """Return a token as it is shown: spaces as ·, breaks as ↵, the empty token as ∅, lone surrogates replaced."""
    clean = text.encode("utf-8", "replace").decode("utf-8") if any("\ud800" <= c <= "\udfff" for c in text) else text
    return clean.translate(_SHOWN) or "∅"


def _check(runs: Sequence[tuple[AnyLayer, ...]], selected: tuple[int, int], max_thumbnail: int) -> None:
    layers = runs[0]
    if not layers:
        raise ValueError("There is nothing to pack: give at least one layer.")
    if max_thumbnail < 1:
        raise ValueError(f"A thumbnail has at least one cell a side; received max_thumbnail={max_thumbnail}, try 64.")
    layer, head = selected
    if not (0 <= layer < len(layers) and 0 <= head < layers[layer].shape[0]):
        raise ValueError(f"The selected (layer, head) has to exist; received {selected}, (0, 0) always does.")
    for run in runs[1:]:
        if [item.shape for item in run] != [item.shape for item in layers]:
            raise ValueError(
                "The changed run has to have the shapes of the original, "
                f"{[item.shape for item in layers]}; received {[item.shape for item in run]}."
            )


def _sequences(name: str) -> tuple[str, str]:
    """Which sequence the queries and which the keys come from: equal texts of encoder and decoder are not one."""
    site = Site.find(name)
    return (name, name) if site is None else (site.query_stack, site.key_stack)


def _side(layers: Sequence[AnyLayer], room: int, smallest: int) -> int:
    """The largest number of cells a plane may keep on either axis for all planes of a run to fit in `room` bytes."""
    longest = max(max(item.shape[1:]) for item in layers)
    sides = (-(-longest // divisor) for divisor in range(1, longest + 1))
    fits = (s for s in sides if s <= smallest or sum(_plane_bytes(item, s) for item in layers) <= room)
    return max(next(fits, smallest), smallest)


def _plane_bytes(item: AnyLayer, side: int) -> int:
    heads, queries, keys = item.shape
    tall, wide = item.pool(side)
    return heads * -(-queries // tall) * -(-keys // wide)


def _fitted(blocks: list[np.ndarray], room: int) -> tuple[list[np.ndarray], list[int]]:
    """The exact blocks of a head in `room` bytes, and how many cells a side became one: their largest."""
    size = 1
    while sum(block[::size, ::size].nbytes for block in blocks) > max(room, 100_000):
        size += 1
    if size > 1:  # masked cells lose to all others
        low = [np.where(block == np.inf, -np.inf, block) for block in blocks]
        blocks = [block_max(block_max(block, size, axis=0), size, axis=1) for block in low]
        blocks = [np.where(block == -np.inf, np.inf, block).astype("<f4") for block in blocks]
    return blocks, [size, size]
