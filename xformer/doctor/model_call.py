"""The arguments of one call of a model, by their meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ModelCall:
    """The arguments of one call of a model."""

    tokens: Int[Tensor, "batch pos"]
    valid: Bool[Tensor, "batch pos"] | None = None
    """False at padding; None: there is no padding, and no mask is passed."""
    positions: Int[Tensor, "batch pos"] | None = None
    """The position of each token; None: its index in the row."""
    segments: Int[Tensor, "batch pos"] | None = None
    """The document of each token, if a row contains several."""
    target: Int[Tensor, "batch target"] | None = None
    """The input of an encoder-decoder's decoder."""
    with_attention: bool = False
    """Whether to request attention weights as well."""
    seed: int = 0
    """The random seed, for models that draw random numbers."""
    recorded: bool = False
    """Whether an xformer model takes its recorded path instead of the fast one."""
    n_cached: int = 0
    """The number of tokens to read first, into a key/value cache; the rest is then read in one call."""
    cached_by: int = 0
    """The number of tokens of each call that fills the cache; 0: all of them are read in one."""

    @property
    def read(self) -> Int[Tensor, "batch out"]:
        """The tokens at whose positions there are logits: the target of an encoder-decoder, else the tokens."""
        return self.tokens if self.target is None else self.target

    def with_read(self, tokens: Int[Tensor, "batch out"]) -> ModelCall:
        """Return the call with other tokens at the positions of the logits."""
        return replace(self, tokens=tokens) if self.target is None else replace(self, target=tokens)

    def each(self, change: Callable[[Tensor], Tensor]) -> ModelCall:
        """Return the call with a function applied to each of its tensors."""
        values = {name: getattr(self, name) for name in TENSORS}
        return replace(self, **{name: change(value) for name, value in values.items() if value is not None})


TENSORS = ("tokens", "valid", "positions", "segments", "target")
"""The fields of `ModelCall` with one row per input."""


def layout_of(run: ModelCall) -> Any:
    """The documents of a call, for an xformer model; None if there are none."""
    if run.segments is None:
        return None
    from xformer.layers.masks import SequencePacking

    return SequencePacking.from_segments(run.segments)
