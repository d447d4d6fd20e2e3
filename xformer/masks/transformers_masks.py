"""Masks as Transformers makes them from the arguments of a model, and as a model's own code used them."""

from __future__ import annotations

from typing import Any

import torch

from xformer.errors import InputError, UnavailableError
from xformer.formatting import check_index, check_option
from xformer.installed import needed
from xformer.masks.mask import DenseMask, as_mask
from xformer.reading import Reading

KINDS = ("causal", "sliding_window", "chunked", "bidirectional", "bidirectional_sliding_window")
MAX_POSITIONS = 8192
"""The most positions of a mask that Transformers writes out."""


def transformers_mask(
    kind: str = "causal",
    *,
    attention_mask: Any = None,
    position_ids: Any = None,
    block_sequence_ids: Any = None,
    n_query: int | None = None,
    window: int | None = None,
) -> DenseMask:
    """Return the mask that Transformers makes for a kind of layer from the arguments of a model.

    Its own functions make it, with `attn_implementation="eager"`. Packed documents are recognised by positions that start
    again, but only if there is no `attention_mask`, even one of ones.

    Args:
        kind: One of `KINDS`.
        attention_mask: 1 for tokens and 0 for padding, [batch, key]; None: no padding.
        position_ids: The positions of the tokens, [batch, query]; None: 0, 1, 2, …
        block_sequence_ids: The block of each token in which tokens see each other, −1 for none, [batch, key].
        n_query: The number of positions, if no tensor says it.
        window: The size of the sliding window or of the chunks.

    Returns:
        The mask, written out.

    Raises:
        InputError: If an argument is missing or does not fit.
        MissingLibraryError: If transformers is not installed.

    Example:
        >>> import torch
        >>> from xformer import masks
        >>> packed = torch.tensor([[0, 1, 2, 0, 1]])
        >>> print(masks.describe(masks.transformers_mask(position_ids=packed)))
        causal, 2 documents at 0, 3
        >>> print(masks.describe(masks.transformers_mask(position_ids=packed, attention_mask=torch.ones(1, 5))))
        causal
    """
    check_option("kind", kind, KINDS)
    with needed("transformers", "transformers_mask"):
        from transformers import LlamaConfig, masking_utils
    tensors = {"attention_mask": attention_mask, "position_ids": position_ids, "block_sequence_ids": block_sequence_ids}
    given = {name: torch.as_tensor(value) for name, value in tensors.items() if value is not None}
    for name, value in given.items():
        if value.dim() != 2:
            raise InputError(f"{name} must have shape [batch, position], got {tuple(value.shape)}.")
    n_batch = max((len(value) for value in given.values()), default=1)
    n = next((value.shape[1] for value in given.values()), n_query)
    if n is None:
        raise InputError("transformers_mask needs a number of positions: n_query=, attention_mask= or position_ids=.")
    check_index("n_query", n, MAX_POSITIONS + 1, least=1)
    if kind in ("causal", "bidirectional"):
        if window is not None:
            raise InputError(f"kind={kind!r} has no window; use kind='sliding_window'.")
    else:
        check_index("window", window, least=1)
    if kind.startswith("bidirectional") and position_ids is not None:
        raise InputError(f"kind={kind!r} takes no position_ids; use attention_mask.")
    if block_sequence_ids is not None and kind == "bidirectional":
        raise InputError("kind='bidirectional' takes no block_sequence_ids: all tokens see each other already.")
    config_class: Any = LlamaConfig
    config = config_class(
        sliding_window=window, attention_chunk_size=window, num_hidden_layers=1, attn_implementation="eager"
    )
    make = {
        "causal": "create_causal_mask",
        "sliding_window": "create_sliding_window_causal_mask",
        "chunked": "create_chunked_causal_mask",
        "bidirectional": "create_bidirectional_mask",
        "bidirectional_sliding_window": "create_bidirectional_sliding_window_mask",
    }[kind]
    arguments = {"past_key_values": None} if not kind.startswith("bidirectional") else {}
    arguments |= {"position_ids": given["position_ids"]} if "position_ids" in given else {}
    arguments |= {"block_sequence_ids": given["block_sequence_ids"]} if "block_sequence_ids" in given else {}
    made = getattr(masking_utils, make)(
        config=config, inputs_embeds=torch.zeros(n_batch, n, 1), attention_mask=given.get("attention_mask"), **arguments
    )
    if made is None:  # nothing is masked
        made = torch.ones(n_batch, 1, n, n, dtype=torch.bool)
    found = as_mask(made)
    assert isinstance(found, DenseMask)
    return found


def recorded_mask(reading: Reading, layer: int = 0) -> DenseMask:
    """Return the mask that a layer of a recorded run applied.

    Args:
        reading: The run.
        layer: The attention layer, from 0.

    Returns:
        The mask; its last query is at the last key.

    Raises:
        UnavailableError: If the layer has no recorded mask.

    Example:
        >>> import xformer
        >>> from xformer import masks
        >>> reading = xformer.read("checkpoints/induction", [3, 7, 12, 9])
        >>> print(masks.describe(masks.recorded_mask(reading)))
        causal
    """
    path = reading.attention_path(layer).path
    found = reading.get(f"{path}.mask")
    if found is None:
        raise UnavailableError(f"{path} has no recorded mask: the run shows only the weights of attention.")
    pattern = reading[f"{path}.pattern"]
    cells = found.expand(len(pattern), found.shape[1], *pattern.shape[-2:]).bool()
    n_query, n_key = cells.shape[-2:]
    mask = as_mask(cells, first_query=n_key - n_query)
    assert isinstance(mask, DenseMask)
    return mask
