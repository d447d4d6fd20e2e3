"""The arguments of a model's forward: their common names, and what they need."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from xformer.errors import UnavailableError
from xformer.program.record import Program, source_of

ARGUMENTS = {
    "tokens": ("input_ids", "idx", "ids", "tokens", "x", "input", "src", "source", "src_tokens"),
    "valid": ("attention_mask", "valid", "padding_mask", "key_padding_mask", "src_key_padding_mask"),
    "positions": ("position_ids", "positions", "input_pos", "pos"),
    "attention": ("output_attentions", "return_attention", "return_attentions", "return_attn", "need_weights"),
    "past": ("past_key_values", "past", "cache", "kv_cache"),
    "keep": ("use_cache",),
    "labels": ("labels", "targets", "target"),
    "segments": ("segment_ids", "document_ids", "sequence_ids", "seq_ids"),
    "target": ("decoder_input_ids", "tgt", "trg", "tgt_tokens", "prev_output_tokens"),
}
"""The arguments that checks use, and their common names; the first name that `forward` takes is used."""
TRUE_IS_PADDING = ("padding_mask", "key_padding_mask", "src_key_padding_mask")
"""Masks that are true at padding (torch.nn.Transformer); the others are 1 at tokens."""
_COMPARISONS = {"eq", "ne", "gt"}


def required_of(module: nn.Module) -> set[str]:
    """The arguments of `forward` without a default."""
    parameters = inspect.signature(module.forward).parameters.values()
    return {
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    }


def mask_left_out(module: nn.Module, given: Collection[str]) -> str:
    """The argument of `forward` for a mask of the attention that is not given; "" if there is none."""
    names = inspect.signature(module.forward).parameters
    masks = [name for name in names if "mask" in name.lower() and "pad" not in name.lower()]
    masks = [name for name in masks if name not in given and name not in ARGUMENTS["valid"]]
    own = [name for name in masks if name.startswith(("tgt", "trg", "target", "decoder"))]
    return next(iter(own or masks), "")


def cut_to(name: str, value: Tensor, lengths: Mapping[int, int]) -> Tensor:
    """A mask or another argument with a size for each token, for an input of other lengths.

    Args:
        name: The name of the argument.
        value: Its value; the last two axes may be of positions.
        lengths: The length for which it was given, and that of the input.

    Raises:
        UnavailableError: The input is longer.

    Example:
        >>> import torch
        >>> from xformer.doctor.arguments import cut_to
        >>> cut_to("mask", torch.ones(1, 8, 8), {8: 5}).shape
        torch.Size([1, 5, 5])
    """
    for axis in range(max(0, value.dim() - 2), value.dim()):
        given = value.shape[axis]
        n = lengths.get(given, given)
        if n > given:
            raise UnavailableError(f"The argument {name} is given for {given} tokens, and this check reads {n}.")
        value = value.narrow(axis, 0, n)
    return value


def pad_compared(program: Program, tokens: str, known: Collection[int]) -> int | None:
    """The token of padding, if the code compares its tokens with it; None if it does not.

    Args:
        program: A recorded run.
        tokens: The name of the input with the tokens.
        known: The tokens of padding that tables declare; another one counts if its line says that it is padding.
    """
    for one in program.operations:
        numbers = [arg for arg in one.args if isinstance(arg, int) and not isinstance(arg, bool)]
        is_of_tokens = len(one.inputs) == 1 and source_of(one.inputs[0]).name == tokens
        text = "" if one.line is None else one.line.text.lower()
        if one.name in _COMPARISONS and is_of_tokens and len(numbers) == 1 and ("pad" in text or numbers[0] in known):
            return numbers[0]
    return None


def past_of(returned: Any) -> Any:
    """Return the key/value cache in the result of a call; None if there is none."""
    for name in ARGUMENTS["past"]:
        if getattr(returned, name, None) is not None:
            return getattr(returned, name)
    return returned[1] if isinstance(returned, tuple) and len(returned) > 1 else None
