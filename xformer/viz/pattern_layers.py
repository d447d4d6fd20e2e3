"""From a reading to what the attention view draws: every layer's patterns with their masks, titles and token labels.

layers = pattern_layers(reading)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xformer.analysis.attention_patterns import token_names
from xformer.names import layer_title
from xformer.reading import Reading
from xformer.site import Site
from xformer.subjects.foreign.on_demand import OnDemand
from xformer.viz.layers import AnyLayer, LaterLayer, PatternLayer


def pattern_layers(reading: Reading) -> list[AnyLayer]:
    """The attention layers of a reading's first input, in the order the input meets them.

    A trace recorded without its masks shows every cell as allowed. A broken model is shown as it is, whatever axes its
    patterns have; what is not a number is shown, masked or not. Of a large run the patterns are worked out one at a time.
    """
    layers: list[AnyLayer] = []
    known: dict[tuple[object, ...], tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def names(site: Site, shape: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        at = (site.query_stack, site.key_stack, *shape[-2:])
        if at not in known:
            known[at] = token_names(reading, site, shape)
        return known[at]

    run = reading.trace.activations
    for site in reading.sites:
        path, title = site.path, layer_title(site.path, is_pair=reading.is_pair)
        if isinstance(run, OnDemand) and (kept := run.reduced(path)) is not None:
            layers.append(LaterLayer(path, title, kept, run, *names(site, kept.shape)))
            continue
        pattern = reading[f"{path}.pattern"][0].float().numpy(force=True)  # [head, query, key]
        queries, keys = names(site, pattern.shape)
        allowed = np.ones((1, 1, 1), dtype=bool)
        if f"{path}.mask" in reading:
            mask = reading[f"{path}.mask"][0].numpy(force=True)  # [head, query, key]
            if np.broadcast_shapes(mask.shape[-2:], pattern.shape[-2:]) == pattern.shape[-2:]:
                allowed = mask
        allowed = allowed & _real(reading, site, pattern.shape)
        broken = np.isnan(pattern)
        if broken.any():
            allowed = allowed | broken
        size = reading[f"{path}.z"][0].float().norm(dim=-1).mean(dim=-1).tolist() if f"{path}.z" in reading else ()
        layers.append(PatternLayer(path, title, pattern, allowed, queries, keys, tuple(size)))
    return layers


def _real(reading: Reading, site: Site, shape: Sequence[int]) -> np.ndarray:
    """[1, query, key]: where neither query nor key is padding."""
    real = np.ones((1, 1, 1), dtype=bool)
    for stack, length, axis in ((site.query_stack, shape[1], 2), (site.key_stack, shape[2], 1)):
        valid = reading.trace.real(stack)
        if valid is not None and len(valid) == length:
            real = real & np.expand_dims(valid.numpy(force=True), (0, axis))
    return real
