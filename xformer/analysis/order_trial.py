"""Does a model notice the order of what it reads once its positions are off? It is run on the input, and backwards."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from xformer.edits import zero_positions
from xformer.reading import Reading
from xformer.subjects import own_model
from xformer.trace import record

ROUNDING = 1e-4
"""Logits that differ by less than this share of the largest are the same but for single precision."""
MOST_TOKENS_READ = 32
"""More would show no more."""


@dataclass(frozen=True)
class OrderTest:
    """What a model without positions makes of the same tokens (patches) in another order."""

    difference: float
    """The largest difference of any logit, each token's output compared with its own in the other order."""
    scale: float
    """The largest magnitude of any logit."""

    @property
    def is_blind(self) -> bool:
        """Whether nothing but rounding is left of the order."""
        return self.difference <= ROUNDING * self.scale


def order_test(reading: Reading) -> OrderTest | None:
    """Run a model of one stack with its positions off on its input (the first `MOST_TOKENS_READ` tokens), and backwards.

    An image is put together from its patches in reverse order; its class token stays in front. None for a model of two stacks,
    and where backwards is the same as forwards, so that there is nothing to be seen.
    """
    model = own_model(reading.subject)
    config, inputs = model.config, reading.example.tokens[:1]
    inputs = inputs if config.patch else inputs[:, :MOST_TOKENS_READ]
    other = reversed_patches(inputs, config.patch) if config.patch else inputs.flip(1)
    if reading.is_pair or other.equal(inputs):
        return None
    off = [] if config.position_kind.acts_on == "nothing" else [zero_positions()]
    forwards, backwards = (
        record(model, x, edits=off, keep=["logits"]).logits[0] for x in (inputs, other)
    )  # [out, vocab]
    if config.patch:
        forwards, backwards = forwards[:1], backwards[:1]  # the answer is read at the class token alone
    else:
        backwards = backwards.flip(0)
    return OrderTest((forwards - backwards).abs().max().item(), forwards.abs().max().item())


def reversed_patches(pixels: Int[Tensor, "batch pixel"], patch: int) -> Int[Tensor, "batch pixel"]:
    """The same images with their patches in reverse order: the last one first, each as it is inside."""
    side = math.isqrt(pixels.shape[-1])
    across = side // patch
    tiles = pixels.view(-1, across, patch, across, patch)  # [batch, row, y, column, x]
    return tiles.flip(1, 3).reshape(pixels.shape)
