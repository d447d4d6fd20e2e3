"""Goes on with a text for as long as is asked: where a model can read no more, its window slides.

    decoder            reads the last `max_len` tokens of all there is, and says the one after them
    encoder-decoder    its encoder reads the last `max_len` tokens, its decoder says the next `max_len`; then both begin anew

While a decoder's window still grows, a key/value cache spares what has been read. Once it slides, every token stands at
another position than before, so each step reads the whole window again, counted from position 0 as in training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from xformer.decoding import GREEDY, Sampling, Step, decode
from xformer.edits import AnyEdit
from xformer.errors import InputError
from xformer.model import Transformer

MOST_TOKENS = 10_000
"""Tokens in one go."""


def continue_text(
    model: Transformer,
    prompt: Int[Tensor, "1 pos"] | Sequence[int],
    n: int,
    *,
    sampling: Sampling = GREEDY,
    edits: Sequence[AnyEdit] = (),
    generator: torch.Generator | None = None,
) -> Iterator[Step]:
    """The n tokens after a prompt of any length, or fewer where the model says its end token.

    A step's position counts what has been said, from 0; its `trace()` is of the window that it was said from.

    Raises `InputError` for an encoder, for an empty prompt and for an n that is out of bounds.
    """
    config = model.config
    if config.architecture == "encoder":
        raise InputError("An encoder answers all at once, so it cannot go on with a text; take a decoder.")
    if not 0 <= n <= MOST_TOKENS:
        raise InputError(f"A model goes on for 0 to {MOST_TOKENS:,} tokens, got {n}; for example 100.")
    tokens = [int(token) for token in (prompt[0] if isinstance(prompt, Tensor) else prompt)]
    if not tokens:
        raise InputError("There is nothing to go on from: give at least one token.")

    def windows(said: int = 0) -> Iterator[Step]:
        while said < n:
            window = tokens[-config.max_len :]
            for step in decode(model, window, sampling=sampling, max_steps=n - said, edits=edits, generator=generator):
                tokens.append(step.token)
                yield replace(step, position=said)
                said += 1
                if step.token == config.end_token:
                    return

    return windows()
