"""The sizes that config.json asks for, held against the shapes in the weights' headers before anything is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from xformer.errors import ModelFileError

WIDTHS = {
    "vocab_size", "hidden_size", "intermediate_size", "d_model", "d_ff", "d_inner", "n_embd", "n_inner", "dim", "hidden_dim",
    "embedding_size", "embed_dim", "emb_dim", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size",
    "type_vocab_size", "moe_intermediate_size", "num_local_experts", "num_experts",
}  # fmt: skip
"""Each of these is a dimension of at least one tensor."""
DEPTHS = {
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
    "num_encoder_layers",
}  # fmt: skip
"""Each layer has tensors of its own; a few families share one among all."""
HEADS = {
    "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
    "num_key_value_heads", "num_kv_heads",
}  # fmt: skip
MAY_BE_0 = {"type_vocab_size", "num_labels", "moe_intermediate_size", "num_local_experts", "num_experts"}
SMALL = 128
"""A size up to this is no danger: layers may share their tensors, heads a dimension."""
MOST_LABELS = 100_000
"""A model without its head may still list the classes that it was trained for."""
MOST_DEPTH = 32
"""Configurations inside configurations."""


def check_sizes(config: Mapping[str, Any], *, largest: int, n_tensors: int) -> None:
    """Raise `ModelFileError` for a size that no tensor of the file has.

    Args:
        config: config.json as it is.
        largest: The largest dimension of any tensor in the file.
        n_tensors: How many tensors the file has.
    """
    for part in _parts(config, 0):
        for name, value in part.items():
            if name == "id2label" and isinstance(value, Mapping):
                name, value = "num_labels", len(value)
            most, having = max(largest, SMALL), f"no dimension over {largest:,}"
            if name in DEPTHS:
                most, having = max(n_tensors, SMALL), f"{n_tensors:,} tensors"
            elif name == "num_labels":
                most, having = max(largest, MOST_LABELS), f"at most {MOST_LABELS:,} may be listed"
            elif name not in WIDTHS | HEADS:
                continue
            if value is None:
                continue
            least = 0 if name in MAY_BE_0 else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ModelFileError(
                    f"config.json must give {name} as a whole number from {least}, like 12, got {value!r:.40}."
                )
            if value > most:
                raise ModelFileError(
                    f"config.json says {name} is {value:,}, and the weights have {having}; take the config.json that the "
                    "model was saved with."
                )


def _parts(config: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    if not isinstance(config, Mapping) or depth > MOST_DEPTH:
        return
    yield config
    for value in config.values():
        yield from _parts(value, depth + 1)
