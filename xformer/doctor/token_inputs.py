"""The tokens that a model reads: its vocabulary, and the given or arbitrary ids."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from xformer.adapters.huggingface_opening import example_inputs, is_encoder_decoder, n_target_tokens_of, n_tokens_of
from xformer.doctor.arguments import ARGUMENTS
from xformer.errors import InputError
from xformer.model import Transformer
from xformer.tasks.task import plain_ids


def reads_pairs(model: nn.Module) -> bool:
    """Return whether a model reads a source and a target."""
    if isinstance(model, Transformer):
        return model.config.architecture == "encoder-decoder"
    if hasattr(model, "main_input_name"):
        return is_encoder_decoder(model)
    return any(name in inspect.signature(model.forward).parameters for name in ARGUMENTS["target"])


def n_tokens_read(model: nn.Module) -> int:
    """Return the size of the input vocabulary; 0 if it is unknown."""
    if isinstance(model, Transformer):
        return model.config.n_inputs
    if hasattr(model, "main_input_name"):
        n_tokens = n_tokens_of(model)  # of two vocabularies, tokens of the smaller one can be read by both stacks
        return min(n_tokens, n_target_tokens_of(model) or n_tokens) if is_encoder_decoder(model) else n_tokens
    return next((one.num_embeddings for one in model.modules() if isinstance(one, nn.Embedding)), 0)


def encoded(text: str, tokenizer: Any) -> Tensor:
    """Return the token ids of a text, [1, pos]. Raises `InputError` without a tokenizer."""
    if tokenizer is None:
        raise InputError("A text needs a tokenizer; for example diagnose(model, text, tokenizer).")
    return torch.tensor([tokenizer(text)["input_ids"]])


def as_rows(inputs: Any) -> Tensor:
    """Return given token ids as [batch, pos]. Raises `InputError` for other shapes."""
    inputs = plain_ids(inputs)
    tokens = inputs if isinstance(inputs, Tensor) else torch.as_tensor(inputs)
    if tokens.dim() not in (1, 2) or tokens.numel() == 0 or tokens.dtype == torch.bool:
        raise InputError(
            f"Token ids must be [pos] or [batch, pos], like [[3, 7, 12]], got {tokens.dtype} {list(tokens.shape)}."
        )
    return tokens[None] if tokens.dim() == 1 else tokens


def arbitrary_tokens(model: nn.Module, n_tokens: int, seed: int = 0) -> Tensor:
    """Draw arbitrary tokens, without special ones, for a model without given inputs."""
    draw = torch.Generator().manual_seed(seed)
    if isinstance(model, Transformer):
        n = model.config.image**2 or min(12, model.config.max_len)
        return torch.randint(1, n_tokens, (1, n), generator=draw)
    if hasattr(model, "main_input_name"):
        example = example_inputs(model, seed)
        name = "decoder_input_ids" if seed and "decoder_input_ids" in example else "input_ids"
        if name not in example:
            raise InputError(f"The checks need a model that reads token ids, and {type(model).__name__} does not.")
        return example[name]
    if n_tokens == 0:
        raise InputError(
            "This module has no embedding table, so its vocabulary is unknown; give inputs, for example "
            "torch.tensor([[3, 7]])."
        )
    return torch.randint(0, n_tokens, (1, min(12, n_tokens)), generator=draw)


def lengths_of_tables(module: nn.Module, n_tokens: int) -> list[int]:
    """The sizes of the tables and masks of a module, but for the table of its tokens; some limit the number of positions."""
    tables = list[int]()
    for one in module.modules():
        if isinstance(one, nn.Embedding):
            tables += [one.num_embeddings] if one.num_embeddings != n_tokens else []
            continue
        kept = [*one.named_buffers(recurse=False), *vars(one).items()]
        kept += [(name, value) for name, value in one.named_parameters(recurse=False) if "pos" in name or name == "pe"]
        tables += [size for _, value in kept if isinstance(value, Tensor) for size in _lengths(value)]
    return tables


def _lengths(value: Tensor) -> tuple[int, ...]:
    """Return the sizes that may limit the number of positions: of a mask or table, all axes but that of features."""
    if value.dim() < 2:
        return ()
    is_square = value.shape[-1] == value.shape[-2]
    return tuple(value.shape) if is_square or not value.is_floating_point() else tuple(value.shape[:-1])
