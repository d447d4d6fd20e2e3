"""How a layer or a head is called wherever a person reads it: on screens, in charts, tables, files and chips.

Here both are counted from 1. Their paths, as a trace has them ("encoder.2.attn"), and links ("silence:encoder.2.attn.1") count
from 0, and so do positions and neurons everywhere.
"""

from __future__ import annotations

from xformer.site import Site

_KINDS = {"self_attn": " · self", "cross_attn": " · cross"}


def layer_title(path: str, *, is_pair: bool = False) -> str:
    """A layer in words: "layer 2", and in an encoder-decoder "encoder 1", "decoder 1 · cross"."""
    site = Site.parse(path)
    return f"{site.stack} {site.layer + 1}{_KINDS.get(site.kind, '')}" if is_pair else f"layer {site.layer + 1}"


def head_title(path: str, head: int, *, is_pair: bool = False) -> str:
    """A head, counted from 0 in its layer, in words: "layer 2 · head 3"."""
    return f"{layer_title(path, is_pair=is_pair)} · head {head + 1}"
