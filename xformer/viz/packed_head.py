"""Packed patterns as two messages: the planes, which stay as they are whichever head is chosen, and that head's exact block.

    planes = "XATT" · header length (uint32) · header · planes (uint8)            as `pack` has it, without the exact block
    head   = "XATH" · header length (uint32) · header · exact (float32)           of a causal mask the lower triangle alone

So a click on a head sends that head, and nothing else again.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from xformer.viz.packing import MAGIC, header_of

MAGIC_HEAD = b"XATH"


def messages(packed: bytes, view: str) -> tuple[bytes, bytes]:
    """The planes and the chosen head of what `pack` made, for the view of that name. Raises ValueError for other bytes."""
    header = header_of(packed)
    (length,) = struct.unpack_from("<I", packed, 4)
    body = packed[8 + length :]
    (layer, head), pool = header.pop("selected"), header.pop("exactPool")
    start = header.pop("exact")
    del header["whole"]
    chosen = header["layers"][layer]
    rows, cols = (-(-chosen[axis] // size) for axis, size in zip(("queries", "keys"), pool, strict=True))
    blocks = np.frombuffer(body, "<f4", offset=start).reshape(-1, rows, cols)  # [run, row, col]
    is_triangle = rows == cols > 1 and bool(np.isposinf(blocks[:, *np.triu_indices(rows, 1)]).all())
    sent = blocks[:, *np.tril_indices(rows)] if is_triangle else blocks
    about = {
        "view": view, "content": header["content"], "selected": [layer, head], "exactPool": pool,
        "exactSize": [rows, cols], "isTriangle": is_triangle,
    }  # fmt: skip
    return _joined(MAGIC, {"view": view, **header}, body[:start]), _joined(MAGIC_HEAD, about, sent.tobytes())


def _joined(magic: bytes, header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    text += b" " * (-(len(text) + 8) % 8)  # what follows starts on a multiple of 8
    return magic + struct.pack("<I", len(text)) + text + body
