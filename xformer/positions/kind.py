"""The interface of a position scheme: what it adds, learns and needs, and how it is explained.

A scheme acts at one of three places:

    stream               x = E[token] + add(position)
    queries and keys     q, k = turn(q, angles(position)), turn(k, angles(position))
    scores               S = Q Kᵀ / √d_head + bias(query's position, key's position)

The other modules call its methods and never branch on its name. No module here imports torch at import time, because
configurations are checked by commands that run without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    Tables = Mapping[str, Tensor]
    Positions = Int[Tensor, "*batch pos"]
    Added = Float[Tensor, "*batch pos d_model"]
    Angles = Float[Tensor, "*batch pos half"]
    HeadVectors = Float[Tensor, "batch head pos d_head"]
    Bias = Float[Tensor, "#batch head query key"]

Place = Literal["stream", "queries and keys", "scores", "nothing"]
_ACTIVATIONS: dict[Place, str] = {"stream": "pos_embed", "queries and keys": "pos_angles", "scores": "pos_bias"}


class Sizes(Protocol):
    """What a kind has to know of a model: a `ModelConfig` has it all."""

    @property
    def architecture(self) -> str: ...
    @property
    def d_model(self) -> int: ...
    @property
    def d_head(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def max_len(self) -> int: ...
    @property
    def position_base(self) -> float: ...


def each_head(sizes: Sizes) -> str:
    """Whom a caption speaks of: "each of the 12 heads", or "the head" where there is one."""
    return "the head" if sizes.n_heads == 1 else f"each of the {sizes.n_heads} heads"


class PositionKind:
    """One way to tell a model where a token stands. A kind overrides what it does; by default it does nothing."""

    name: ClassVar[str]
    """What a configuration calls it."""
    title: ClassVar[str]
    does: ClassVar[str]
    """What it does, in one plain sentence."""
    more: ClassVar[str]
    """What follows from that, and where it was published."""
    acts_on: ClassVar[Place]
    keeps_keys: ClassVar[bool] = True
    """Whether the keys and values of earlier tokens stay as they are when a token is added, so that they may be cached."""

    detail: ClassVar[str] = ""
    """Its name and whether it is learned, for the picture of a model."""
    equation: ClassVar[str] = ""
    instead: ClassVar[str] = ""
    """What a kind does that adds no vector, as half a sentence."""

    # ── what it does; `tables` are the `learned` and `fixed` ones of one stack ──

    def learned(self, sizes: Sizes) -> dict[str, tuple[int, int]]:
        """The tables that it learns in each stack, by name, with their shapes."""
        return {}

    def fixed(self, sizes: Sizes) -> dict[str, Tensor]:
        """The tables that it works out once and never changes."""
        return {}

    def add(self, sizes: Sizes, tables: Tables, index: Positions, mirrored: Positions) -> Added | None:
        """What is added to the embeddings of tokens that stand `index` from the start and `mirrored` from the end."""
        return None

    def angles(self, sizes: Sizes, index: Positions) -> Angles | None:
        """By how much queries and keys are turned at each position."""
        return None

    def turn(self, x: HeadVectors, angles: Angles) -> HeadVectors:
        """Queries or keys, turned by those angles; by their negative, turned back."""
        return x

    def bias(self, sizes: Sizes, tables: Tables, queries: Positions, keys: Positions, *, causal: bool) -> Bias | None:
        """What is added to the scores of self-attention; `causal` says that its stack looks back only."""
        return None

    # ── what it needs ──

    def check(self, sizes: Sizes) -> None:
        """Raise a `ConfigError` when a model of these sizes cannot have such positions."""

    def n_parameters(self, sizes: Sizes) -> int:
        """How many numbers it learns in each stack."""
        return sum(rows * columns for rows, columns in self.learned(sizes).values())

    # ── how it is explained ──

    @property
    def activation(self) -> str:
        """What it leaves in a trace: the end of a name, or "" where it leaves nothing."""
        return _ACTIVATIONS.get(self.acts_on, "")

    @property
    def is_drawn_by_offset(self) -> bool:
        """Whether how far apart two positions are is all that there is to draw."""
        return self.acts_on == "scores"

    def can_be_drawn(self, sizes: Sizes) -> bool:
        """Whether it can be drawn of any model of these sizes: nothing of it is learned."""
        return self.acts_on != "nothing" and not self.learned(sizes)

    def explained(self, sizes: Sizes) -> str:
        """What it does in a model of these sizes, in one plain sentence."""
        return self.does

    def offset_caption(self, sizes: Sizes) -> str:
        """What is seen where it is drawn by how far apart two positions are; "" for the dot products of added vectors."""
        return ""

    def offset_note(self, sizes: Sizes) -> str:
        """What to notice there; "" for nothing."""
        return ""

    def wave_width(self, sizes: Sizes) -> int:
        """How many dimensions its waves are spread over; 0 where it has none."""
        return 0
