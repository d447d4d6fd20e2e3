"""A text, or tokens, laid out for a model that somebody else made, with what stands at each of its outputs.

causal             the token that really comes next
masked             the token itself, at a mask what the unchanged model says
encoder-decoder    "source >> target"; without a target the model writes one, the likeliest token each time
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Int
from torch import Tensor

from xformer.errors import InputError
from xformer.model_shape import ModelShape
from xformer.subjects.foreign.opened import OpenedModel
from xformer.subjects.foreign.text_input import BETWEEN, TokenizedText
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example

N_WRITTEN = 24
"""The most tokens that an encoder-decoder writes itself where no target is given."""


class ReadsText(Protocol):
    """A model with its tokenizer."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> ModelShape: ...

    @property
    def input(self) -> TokenizedText: ...

    @property
    def tokenizer(self) -> Any: ...

    @property
    def opened(self) -> OpenedModel: ...

    def logits(self, example: Example) -> Tensor: ...


def framed_text(model: ReadsText, typed: str | Sequence[int]) -> Example:
    """What was typed as an example. Raises `InputError` where the model cannot read it."""
    if model.shape.is_pair:
        return _pair(model, typed)
    ids = _ids(model, typed)
    stream = torch.tensor([ids])
    labels = torch.full_like(stream, IGNORED)
    if model.shape.is_causal:
        labels[:, :-1] = stream[:, 1:]
    else:
        labels = _filled(model, stream)
    answer = tuple(label for label in labels[0].tolist() if label != IGNORED)
    return Example(tuple(ids), answer, stream, None, stream, labels)


def _ids(model: ReadsText, typed: str | Sequence[int]) -> list[int]:
    """The tokens of a text, with whatever special ones the tokenizer puts around it, or those that are given."""
    ids = list(model.input.read(typed)) if isinstance(typed, str) else [int(token) for token in typed]
    n, most = model.shape.n_inputs, model.shape.max_len
    if not ids:
        raise InputError(f"{model.name} reads 1 to {most} tokens, got none; type a word.")
    if len(ids) > most:
        raise InputError(f"{model.name} reads 1 to {most} tokens, got {len(ids)}; take some away.")
    if not all(0 <= token < n for token in ids):
        raise InputError(f"The tokens of {model.name} are 0 to {n - 1}, got {max(ids, key=lambda token: abs(token))}.")
    return ids


def _filled(model: ReadsText, stream: Int[Tensor, "1 pos"]) -> Int[Tensor, "1 pos"]:
    """What stands at each output of a model that sees both sides; special tokens are not asked for."""
    labels, mask = stream.clone(), model.tokenizer.mask_token_id
    labels[torch.isin(stream, torch.tensor(sorted({*model.tokenizer.all_special_ids} - {mask})))] = IGNORED
    if (masked := stream == mask).any():
        labels[:] = IGNORED
        example = Example(tuple(stream[0].tolist()), (), stream, None, stream, labels)
        labels[masked] = model.logits(example).argmax(dim=-1)[masked]
    return labels


def _pair(model: ReadsText, typed: str | Sequence[int]) -> Example:
    """Source and target of an encoder-decoder."""
    source: Any
    target: Any
    if isinstance(typed, str):
        source, between, target = typed.partition(BETWEEN)
    else:
        between = len(typed) == 2 and not isinstance(typed[0], int)
        source, target = typed if between else (typed, ())
    ids = _ids(model, source)
    stream = torch.tensor([ids])
    config: Any = model.opened.module.config
    start = int((config.bos_token_id or 0) if config.decoder_start_token_id is None else config.decoder_start_token_id)
    if not between:
        said = _written(model, stream, start)
    elif isinstance(target, str):
        said = list(model.tokenizer(text_target=target.strip())["input_ids"])
    else:
        said = [int(token) for token in target]
    labels, read = torch.tensor([said]), torch.tensor([[start, *said[:-1]]])
    return Example(tuple(ids), tuple(said), stream, read, stream, labels)


def _written(model: ReadsText, stream: Int[Tensor, "1 pos"], start: int) -> list[int]:
    said: list[int] = []
    while len(said) < N_WRITTEN:
        read = torch.tensor([[start, *said]])
        said.append(int(model.logits(Example((), (), stream, read, stream, read))[0, -1].argmax()))
        if said[-1] == model.tokenizer.eos_token_id:
            break
    return said
