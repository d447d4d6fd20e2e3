"""The location of a layer in a model: its stack, index and kind, written as a path like "encoder.2.attn".

    LayerPath.parse("decoder.0.cross_attn")  =  LayerPath(stack="decoder", layer=0, kind="cross_attn")

Layers count from 0 here and in paths, and from 1 in titles on screens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from xformer.errors import InputError

Stack = Literal["encoder", "decoder"]
STACKS = (None, "encoder", "decoder")
"""The values of `stack`; None is the only stack, or the default of an encoder-decoder."""
Kind = Literal["attn", "self_attn", "cross_attn", "ffn"]
PATH = r"(?P<stack>encoder|decoder)\.(?P<layer>\d{1,3})\.(?P<kind>attn|self_attn|cross_attn|ffn)"
"""A regular expression that matches a path, also inside other text: "encoder.0.attn.pattern", "ablate:encoder.0.attn.2"."""
_KIND_LABELS = {
    "attn": "attention",
    "self_attn": "self-attention",
    "cross_attn": "cross-attention",
    "ffn": "feed-forward",
}


@dataclass(frozen=True, order=True)
class LayerPath:
    """One attention or feed-forward layer of a model. An encoder-decoder's decoder has "self_attn" and "cross_attn"."""

    stack: Stack
    layer: int
    kind: Kind

    @classmethod
    def parse(cls, path: str) -> LayerPath:
        """Parse a path or an activation's name ("encoder.0.attn.pattern"). Raises `InputError` for other text."""
        site = cls.find(path)
        if site is None:
            raise InputError(f"A layer path looks like 'encoder.0.attn' or 'decoder.1.ffn', got {path!r}.")
        return site

    @classmethod
    def find(cls, path: str) -> LayerPath | None:
        """As `parse`, but return None for other text."""
        found = re.match(rf"{PATH}(\.|$)", path)
        if found is None:
            return None
        return cls(cast(Stack, found["stack"]), int(found["layer"]), cast(Kind, found["kind"]))

    @property
    def path(self) -> str:
        """The path, which prefixes the names of the layer's activations."""
        return f"{self.stack}.{self.layer}.{self.kind}"

    @property
    def is_attention(self) -> bool:
        return self.kind != "ffn"

    @property
    def is_cross(self) -> bool:
        """Whether queries and keys come from different stacks."""
        return self.kind == "cross_attn"

    @property
    def query_stack(self) -> Stack:
        """The stack of the queries, or of the positions of a feed-forward layer."""
        return self.stack

    @property
    def key_stack(self) -> Stack:
        """The stack of the keys."""
        return "encoder" if self.is_cross else self.stack

    @property
    def kind_label(self) -> str:
        """The human-readable kind: "attention", "cross-attention", "feed-forward"."""
        return _KIND_LABELS[self.kind]


_AFTER = {"attn": "resid_mid", "self_attn": "resid_mid", "cross_attn": "resid_cross", "ffn": "resid_post"}


def after(site: LayerPath) -> str:
    """Return the name of the residual stream after a layer."""
    return f"{site.stack}.{site.layer}.{_AFTER[site.kind]}"


def before_attention(site: LayerPath) -> str:
    """Return the name of the residual stream before an attention layer."""
    return f"{site.stack}.{site.layer}.{'resid_mid' if site.is_cross else 'resid_pre'}"


_KINDS = {"self_attn": " · self", "cross_attn": " · cross"}


def layer_title(path: str, *, is_encoder_decoder: bool = False) -> str:
    """Return the title of a layer: "layer 2", or in an encoder-decoder "encoder 1", "decoder 1 · cross"."""
    site = LayerPath.parse(path)
    return (
        f"{site.stack} {site.layer + 1}{_KINDS.get(site.kind, '')}" if is_encoder_decoder else f"layer {site.layer + 1}"
    )


def head_title(path: str, head: int, *, is_encoder_decoder: bool = False) -> str:
    """Return the title of a head: "layer 2 · head 3"; `head` counts from 0, titles count from 1."""
    return f"{layer_title(path, is_encoder_decoder=is_encoder_decoder)} · head {head + 1}"
