"""Similarity of whole texts: the cosine of their pooled vectors, layer by layer.

"mean"     the mean over the positions of a text, without padding      (Reimers & Gurevych 2019, §3)
"last"     the last position, the only one from which a causal model sees all others
"first"    the first position, which encoders of the BERT family train as a summary ([CLS])
"own"      the vector that the model itself computes for a text (text_embeds, pooler_output)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.adapters import ModelAdapter
from xformer.adapters.own_models import NumbersInput, TaskInput
from xformer.analysis.embeddings import cosine_matrix
from xformer.analysis.tables import array_table
from xformer.errors import EditError, InputError, UnavailableError
from xformer.pooling import Pooling, pool_positions
from xformer.reading import Readable, Reading, adapter_of, read

TextPooling = Literal[Pooling, "own"]
POOLINGS: tuple[TextPooling, ...] = get_args(TextPooling)


@torch.no_grad()
def similarity(
    model: Readable | Reading, texts: Sequence[str], *, pooling: TextPooling | None = None, tokenizer: Any = None
) -> pd.DataFrame:
    """Compute the cosine similarity of every pair of texts after each layer.

    Args:
        model: Any model that `xformer.read` accepts, or a reading, of which only the model counts.
        texts: The texts.
        pooling: How the vectors of a text are pooled. The default is the one in the model's folder (the `1_Pooling` of
            sentence-transformers), "own" if the model projects its pooled vector, "last" for a causal model, else "mean".
        tokenizer: The tokenizer for a loaded Hugging Face model.

    Returns:
        A row per layer and ordered pair: layer, first and second (indices in `texts`) and cosine. Layer 0 is the input of the
        first block, layer n the output of block n, and the last layer is after the final norm. With pooling="own" there is only
        the last layer.

    Raises:
        InputError: If the model cannot read one of the texts, or there are none.
        UnavailableError: If the model has no residual stream, is an encoder-decoder, or has no pooled vector of its own.

    Example:
        >>> import xformer
        >>> table = xformer.analysis.similarity("checkpoints/characters", ["to be", "to be or not"])
        >>> table.columns.tolist()
        ['layer', 'first', 'second', 'cosine']
    """
    found = text_vectors(model, texts, pooling=pooling, tokenizer=tokenizer)
    cosine = torch.stack([cosine_matrix(vectors) for vectors in found.values()])  # [layer, text, text]
    numbers = range(len(texts))
    return array_table({"layer": list(found)}, {"first": numbers}, {"second": numbers}, cosine=cosine)


@torch.no_grad()
def text_vectors(
    model: Readable | Reading, texts: Sequence[str], *, pooling: TextPooling | None = None, tokenizer: Any = None
) -> dict[int, Float[Tensor, "text width"]]:
    """Return the pooled vector of each text by layer; see `similarity`."""
    adapter = model.adapter if isinstance(model, Reading) else adapter_of(model, None, tokenizer)
    if adapter.input.kind != "text" and not isinstance(adapter.input, NumbersInput | TaskInput):
        raise UnavailableError(f"{adapter.name} reads no texts, so none can be compared.")
    if not texts:
        raise InputError("There are no texts to compare; give two.")
    pooling = default_pooling(adapter) if pooling is None else pooling
    if pooling not in POOLINGS:
        raise InputError(f"A pooling is one of {', '.join(POOLINGS)}, got {pooling!r}.")
    names = stream_names(adapter)
    if pooling == "own":
        return {len(names) - 1: _own_vectors(adapter, texts)}
    after_norm = "final_norm" if adapter.shape.final_norm else names[-1]
    keep = [*names[:-1], "output" if adapter.output == "vectors" else after_norm]
    reading = read(adapter, list(texts), keep=keep)
    states = [reading[name] for name in keep]  # [text, pos, d_model] each
    valid = reading.trace.valid
    if valid is None:
        valid = torch.ones(states[0].shape[:2], dtype=torch.bool)
    return {layer: pool_positions(state, valid.to(state.device), pooling) for layer, state in enumerate(states)}


def default_pooling(adapter: ModelAdapter) -> TextPooling:
    """Return the pooling that `similarity` uses by default."""
    if adapter.pooling is not None:
        return adapter.pooling
    if adapter.opened is not None and type(adapter.opened.module).__name__.endswith("WithProjection"):
        return "own"  # the class projects the vector of a text (`text_embeds`), which is what it was trained for
    # In a decoder the last position sees all others.
    return "last" if adapter.shape.architecture == "decoder" else "mean"


def stream_names(adapter: ModelAdapter) -> list[str]:
    """Return the activation names of the stream before the first block and after each block."""
    shape = adapter.shape
    if shape.is_encoder_decoder:
        raise UnavailableError(
            f"{adapter.name} is an encoder-decoder, which reads two texts at once; texts are compared in models with one stack."
        )
    layers = list(shape.blocks(shape.output_stack))
    if not shape.d_model or not layers:
        raise UnavailableError(f"No residual stream was found in {adapter.name}.")
    stack = shape.output_stack
    return [f"{stack}.{layers[0]}.resid_pre", *(f"{stack}.{layer}.resid_post" for layer in layers)]


def _own_vectors(adapter: ModelAdapter, texts: Sequence[str]) -> Float[Tensor, "text width"]:
    try:
        return read(adapter, list(texts), keep=["pooled"])["pooled"]
    except EditError as error:
        raise UnavailableError(f"{adapter.name} has no pooled vector of its own for a text.") from error
