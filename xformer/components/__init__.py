"""The interchangeable components of a transformer, one per module, registered in the dictionaries below.

To add a component, add a module with a subclass and an entry here; configurations, layers, counts, memory estimates, the
diagram, the diagnosis and the forms read these dictionaries. Position encodings are registered in `xformer.positions`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from xformer.components.component import Component, FeedForward, KeyValueHeads, Mask, MaskPicture, Norm, Sizes
from xformer.components.full_mask import FullMask
from xformer.components.gelu import GELU
from xformer.components.grouped_query import GroupedQuery
from xformer.components.layer_norm import LayerNorm
from xformer.components.multi_head import MultiHead
from xformer.components.relu import ReLU
from xformer.components.rms_norm import RMSNorm
from xformer.components.sliding_window import SlidingWindow
from xformer.components.swiglu import SwiGLU

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
