"""The interface of a position encoding: its computation, its parameters and requirements, and its explanations.

An encoding acts at one of three points:

    stream               x = E[token] + add(position)
    queries and keys     q, k = rotate(q, angles(position)), rotate(k, angles(position))
    scores               S = Q Kᵀ / √d_head + bias(query's position, key's position)

Other modules call its methods and never branch on its name. No module here imports torch on import, because some commands
validate configurations without it.
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


class PositionSizes(Protocol):
    """The fields of a `ModelConfig` that position encodings use."""

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


def each_head(sizes: PositionSizes) -> str:
    """Return the subject of a caption: "each of the 12 heads", or "the head" if there is only one."""
    return "the head" if sizes.n_heads == 1 else f"each of the {sizes.n_heads} heads"


class PositionKind:
    """Base of the position encodings. Subclasses override the methods for what they do; the defaults do nothing."""

    name: ClassVar[str]
    """The name in a configuration."""
    title: ClassVar[str]
    summary: ClassVar[str]
    """What it does, in one plain sentence."""
    note: ClassVar[str]
    """The consequences."""
    source: ClassVar[str] = ""
    """The paper, with its section; "" if there is none."""
    acts_on: ClassVar[Place]
    can_cache_keys: ClassVar[bool] = True
    """Whether keys and values of earlier tokens are unaffected by new tokens, so that they can be cached."""

    detail: ClassVar[str] = ""
    """The name and whether it is learned, for the diagram of a model."""
    equation: ClassVar[str] = ""
    alternative: ClassVar[str] = ""
    """For encodings that add no vector: what they do instead, as a clause."""

    # ── computation; `tables` are the `learned` and `fixed` tables of one stack ──

    def learned(self, sizes: PositionSizes) -> dict[str, tuple[int, int]]:
        """Return the shapes of the learned tables of each stack, by name."""
        return {}

    def fixed(self, sizes: PositionSizes) -> dict[str, Tensor]:
        """Return the tables that are computed once and never change, by name."""
        return {}

    def add(self, sizes: PositionSizes, tables: Tables, index: Positions, mirrored: Positions) -> Added | None:
        """Return the vectors to add to embeddings of tokens at `index` from the start and `mirrored` from the end."""
        return None

    def angles(self, sizes: PositionSizes, index: Positions) -> Angles | None:
        """Return the rotation angles of queries and keys at each position."""
        return None

    def rotate(self, x: HeadVectors, angles: Angles) -> HeadVectors:
        """Rotate queries or keys by these angles; negative angles undo it."""
        return x

    def bias(
        self, sizes: PositionSizes, tables: Tables, queries: Positions, keys: Positions, *, causal: bool
    ) -> Bias | None:
        """Return the bias of the self-attention scores; `causal` is whether the stack is causal."""
        return None

    # ── requirements ──

    def check(self, sizes: PositionSizes) -> None:
        """Raise `ConfigError` if a model of these sizes cannot use this encoding."""

    def n_parameters(self, sizes: PositionSizes) -> int:
        """Return the number of parameters in each stack."""
        return sum(rows * columns for rows, columns in self.learned(sizes).values())

    # ── explanations ──

    @property
    def activation(self) -> str:
        """The last part of the name of its activation in a trace, or "" if it has none."""
        return _ACTIVATIONS.get(self.acts_on, "")

    @property
    def is_drawn_by_offset(self) -> bool:
        """Whether the figure shows its effect by offset only."""
        return self.acts_on == "scores"

    def can_be_drawn(self, sizes: PositionSizes) -> bool:
        """Return whether it can be drawn for any model of these sizes, because nothing is learned."""
        return self.acts_on != "nothing" and not self.learned(sizes)

    def explanation(self, sizes: PositionSizes) -> str:
        """Describe what it does in a model of these sizes, in one plain sentence."""
        return self.summary

    def offset_caption(self, sizes: PositionSizes) -> str:
        """Return the caption of its figure by offset; "" for the usual caption of what it acts on."""
        return ""

    def offset_note(self, sizes: PositionSizes) -> str:
        """Return a note on what to look for in that figure; "" for none."""
        return ""

    def wave_width(self, sizes: PositionSizes) -> int:
        """Return the number of dimensions of its waves; 0 if it has none."""
        return 0
