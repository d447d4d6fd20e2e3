"""Packed patterns as two messages: the planes, which stay as they are whichever head is chosen, and that head's exact block.

    planes = "XATT" · header length (uint32) · header · planes (uint8)            as `pack` has it, without the exact block
    head   = "XATH" · header length (uint32) · header · exact (float32)           of a causal mask the lower triangle alone

So a click on a head sends that head, and nothing else again. `apart` makes two of the planes, so that a change sends the
changed run, and neither the original nor what all runs share is sent again:

    original = "XATO" · header length (uint32) · header · planes (uint8)          of the original run
    planes   = "XATT" · header length (uint32) · header · planes (uint8)          of the changed run, where there is one
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from xformer.viz.packing import MAGIC, header_of

MAGIC_HEAD = b"XATH"
MAGIC_ORIGINAL = b"XATO"


def messages(packed: bytes, view: str) -> tuple[bytes, bytes]:
    """The planes and the chosen head of what `pack` made, for the view of that name. Raises ValueError for other bytes."""
    header = header_of(packed)
    (length,) = struct.unpack_from("<I", packed, 4)
    body = packed[8 + length :]
    at, pool = header.pop("selected"), header.pop("exactPool")
    start = header.pop("exact")
    del header["whole"]
    chosen = header["layers"][at[0]]
    rows, cols = (-(-chosen[axis] // size) for axis, size in zip(("queries", "keys"), pool, strict=True))
    blocks = np.frombuffer(body, "<f4", offset=start).reshape(-1, rows, cols)  # [run, row, col]
    planes = _joined(MAGIC, {"view": view, **header}, body[:start])
    return planes, head_message(blocks, at, view=view, content=header["content"], pool=pool)


def apart(planes: bytes) -> tuple[bytes, bytes]:
    """The planes of `messages` as those of the original run, and the rest, which names them by their digest."""
    header = header_of(planes)
    (length,) = struct.unpack_from("<I", planes, 4)
    body, ends = planes[8 + length :], [0, 0]
    blocks: tuple[list[bytes], ...] = ([], [])
    for layer in header["layers"]:
        size = layer["heads"] * layer["rows"] * (layer["cols"] + 1)  # and the first column once more
        for index, run in enumerate(layer["runs"]):
            blocks[index].append(body[run["offset"] : run["offset"] + size])
            run["offset"], ends[index] = ends[index], ends[index] + size
    own, view, content = [layer["runs"].pop(0) for layer in header["layers"]], header.pop("view"), header.pop("content")
    layers = header.pop("layers")
    about, first = {"common": header, "runs": own}, b"".join(blocks[0])
    digest = zlib.crc32(first, zlib.crc32(json.dumps(about).encode()))
    rest = {"view": view, "content": content, "original": digest, "layers": layers}
    return (
        _joined(MAGIC_ORIGINAL, {"view": view, "content": digest, **about}, first),
        _joined(MAGIC, rest, b"".join(blocks[1])),
    )


def head_message(
    blocks: Float[np.ndarray, "run row col"],
    at: Sequence[int],
    *,
    view: str,
    content: int,
    pool: Sequence[int] = (1, 1),
) -> bytes:
    """The exact weights of head `at`, (layer, head), in each run, for the planes with that `content` in their header."""
    _, rows, cols = blocks.shape
    is_triangle = rows == cols > 1 and bool(np.isposinf(blocks[:, *np.triu_indices(rows, 1)]).all())
    sent = blocks[:, *np.tril_indices(rows)] if is_triangle else blocks
    about = {
        "view": view, "content": content, "selected": list(at), "exactPool": list(pool),
        "exactSize": [rows, cols], "isTriangle": is_triangle,
    }  # fmt: skip
    return _joined(MAGIC_HEAD, about, sent.astype("<f4").tobytes())


def rider(
    head: tuple[int, int],
    cell: tuple[int | None, int | None] = (None, None),
    look: tuple[int, int, Sequence[int]] = (0, 0, ()),
    *,
    order: int = 1,
    height: int = 0,
) -> bytes:
    """What is chosen, as it rides behind the planes: raw bytes can only be the whole of a message.

    `head` is (layer, head), `cell` a locked (query, key); `look` the number of its scale, of what is shown, and the heads
    whose arcs are drawn; `order` counts what was chosen for the view, which forgets its own choice when it grows; `height`
    caps the enlarged picture, in CSS pixels, where it is not 0.
    """
    query, key = (0 if index is None else index + 1 for index in cell)
    scale, shown, arcs = look
    return struct.pack("<IIIIIIII", height, query, key, order, scale + 4 * shown, sum(1 << one for one in arcs), *head)


def _joined(magic: bytes, header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    text += b" " * (-(len(text) + 8) % 8)  # what follows starts on a multiple of 8
    return magic + struct.pack("<I", len(text)) + text + body
