"""Pack the attention patterns of a run into one block of bytes that a browser can draw without asking again.

    bytes = "XATT" · header length (uint32, little endian) · header (JSON, padded) · planes (uint8) · exact (float32)

A *plane* is one head: each cell q stands for q / 253 · peak, where the peak is that head's largest weight, so that a
weight is off by at most peak / 506. Two values are reserved: 255 is a masked cell, 254 a cell that is not a number.
Above the byte budget planes are pooled by their maximum, so that no peak is lost. The chosen head comes a second time,
exact, as float32 (masked: +inf, not a number: NaN).
"""

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8

from xformer.viz.theme import DIVERGING, HEAD_HUES, SEQUENTIAL

MAGIC = b"XATT"
LEVELS, NAN, MASKED = 253, 254, 255

_SHOWN = str.maketrans({" ": "·", "\n": "↵", "\r": "↵", "\t": "⇥"})


@dataclass(frozen=True, eq=False)
class PatternLayer:
    """The attention of one layer as arrays and labels.

    `pattern` [head, query, key] holds weights, each row summing to 1; `allowed` (broadcastable to it) is False where
    the mask forbids to look. Rows are not checked: a broken layer has to be shown as it is.
    Raises ValueError where shapes or labels do not agree.
    """

    name: str
    title: str
    pattern: Float[np.ndarray, "head query key"]
    allowed: Bool[np.ndarray, "#head #query #key"]
    query_labels: tuple[str, ...]
    key_labels: tuple[str, ...]

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

    floats = [_exact(run[layer], head) for run in runs]
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
            "pool": [_factor(queries, side), _factor(keys, side)], "runs": [],
        }  # fmt: skip
        for run in runs:
            planes, peaks = _planes(run[index], side)
            record["runs"].append({"offset": offset, "peaks": peaks.tolist()})
            record["rows"], record["cols"] = planes.shape[1:]
            blocks.append(planes.tobytes())
            offset += planes.size
        if changed is not None:
            record["moved"] = _moved(item.pattern, runs[1][index].pattern).tolist()
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
    stack = name.split(".")[0]
    return stack, "encoder" if name.endswith("cross_attn") else stack


def _side(layers: Sequence[PatternLayer], room: int, smallest: int) -> int:
    """The largest number of cells a plane may keep on either axis for all planes of a run to fit in `room` bytes."""
    longest = max(max(item.pattern.shape[1:]) for item in layers)
    sides = (-(-longest // divisor) for divisor in range(1, longest + 1))
    fits = (s for s in sides if s <= smallest or sum(_plane_bytes(item, s) for item in layers) <= room)
    return max(next(fits, smallest), smallest)


def _factor(cells: int, side: int) -> int:
    return -(-cells // side)


def _plane_bytes(item: PatternLayer, side: int) -> int:
    heads, queries, keys = item.pattern.shape
    return heads * -(-queries // _factor(queries, side)) * -(-keys // _factor(keys, side))


def _planes(item: PatternLayer, side: int) -> tuple[UInt8[np.ndarray, "head row col"], Float[np.ndarray, " head"]]:
    """q = round(253 · pattern / peak) of the maximum of each block; the peak is that of the head's finite cells."""
    tall, wide = (_factor(cells, side) for cells in item.pattern.shape[1:])
    # Masked cells are −inf, so that the maximum of a block is masked only if all of it is; NaN wins over any number.
    pattern = np.where(item.allowed, item.pattern, np.float32(-np.inf))  # [head, query, key]
    pattern = _block_max(_block_max(pattern, tall, axis=1), wide, axis=2)  # [head, row, col]
    number = np.isfinite(pattern)
    peaks = np.max(pattern, axis=(1, 2), where=number, initial=0.0)  # [head]
    scale = LEVELS / np.where(peaks > 0, peaks, 1)  # [head]
    planes = np.clip(np.rint(np.where(number, pattern, 0) * scale[:, None, None]), 0, LEVELS)
    return np.where(number, planes, np.where(pattern == -np.inf, MASKED, NAN)).astype(np.uint8), peaks


def _block_max(array: Float[np.ndarray, "..."], size: int, axis: int) -> Float[np.ndarray, "..."]:
    """The maximum of every `size` neighbours along an axis; the last block may be smaller."""
    source = np.moveaxis(array, axis, 0)
    largest = source[::size].copy()
    for start in range(1, size):  # a slice at a time: six times as fast as np.maximum.reduceat
        part = source[start::size]
        np.maximum(largest[: len(part)], part, out=largest[: len(part)])
    return np.moveaxis(largest, 0, axis)


def _exact(item: PatternLayer, head: int) -> Float[np.ndarray, "query key"]:
    pattern = item.pattern[head].astype("<f4")  # [query, key]
    allowed = np.broadcast_to(item.allowed, item.pattern.shape)[head]
    return np.where(allowed, np.where(np.isfinite(pattern), pattern, np.nan), np.inf).astype("<f4")


def _moved(
    original: Float[np.ndarray, "head query key"], changed: Float[np.ndarray, "head query key"]
) -> Float[np.ndarray, " head"]:
    """How far each head moved: the total variation ½ Σ_key |p − p'|, averaged over queries; 0 the same, 1 disjoint."""
    both = np.where(np.isfinite(original) & np.isfinite(changed), np.abs(original - changed), 0)
    return 0.5 * both.sum(axis=2).mean(axis=1)
