"""The exchangeable components of a transformer, registered in the dictionaries below.

A new component is a subclass in a file of this folder and one entry here; configurations, layers, counts, memory estimates,
the diagram, the diagnosis and the forms read these dictionaries. Position schemes are registered in `xformer.positions`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from xformer.components.component import Component, FeedForward, KeyValueHeads, Mask, MaskPicture, Norm, Sizes
from xformer.components.feed_forwards import GELU, ReLU, SwiGLU
from xformer.components.key_value_heads import GroupedQuery, MultiHead
from xformer.components.masks import FullMask, SlidingWindow
from xformer.components.norms import LayerNorm, RMSNorm

AnyComponent = TypeVar("AnyComponent", bound=Component)


def _by_name(components: Iterable[AnyComponent]) -> dict[str, AnyComponent]:
    return {component.name: component for component in components}


NORMS: dict[str, Norm] = _by_name((LayerNorm(), RMSNorm()))
"""`ModelConfig.norm_kind`."""
FEED_FORWARDS: dict[str, FeedForward] = _by_name((ReLU(), GELU(), SwiGLU()))
"""`ModelConfig.activation`."""
MASKS: dict[str, Mask] = _by_name((FullMask(), SlidingWindow()))
"""`ModelConfig.mask`."""
KEY_VALUE_HEADS: dict[str, KeyValueHeads] = _by_name((MultiHead(), GroupedQuery()))
"""Chosen by `ModelConfig.n_kv_heads`."""

__all__ = [
    "FEED_FORWARDS",
    "KEY_VALUE_HEADS",
    "MASKS",
    "NORMS",
    "Component",
    "FeedForward",
    "KeyValueHeads",
    "Mask",
    "MaskPicture",
    "Norm",
    "Sizes",
]
