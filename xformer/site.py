"""Where in a model a layer sits: in which stack, how deep, and what it does there. Written as a path like "encoder.2.attn".

    Site.parse("decoder.0.cross_attn")  =  Site(stack="decoder", layer=0, kind="cross_attn")

Layers count from 0 here and in paths; titles for people count from 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from xformer.errors import InputError

Stack = Literal["encoder", "decoder"]
Kind = Literal["attn", "self_attn", "cross_attn", "ffn"]
PATH = r"(?P<stack>encoder|decoder)\.(?P<layer>\d{1,3})\.(?P<kind>attn|self_attn|cross_attn|ffn)"
"""A path as a regular expression, for what is written around one: "encoder.0.attn.pattern", "silence:encoder.0.attn.2"."""
_KIND_LABELS = {
    "attn": "attention",
    "self_attn": "self-attention",
    "cross_attn": "cross-attention",
    "ffn": "feed-forward",
}


@dataclass(frozen=True, order=True)
class Site:
    """One attention or feed-forward layer of a model. An encoder-decoder's decoder has "self_attn" and "cross_attn"."""

    stack: Stack
    layer: int
    kind: Kind

    @classmethod
    def parse(cls, path: str) -> Site:
        """The site that a path names, or that lies in the name of one of its activations: "encoder.0.attn.pattern" too.

        Raises `InputError` when it names none.
        """
        site = cls.find(path)
        if site is None:
            raise InputError(f"A layer is written like 'encoder.0.attn' or 'decoder.1.ffn', got {path!r}.")
        return site

    @classmethod
    def find(cls, path: str) -> Site | None:
        """The same, and None for a name that is not of one of our layers."""
        found = re.match(rf"{PATH}(\.|$)", path)
        if found is None:
            return None
        return cls(cast(Stack, found["stack"]), int(found["layer"]), cast(Kind, found["kind"]))

    @property
    def path(self) -> str:
        """As a trace's names begin."""
        return f"{self.stack}.{self.layer}.{self.kind}"

    @property
    def is_attention(self) -> bool:
        return self.kind != "ffn"

    @property
    def is_cross(self) -> bool:
        """Whether its queries are one stack's and its keys another's."""
        return self.kind == "cross_attn"

    @property
    def query_stack(self) -> Stack:
        """The stack whose positions look, or are worked on."""
        return self.stack

    @property
    def key_stack(self) -> Stack:
        """The stack whose positions are looked at."""
        return "encoder" if self.is_cross else self.stack

    @property
    def kind_label(self) -> str:
        """What it does, in a word: "attention", "cross-attention", "feed-forward"."""
        return _KIND_LABELS[self.kind]


_AFTER = {"attn": "resid_mid", "self_attn": "resid_mid", "cross_attn": "resid_cross", "ffn": "resid_post"}


def after(site: Site) -> str:
    """What the stream is called after a layer has added to it."""
    return f"{site.stack}.{site.layer}.{_AFTER[site.kind]}"


_KINDS = {"self_attn": " · self", "cross_attn": " · cross"}


def layer_title(path: str, *, is_pair: bool = False) -> str:
    """A layer in words: "layer 2", and in an encoder-decoder "encoder 1", "decoder 1 · cross"."""
    site = Site.parse(path)
    return f"{site.stack} {site.layer + 1}{_KINDS.get(site.kind, '')}" if is_pair else f"layer {site.layer + 1}"


def head_title(path: str, head: int, *, is_pair: bool = False) -> str:
    """A head, counted from 0 in its layer, in words: "layer 2 · head 3"."""
    return f"{layer_title(path, is_pair=is_pair)} · head {head + 1}"
