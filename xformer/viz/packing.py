"""Pack the attention patterns of a run into one block of bytes that a browser can draw without asking again.

    bytes = "XATT" · header length (uint32, little endian) · header (JSON, padded) · planes (uint8) · exact (float32)

A plane is one head in a byte a cell, above the byte budget pooled (xformer/viz/planes.py). The chosen head comes a
second time, exact, as float32 (masked: +inf, not a number: NaN).
"""

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from xformer.site import Site
from xformer.viz.planes import exact_block, factor, moved, planes_of
from xformer.viz.theme import DIVERGING, HEAD_HUES, SEQUENTIAL

MAGIC = b"XATT"

_SHOWN = str.maketrans({" ": "·", "\n": "↵", "\r": "↵", "\t": "⇥"})


@dataclass(frozen=True, eq=False)
class PatternLayer:
    """The attention of one layer as arrays and labels.

    `pattern` [head, query, key] holds weights, each row summing to 1; `allowed` (broadcastable to it) is False where
    the mask forbids to look. Rows are not checked: a broken layer has to be shown as it is. `z_size` is the mean length of
    each head's z over the queries, none where it is not known: a head whose z is 0 looks, but says nothing.
    Raises ValueError where shapes or labels do not agree.
    """

    name: str
    title: str
    pattern: Float[np.ndarray, "head query key"]
    allowed: Bool[np.ndarray, "#head #query #key"]
    query_labels: tuple[str, ...]
    key_labels: tuple[str, ...]
    z_size: tuple[float, ...] = ()

    @property
    def silenced(self) -> tuple[int, ...]:
        """The heads, from 0, that look at something and write nothing."""
        return tuple(
            head for head, size in enumerate(self.z_size) if size == 0 and np.nan_to_num(self.pattern[head]).any()
        )

    def __post_init__(self) -> None:
        shape = self.pattern.shape
        if len(shape) != 3 or 0 in shape:
            raise ValueError(f"A pattern has the axes [head, query, key], none of them empty; {self.name} has {shape}.")
        if (len(self.query_labels), len(self.key_labels)) != shape[1:]:
            raise ValueError(
                f"Every query and key needs one label; {self.name} has {shape[1]} queries and {shape[2]} keys but "
                f"{len(self.query_labels)} and {len(self.key_labels)} labels."
            )
        if self.allowed.dtype != np.bool_:
            raise ValueError(f"The mask is boolean, False where masked; {self.name} has {self.allowed.dtype}.")
        try:
            fits = np.broadcast_shapes(self.allowed.shape, shape) == shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(f"The mask has to broadcast to {shape}; {self.name} has {self.allowed.shape}.")


def pack(
    layers: Sequence[PatternLayer],
    changed: Sequence[PatternLayer] | None = None,
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

    floats = [exact_block(run[layer].pattern, run[layer].allowed, head) for run in runs]
    room = budget - sum(block.nbytes for block in floats)
    side = _side(layers, room // len(runs), max_thumbnail)

    labels: dict[tuple[str, tuple[str, ...]], int] = {}
    blocks: list[bytes] = []
    described: list[dict[str, Any]] = []
    offset = 0
    for index, item in enumerate(layers):
        heads, queries, keys = item.pattern.shape
        queried, looked_at = _sequences(item.name)
        record: dict[str, Any] = {
            "name": item.name, "title": item.title, "heads": heads, "queries": queries, "keys": keys,
            "queryLabels": labels.setdefault((queried, item.query_labels), len(labels)),
            "keyLabels": labels.setdefault((looked_at, item.key_labels), len(labels)),
            "pool": [factor(queries, side), factor(keys, side)], "runs": [],
        }  # fmt: skip
        for run in runs:
            planes, peaks = planes_of(run[index].pattern, run[index].allowed, side)
            sizes = [size if np.isfinite(size) else None for size in run[index].z_size]  # JSON has no infinity
            silenced = list(run[index].silenced)
            record["runs"].append({"offset": offset, "peaks": peaks.tolist(), "z": sizes, "silenced": silenced})
            record["rows"], record["cols"] = planes.shape[1:]
            blocks.append(planes.tobytes())
            offset += planes.size
        if changed is not None:
            record["moved"] = moved(item.pattern, runs[1][index].pattern).tolist()
        described.append(record)

    blocks.append(bytes(-offset % 4))
    exact = offset + (-offset % 4)
    body = b"".join([*blocks, *(block.tobytes() for block in floats)])
    header = {
        "layers": described, "labels": [[visible(text) for text in row] for _, row in labels],
        "selected": [layer, head], "exact": exact, "thumbnail": max_thumbnail,
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


def _check(runs: Sequence[tuple[PatternLayer, ...]], selected: tuple[int, int], max_thumbnail: int) -> None:
    layers = runs[0]
    if not layers:
        raise ValueError("There is nothing to pack: give at least one layer.")
    if max_thumbnail < 1:
        raise ValueError(f"A thumbnail has at least one cell a side; received max_thumbnail={max_thumbnail}, try 64.")
    layer, head = selected
    if not (0 <= layer < len(layers) and 0 <= head < layers[layer].pattern.shape[0]):
        raise ValueError(f"The selected (layer, head) has to exist; received {selected}, (0, 0) always does.")
    for run in runs[1:]:
        if [item.pattern.shape for item in run] != [item.pattern.shape for item in layers]:
            raise ValueError(
                "The changed run has to have the shapes of the original, "
                f"{[item.pattern.shape for item in layers]}; received {[item.pattern.shape for item in run]}."
            )


def _sequences(name: str) -> tuple[str, str]:
    """Which sequence the queries and which the keys come from: equal texts of encoder and decoder are not one."""
    site = Site.find(name)
    return (name, name) if site is None else (site.query_stack, site.key_stack)


def _side(layers: Sequence[PatternLayer], room: int, smallest: int) -> int:
    """The largest number of cells a plane may keep on either axis for all planes of a run to fit in `room` bytes."""
    longest = max(max(item.pattern.shape[1:]) for item in layers)
    sides = (-(-longest // divisor) for divisor in range(1, longest + 1))
    fits = (s for s in sides if s <= smallest or sum(_plane_bytes(item, s) for item in layers) <= room)
    return max(next(fits, smallest), smallest)


def _plane_bytes(item: PatternLayer, side: int) -> int:
    heads, queries, keys = item.pattern.shape
    return heads * -(-queries // factor(queries, side)) * -(-keys // factor(keys, side))
