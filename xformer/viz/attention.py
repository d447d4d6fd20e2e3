"""From a trace to what the attention view draws: every layer's patterns with their masks, titles and token labels.

layers = pattern_layers(trace, labels)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xformer.viz.packing import PatternLayer

if TYPE_CHECKING:
    from xformer.trace import Trace


def pattern_layers(
    trace: Trace, labels: Sequence[str], target_labels: Sequence[str] | None = None, item: int = 0
) -> list[PatternLayer]:
    """The attention layers of one input of a trace, in the order the input meets them.

    `labels` name the tokens of the input, `target_labels` those of an encoder-decoder's target. A trace recorded without
    its masks shows every cell as allowed.
    """
    layers = []
    for path in trace.attention_layers():
        in_target = path.startswith("decoder.") and target_labels is not None
        queries = tuple((target_labels if in_target else labels) or ())
        keys = tuple(labels) if path.endswith("cross_attn") else queries
        pattern = trace[f"{path}.pattern"][item].float().numpy(force=True)  # [head, query, key]
        allowed = trace[f"{path}.mask"][item].numpy(force=True)  # [head, query, key]
        layers.append(
            PatternLayer(path, layer_title(path, is_pair=target_labels is not None), pattern, allowed, queries, keys)
        )
    return layers


def layer_title(path: str, *, is_pair: bool = False) -> str:
    """An attention layer in words: "layer 2", and in an encoder-decoder "encoder 1", "decoder 1 · cross"."""
    stack, index, kind = path.split(".")
    if not is_pair:
        return f"layer {int(index) + 1}"
    suffix = {"self_attn": " · self", "cross_attn": " · cross"}.get(kind, "")
    return f"{stack} {int(index) + 1}{suffix}"
