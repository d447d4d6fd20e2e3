"""Pack the attention patterns of a run into bytes, from which the attention view draws without further requests.

    planes = "XATT" · header length (uint32, little endian) · header (JSON, padded) · planes (uint8)
    head   = "XATH" · header length · header · exact (float32)

A plane holds one byte per cell of one head; above the byte budget it is pooled (`thumbnail_of`). The planes of a layer precede
their first columns without the first key, which takes most of the attention of many large models. The selected head is sent
separately as float32 (masked: +inf, not a number: NaN), pooled if it is too large.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8

from xformer.adapters.on_demand import LEVELS, MASKED, NAN, OnDemand, Thumbnail
from xformer.analysis.attention_patterns import relative_change, token_names
from xformer.formatting import check_index
from xformer.layer_path import LayerPath, layer_title
from xformer.pooling import block_max, block_size, max_pool
from xformer.reading import Reading
from xformer.viz.theme import DIVERGING, HEAD_HUES, SEQUENTIAL, in_both_themes

Weights = Float[np.ndarray, "head query key"]
Allowed = Bool[np.ndarray, "#head #query #key"]
"""False where the mask hides a key; broadcastable to the weights."""


@dataclass(frozen=True, eq=False)
class PatternLayer:
    """The attention of one layer as arrays and labels.

    The pattern is not validated, so that a broken layer is shown as it is.

    Args:
        name: The path of the layer.
        title: The display name of the layer.
        pattern: The weights [head, query, key].
        allowed: Where the mask permits a key.
        query_labels: The tokens at the queries.
        key_labels: The tokens at the keys.
        z_size: The mean norm of each head's z over the queries; empty if not recorded.
        stream: The residual stream after the layer, for the last attention of that layer; None if not recorded.
    """

    name: str
    title: str
    pattern: Weights
    allowed: Allowed
    query_labels: tuple[str, ...]
    key_labels: tuple[str, ...]
    z_size: tuple[float, ...] = ()
    stream: Float[np.ndarray, "query d_model"] | None = None

    @property
    def ablated(self) -> tuple[int, ...]:
        """The ablated heads, from 0: their z is 0 although their pattern is not."""
        zero = (head for head, size in enumerate(self.z_size) if size == 0)
        return tuple(head for head in zero if np.nan_to_num(self.pattern[head]).any())

    @property
    def shape(self) -> tuple[int, int, int]:
        """[head, query, key]."""
        heads, queries, keys = self.pattern.shape
        return heads, queries, keys

    @property
    def is_masked(self) -> bool:
        """Whether the mask hides any key."""
        return not bool(self.allowed.all())

    def pool(self, side: int) -> tuple[int, int]:
        """Return how many queries and keys are pooled into one cell for planes of at most `side` cells on a side."""
        return block_size(self.shape[1], side), block_size(self.shape[2], side)

    def reduced(self, side: int) -> Thumbnail:
        """Return the planes of all heads, with at most `side` cells on a side."""
        return thumbnail_of(self.pattern, self.allowed, side)

    def moved_from(self, before: AnyLayer) -> Float[np.ndarray, " head"]:
        """Return how far each head moved from another run; see `moved`."""
        return moved(before.pattern, self.pattern)


@dataclass(frozen=True, eq=False)
class DeferredLayer:
    """The attention of one layer of a large run: the planes are stored, the pattern is computed on demand."""

    name: str
    title: str
    run: OnDemand
    query_labels: tuple[str, ...]
    key_labels: tuple[str, ...]
    shape: tuple[int, ...]
    thumbnail: Thumbnail
    z_size: tuple[float, ...]
    ablated: tuple[int, ...]
    is_masked: bool
    stream: None = None

    @property
    def pattern(self) -> Weights:
        return self.run[f"{self.name}.pattern"][0].float().numpy(force=True)

    @property
    def allowed(self) -> Allowed:
        return self.run[f"{self.name}.mask"][0].numpy(force=True)

    def pool(self, side: int) -> tuple[int, int]:
        """Return the pooling of the stored planes; `side` is ignored."""
        rows, cols = self.thumbnail.planes.shape[1:]
        return block_size(self.shape[1], rows), block_size(self.shape[2], cols)

    def reduced(self, side: int) -> Thumbnail:
        return self.thumbnail

    def moved_from(self, before: AnyLayer) -> Float[np.ndarray, " head"]:
        """Return how far each head moved, as `PatternLayer.moved_from`, cached per run."""
        if not isinstance(before, DeferredLayer):
            return moved(before.pattern, self.pattern)
        return self.run.cached((before.run, self.name), lambda: moved(before.pattern, self.pattern))


def exact_weights(layer: AnyLayer, head: int) -> Float[np.ndarray, "query key"]:
    """Return the weights of one head as little-endian float32: +inf where masked, NaN where not a number."""
    weights = layer.pattern[head].astype("<f4")  # [query, key]
    seen = np.broadcast_to(layer.allowed, layer.shape)[head] if layer.is_masked else True
    return np.where(seen, np.where(np.isfinite(weights), weights, np.nan), np.inf).astype("<f4")


def heads_png(layers: Sequence[AnyLayer]) -> bytes:
    """Draw the patterns of all heads as a PNG: a row for each layer, light to dark from 0 to 1, masked cells grey."""
    side = 64 if sum(layer.shape[0] for layer in layers) <= MAX_LARGE else 32
    stops = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in SEQUENTIAL], dtype=np.uint8)
    n_heads, step = max(layer.shape[0] for layer in layers), side + 4
    page = np.full((step * len(layers), step * n_heads, 3), 255, dtype=np.uint8)
    for row, layer in enumerate(layers):
        for head in range(layer.shape[0]):
            weights = exact_weights(layer, head)
            query, key = (np.arange(side) * n // side for n in weights.shape)
            shown = weights[query[:, None], key]  # [side, side]
            level = np.nan_to_num(np.clip(shown, 0, 1)) * (len(stops) - 1)
            cells = np.where(np.isfinite(shown)[..., None], stops[level.round().astype(int)], np.uint8(224))
            page[row * step : row * step + side, head * step : head * step + side] = cells
    return _png(page)


MAX_LARGE = 64
"""The most heads that `heads_png` draws 64 pixels wide; more are drawn 32 pixels wide."""


def _png(pixels: UInt8[np.ndarray, "row column 3"]) -> bytes:
    """Encode an image as PNG (https://www.w3.org/TR/png-3)."""
    rows = np.pad(pixels.reshape(len(pixels), -1), ((0, 0), (1, 0)))  # each row begins with its filter, 0
    header = struct.pack(">2I5B", pixels.shape[1], len(pixels), 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def moved(original: Weights, changed: Weights) -> Float[np.ndarray, " head"]:
    """Return how far each head moved: the total variation ½ Σ_key |p − p'|, averaged over queries; 0 is equal, 1 disjoint."""
    both = np.where(np.isfinite(original) & np.isfinite(changed), np.abs(original - changed), 0)
    return 0.5 * both.sum(axis=2).mean(axis=1)


def thumbnail_of(pattern: Weights, allowed: Allowed, side: int) -> Thumbnail:
    """Compute the planes of a layer, with at most `side` rows and columns, and their first columns without the first key.

    A cell is round(253 · √(weight / peak)) of the largest weight in its block, where peak is the head's largest finite weight.
    """
    tall, wide = (block_size(n, side) for n in pattern.shape[1:])
    # Masked cells are −inf, so that a block is masked only if all of it is; NaN propagates through the maximum.
    seen = np.where(allowed, pattern, np.float32(-np.inf))  # [head, query, key]
    blocks = max_pool(seen, side)  # [head, row, col]
    column = block_max(seen[:, :, 1:wide].max(axis=2, initial=-np.inf), tall, axis=1)  # [head, row]
    peaks = np.max(blocks, axis=(1, 2), where=np.isfinite(blocks), initial=0.0)  # [head]
    scale = np.where(peaks > 0, peaks, 1)
    planes, rest = codes_of(blocks, scale[:, None, None], 2), codes_of(column, scale[:, None], 2)
    others = np.max(np.where(planes[:, :, 1:] <= LEVELS, planes[:, :, 1:], 0), axis=(1, 2), initial=0)  # [head]
    most = np.maximum((others / LEVELS) ** 2 * peaks, np.max(column, axis=1, where=np.isfinite(column), initial=0.0))
    return Thumbnail(planes, peaks, rest, most)


def codes_of(
    weights: Float[np.ndarray, "*shape"], peaks: Float[np.ndarray, "*shape"], root: int
) -> UInt8[np.ndarray, "*shape"]:
    """Encode weights as bytes, round(253 · (weight / peak)^(1/root)); −inf is masked, +inf and NaN are not numbers."""
    number = np.isfinite(weights)
    share = np.maximum(np.where(number, weights, 0) / peaks, 0)
    codes = np.minimum(np.rint(LEVELS * (np.sqrt(share) if root == 2 else share)), LEVELS)
    return np.where(number, codes, np.where(weights == -np.inf, MASKED, NAN)).astype(np.uint8)


def plane(pattern: Weights, allowed: Allowed) -> UInt8[np.ndarray, "head row col"]:
    """Encode the weights of a layer on the fixed scale from 0 to 1, round(253 w), with at most `SIDE` cells on either axis."""
    return codes_of(max_pool(np.where(allowed, pattern, -np.inf), SIDE), np.ones((1, 1, 1)), 1)


class Blocks:
    """Concatenated blocks of bytes, each aligned to 8 bytes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, *arrays: np.ndarray) -> int:
        """Append arrays as one block and return its offset in bytes."""
        at, content = self.size, b"".join(array.tobytes() for array in arrays)
        self.parts.append(content + bytes(-len(content) % 8))
        self.size += len(self.parts[-1])
        return at


AnyLayer = PatternLayer | DeferredLayer

MAGIC, MAGIC_HEAD, MAGIC_ORIGINAL = b"XATT", b"XATH", b"XATO"

SCALES = ("fixed", "own", "log", "without_first_token")
"""Colour scales: 0 to 1, 0 to the head's maximum, logarithmic, 0 to the head's maximum excluding the first key."""
SIDE = 48
"""Largest number of cells of a `plane` on either axis; longer inputs are max-pooled."""
POWER = 2
"""The root of the weight that is stored in a byte; see `codes_of`."""
MAX_BYTES = 1_950_000
"""Largest size of a message, in bytes; an exact head that does not fit is pooled."""
MAX_STREAM_CELLS = 4096
"""Largest number of queries times layers for which the change of the residual stream is sent."""
_SHOWN = str.maketrans({" ": "·", "\n": "↵", "\r": "↵", "\t": "⇥"})


@dataclass(frozen=True, eq=False)
class Packed:
    """The patterns of a run, or of an original and a changed run, packed by `pack` for the attention view.

    Attributes:
        common: The settings that all layers share: labels, colours, and the numbering of heads and positions.
        layers: The name, sizes and labels of each layer, and how far its heads moved.
        runs: [run][layer]: the peaks of the heads, and the offset of their planes in the run's bytes.
        planes: The planes of each run.
        selected: The (layer, head) whose exact weights are included.
        exact: Those weights [run, row, col].
        pool: The number of cells, on a side, that were pooled into one of them.
    """

    common: dict[str, Any]
    layers: list[dict[str, Any]]
    runs: list[list[dict[str, Any]]]
    planes: list[bytes]
    selected: tuple[int, int]
    exact: Float[np.ndarray, "run row col"]
    pool: int

    @property
    def content(self) -> int:
        """The checksum of the planes."""
        return zlib.crc32(b"".join(self.planes))

    def message(self, view: str) -> bytes:
        """Return the planes of all runs as a message to the view of that name."""
        layers, start = [], len(self.planes[0])
        for at, layer in enumerate(self.layers):
            own, *changed = (run[at] for run in self.runs)
            layers.append(layer | {"runs": [own, *(one | {"offset": start + one["offset"]} for one in changed)]})
        return joined(MAGIC, {"view": view, "content": self.content, "layers": layers, **self.common}, *self.planes)

    def apart(self, view: str) -> tuple[bytes, bytes]:
        """Return two messages: the planes of the original run, the same for any change, and the rest, which refers to them."""
        about = {"common": self.common, "runs": self.runs[0]}
        digest = zlib.crc32(self.planes[0], zlib.crc32(json.dumps(about).encode()))
        layers = [layer | {"runs": [run[at] for run in self.runs[1:]]} for at, layer in enumerate(self.layers)]
        rest = {"view": view, "content": self.content, "original": digest, "layers": layers}
        original = joined(MAGIC_ORIGINAL, {"view": view, "content": digest, **about}, self.planes[0])
        return original, joined(MAGIC, rest, *self.planes[1:])

    def head(self, view: str) -> bytes:
        """Return the exact weights of the selected head as a message."""
        return head_message(self.exact, self.selected, view=view, content=self.content, pool=self.pool)


def pack(
    layers: Sequence[AnyLayer],
    changed: Sequence[AnyLayer] | None = None,
    *,
    selected: tuple[int, int] = (0, 0),
    max_thumbnail: int = 64,
    budget: int = 1_400_000,
) -> Packed:
    """Pack the layers for the attention view.

    Planes keep their full resolution while they fit in `budget` bytes together with the exact block.

    Args:
        layers: The layers of the run.
        changed: The same layers under another mask or edit, shown next to the original.
        selected: The (layer, head) whose exact weights are included.
        max_thumbnail: Planes are never pooled below this number of cells on a side.
        budget: The target size, in bytes.

    Raises:
        ValueError: The shapes of the two runs differ.
    """
    check_index("layer", selected[0], len(layers))
    check_index("head", selected[1], layers[selected[0]].shape[0])
    runs = [layers] if changed is None else [layers, changed]
    shapes = [[layer.shape for layer in run] for run in runs]
    if shapes[-1] != shapes[0]:
        raise ValueError(f"The changed run must have the shapes of the original, {shapes[0]}; got {shapes[1]}.")
    exact = np.stack([exact_weights(run[selected[0]], selected[1]) for run in runs])
    side = _side(layers, (budget - exact.nbytes) // len(runs), max_thumbnail)
    exact, pool = _fitted(exact, MAX_BYTES - len(runs) * sum(_plane_bytes(layer, side) for layer in layers))
    records, planes = zip(*(_run(run, side) for run in runs), strict=True)
    labels: dict[tuple[str, tuple[str, ...]], int] = {}
    headers = [_layer_header(layer, side, labels) for layer in layers]
    for record, layer, after in zip(headers, layers, changed or (), strict=False):
        record["moved"] = after.moved_from(layer).tolist()
        if layer.stream is not None and after.stream is not None and layer.shape[1] * len(layers) <= MAX_STREAM_CELLS:
            record["stream"] = [round(share, 4) for share in relative_change(after.stream, layer.stream).tolist()]
    common = {
        "labels": [[visible(text) for text in row] for _, row in labels], "thumbnail": max_thumbnail, "power": POWER,
        "firstHead": 1, "firstPosition": 0,  # the numbering on screens
        **in_both_themes({"hues": HEAD_HUES, "sequential": SEQUENTIAL, "diverging": DIVERGING}),
    }  # fmt: skip
    return Packed(common, headers, list(records), list(planes), selected, exact, pool)


def _run(layers: Sequence[AnyLayer], side: int) -> tuple[list[dict[str, Any]], bytes]:
    """Return the record of each layer of a run, and the planes of all layers."""
    records, blocks, offset = [], [], 0
    for layer in layers:
        thumbnail = layer.reduced(side)
        sizes = [size if np.isfinite(size) else None for size in layer.z_size]  # JSON has no infinity
        peaks = {"peaks": thumbnail.peaks.tolist(), "restPeaks": thumbnail.rest_peaks.tolist()}
        records.append({"offset": offset, **peaks, "z": sizes, "silenced": list(layer.ablated)})
        blocks += [thumbnail.planes.tobytes(), thumbnail.rest.tobytes()]
        offset += thumbnail.planes.size + thumbnail.rest.size
    return records, b"".join(blocks)


def _layer_header(layer: AnyLayer, side: int, labels: dict[tuple[str, tuple[str, ...]], int]) -> dict[str, Any]:
    """Return the header of a layer, shared by both runs; `labels` numbers the token sequences of each stack."""
    site = LayerPath.find(layer.name)
    stacks = (layer.name, layer.name) if site is None else (site.query_stack, site.key_stack)
    numbers = [
        labels.setdefault((stack, names), len(labels))
        for stack, names in zip(stacks, (layer.query_labels, layer.key_labels), strict=True)
    ]
    (heads, queries, keys), (tall, wide) = layer.shape, layer.pool(side)
    return {
        "name": layer.name, "title": layer.title, "heads": heads, "queries": queries, "keys": keys, "pool": [tall, wide],
        "rows": -(-queries // tall), "cols": -(-keys // wide), "queryLabels": numbers[0], "keyLabels": numbers[1],
    }  # fmt: skip


def joined(magic: bytes, header: Mapping[str, Any], *blocks: bytes) -> bytes:
    """Join packed data: 4 letters, the header length (uint32, little endian), the header as JSON, and the blocks."""
    text = json.dumps(header, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    text += b" " * (-(len(text) + 8) % 8)  # aligns the blocks to 8 bytes
    return b"".join([magic, struct.pack("<I", len(text)), text, *blocks])


def header_of(packed: bytes, magic: bytes = MAGIC) -> dict[str, Any]:
    """Return the header of packed data. Raises ValueError if the bytes do not begin with `magic`."""
    if packed[:4] != magic or len(packed) < 8:
        raise ValueError(f"Packed data begins with {magic!r} here, got {packed[:4]!r}.")
    return json.loads(packed[8 : 8 + int.from_bytes(packed[4:8], "little")])


def visible(text: str) -> str:
    """Make a token visible: spaces as ·, line breaks as ↵, tabs as ⇥, the empty token as ∅; lone surrogates are replaced."""
    clean = text.encode("utf-8", "replace").decode("utf-8") if any("\ud800" <= c <= "\udfff" for c in text) else text
    return clean.translate(_SHOWN) or "∅"


def _side(layers: Sequence[AnyLayer], room: int, smallest: int) -> int:
    """Return the largest side, in cells, at which the planes of a run fit in `room` bytes."""
    longest = max(max(item.shape[1:]) for item in layers)
    sides = (-(-longest // divisor) for divisor in range(1, longest + 1))
    fits = (s for s in sides if s <= smallest or sum(_plane_bytes(item, s) for item in layers) <= room)
    return max(next(fits, smallest), smallest)


def _plane_bytes(item: AnyLayer, side: int) -> int:
    heads, queries, keys = item.shape
    tall, wide = item.pool(side)
    return heads * -(-queries // tall) * -(-keys // wide)


def _fitted(exact: Float[np.ndarray, "run query key"], room: int) -> tuple[Float[np.ndarray, "run row col"], int]:
    """Max-pool the exact weights of a head to fit in `room` bytes; also return the pool size on a side."""
    size = 1
    while exact[:, ::size, ::size].nbytes > max(room, 100_000):
        size += 1
    if size > 1:  # masked cells must not win the maximum
        low = np.where(exact == np.inf, -np.inf, exact)
        pooled = block_max(block_max(low, size, axis=1), size, axis=2)
        exact = np.where(pooled == -np.inf, np.inf, pooled).astype("<f4")
    return exact, size


def pattern_layers(reading: Reading) -> list[AnyLayer]:
    """Return the attention layers of a reading's first input, in execution order.

    If no mask was recorded, a causal one is inferred from the weights; otherwise every cell counts as allowed. The patterns
    of a broken model keep their shapes, and NaN is shown even where masked. Those of a large run are computed one at a time.
    """
    layers: list[AnyLayer] = []
    run = reading.trace.activations
    for site in reading.layer_paths:
        path, title = site.path, layer_title(site.path, is_encoder_decoder=reading.is_encoder_decoder)
        if isinstance(run, OnDemand) and (kept := run.reduced(path)) is not None:
            names, cells = token_names(reading, site, kept.shape), (kept.shape, kept.thumbnail)
            layers.append(DeferredLayer(path, title, run, *names, *cells, kept.z_size, kept.ablated, kept.is_masked))
            continue
        pattern = reading[f"{path}.pattern"][0].float().numpy(force=True)  # [head, query, key]
        queries, keys = token_names(reading, site, pattern.shape)
        allowed = np.ones((1, 1, 1), dtype=bool)
        if f"{path}.mask" in reading:
            mask = reading[f"{path}.mask"][0].numpy(force=True)  # [head, query, key]
            if np.broadcast_shapes(mask.shape[-2:], pattern.shape[-2:]) == pattern.shape[-2:]:
                allowed = mask
        elif is_causal(pattern):
            allowed = np.tri(pattern.shape[-1], dtype=bool)[None]
        allowed = (allowed & _real(reading, site, pattern.shape)) | np.isnan(pattern)
        size = reading[f"{path}.z"][0].float().norm(dim=-1).mean(dim=-1).tolist() if f"{path}.z" in reading else ()
        block = f"{site.stack}.{site.layer}"
        is_last = all(
            (one.stack, one.layer) != (site.stack, site.layer) for one in reading.layer_paths[len(layers) + 1 :]
        )
        stream = reading.get(f"{block}.resid_post") if is_last else None
        stream = None if stream is None else stream[0].float().numpy(force=True)
        layers.append(PatternLayer(path, title, pattern, allowed, queries, keys, tuple(size), stream))
    return layers


def is_causal(pattern: Weights) -> bool:
    """Return whether every weight above the diagonal is exactly 0 in all heads, as under a causal mask."""
    _, queries, keys = pattern.shape
    return queries == keys > 1 and not pattern[:, *np.triu_indices(queries, 1)].any()


def _real(reading: Reading, site: LayerPath, shape: Sequence[int]) -> np.ndarray:
    """Return where neither query nor key is padding, [1, query, key]."""
    real = np.ones((1, 1, 1), dtype=bool)
    query, key = reading.adapter.shape.stacks_of(site)
    for stack, length, axis in ((query, shape[1], 2), (key, shape[2], 1)):
        valid = None if stack is None else reading.trace.real(stack)
        if valid is not None and len(valid) == length:
            real = real & np.expand_dims(valid.numpy(force=True), (0, axis))
    return real


def head_message(
    blocks: Float[np.ndarray, "run row col"], at: Sequence[int], *, view: str, content: int, pool: int = 1
) -> bytes:
    """Pack the exact weights of head `at`, (layer, head), in each run, for the planes with that `content` in their header."""
    _, rows, cols = blocks.shape
    is_triangle = rows == cols > 1 and bool(np.isposinf(blocks[:, *np.triu_indices(rows, 1)]).all())
    sent = blocks[:, *np.tril_indices(rows)] if is_triangle else blocks
    about = {
        "view": view, "content": content, "selected": list(at), "exactPool": [pool, pool],
        "exactSize": [rows, cols], "isTriangle": is_triangle,
    }  # fmt: skip
    return joined(MAGIC_HEAD, about, sent.astype("<f4").tobytes())


Look = tuple[int, int, Sequence[int]]
"""How the enlarged head is drawn: the indices of the scale and of the view mode, and the heads whose arcs are drawn."""
PLAIN: Look = (0, 0, ())


def pack_selection(
    head: tuple[int, int],
    cell: tuple[int | None, int | None] = (None, None),
    look: Look = PLAIN,
    *,
    order: int = 1,
    height: int = 0,
) -> bytes:
    """Pack the selection as bytes that are appended to the planes, since a message of raw bytes has no other fields.

    Args:
        head: The selected (layer, head), from 0.
        cell: The locked (query, key), if any.
        look: How the enlarged head is drawn.
        order: The sequence number of this selection; the view replaces its own selection when it grows.
        height: The largest height of the enlarged head, in CSS pixels; 0 for no limit.
    """
    query, key = (0 if index is None else index + 1 for index in cell)
    scale, shown, arcs = look
    return struct.pack("<IIIIIIII", height, query, key, order, scale + 4 * shown, sum(1 << one for one in arcs), *head)
