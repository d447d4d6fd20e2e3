"""Attention patterns of anybody's model, as arrays or tensors, made into what the attention view draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xformer.errors import InputError
from xformer.viz.packing import PatternLayer


def layers_of(
    attentions: Any, query_tokens: Sequence[str] | None = None, key_tokens: Sequence[str] | None = None
) -> list[PatternLayer]:
    """Layers of the attention view from one array [layer, (batch,) head, query, key], or a list of one a layer.

    Of a batch the first example is drawn. Tokens that are not given are numbered. Where every weight above the diagonal is
    exactly 0 in all heads of a layer, its mask was causal, and those cells are drawn as masked.

    Raises `InputError` with one plain sentence where the arrays or tokens do not fit.
    """
    layers = []
    for number, given in enumerate(_one_by_one(attentions), start=1):
        pattern = _plain(given)
        if pattern.ndim == 4:
            pattern = pattern[0] if len(pattern) else pattern[:, 0]
        if pattern.ndim != 3 or 0 in pattern.shape:
            raise InputError(
                f"The attention of a layer has the axes [batch, head, query, key] or [head, query, key], none of them empty; "
                f"layer {number} has the shape {list(np.shape(given))}."
            )
        queries, keys = pattern.shape[1:]
        query_names, key_names = (
            _names(query_tokens, queries, "queries", number),
            _names(key_tokens, keys, "keys", number),
        )
        allowed = np.ones((1, 1, 1), dtype=bool)
        if queries == keys > 1 and not pattern[:, *np.triu_indices(queries, 1)].any():
            allowed = np.tri(queries, dtype=bool)[None]
        layers.append(PatternLayer(f"layer {number}", f"layer {number}", pattern, allowed, query_names, key_names))
    if not layers:
        raise InputError(
            "There is no attention to draw: got no layers; give for example the attentions that a model returns."
        )
    return layers


def _one_by_one(attentions: Any) -> list[Any]:
    if isinstance(attentions, list | tuple):
        return list(attentions)
    return [attentions] if getattr(attentions, "ndim", 0) == 3 else list(attentions)


def _plain(value: Any) -> np.ndarray:
    """Weights as float32, from an array, a tensor on any device and of any kind of float, or nested lists."""
    if value is None:
        raise InputError(
            "One of the layers is None: the model was run without its attention. Load it with attn_implementation='eager' "
            "and call it with output_attentions=True."
        )
    detached = value.detach().float().cpu().numpy() if hasattr(value, "detach") else value
    try:
        return np.asarray(detached, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(f"Attention is given as arrays of numbers, got {type(value).__name__}.") from None


def _names(tokens: Sequence[str] | None, size: int, axis: str, layer: int) -> tuple[str, ...]:
    if tokens is None:
        return tuple(map(str, range(size)))
    if len(tokens) != size:
        raise InputError(f"Layer {layer} has {size} {axis}, but {len(tokens)} tokens were given; give one for each.")
    return tuple(map(str, tokens))
