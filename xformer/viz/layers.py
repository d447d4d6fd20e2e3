"""One layer's attention as the attention view draws it: arrays, or what a large run keeps of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from xformer.blocks import factor
from xformer.subjects.foreign.on_demand import OnDemand
from xformer.subjects.foreign.small_pattern import Reduced, Small
from xformer.viz.planes import exact_block, moved, small


@dataclass(frozen=True, eq=False)
class PatternLayer:
    """The attention of one layer as arrays and labels.

    `pattern` [head, query, key] holds weights, each row summing to 1; `allowed` (broadcastable to it) is False where
    the mask forbids to look. Rows are not checked: a broken layer has to be shown as it is. `z_size` is the mean length of
    each head's z over the queries, none where it is not known: a head whose z is 0 looks, but says nothing.
    Raises ValueError where shapes or labels do not agree.
    """

    name: str
    title: str
    pattern: Float[np.ndarray, "head query key"]
    allowed: Bool[np.ndarray, "#head #query #key"]
    query_labels: tuple[str, ...]
    key_labels: tuple[str, ...]
    z_size: tuple[float, ...] = ()

    @property
    def silenced(self) -> tuple[int, ...]:
        """The heads, from 0, that look at something and write nothing."""
        return tuple(
            head for head, size in enumerate(self.z_size) if size == 0 and np.nan_to_num(self.pattern[head]).any()
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """[head, query, key]."""
        heads, queries, keys = self.pattern.shape
        return heads, queries, keys

    @property
    def is_masked(self) -> bool:
        """Whether the mask forbids anything."""
        return not bool(self.allowed.all())

    def pool(self, side: int) -> tuple[int, int]:
        """How many cells become one in planes of so many cells a side."""
        return factor(self.shape[1], side), factor(self.shape[2], side)

    def reduced(self, side: int) -> Small:
        """What a small picture of each head shows."""
        return small(self.pattern, self.allowed, side)

    def exact(self, head: int) -> Float[np.ndarray, "query key"]:
        """One head as it is."""
        return exact_block(self.pattern, self.allowed, head)

    def moved_from(self, before: AnyLayer) -> Float[np.ndarray, " head"]:
        """How far each head moved from another run."""
        return moved(before.pattern, self.pattern)

    def __post_init__(self) -> None:
        shape = self.pattern.shape
        if len(shape) != 3 or 0 in shape:
            raise ValueError(f"A pattern has the axes [head, query, key], none of them empty; {self.name} has {shape}.")
        if (len(self.query_labels), len(self.key_labels)) != shape[1:]:
            raise ValueError(
                f"Every query and key needs one label; {self.name} has {shape[1]} queries and {shape[2]} keys but "
                f"{len(self.query_labels)} and {len(self.key_labels)} labels."
            )
        if self.allowed.dtype != np.bool_:
            raise ValueError(f"The mask is boolean, False where masked; {self.name} has {self.allowed.dtype}.")
        try:
            fits = np.broadcast_shapes(self.allowed.shape, shape) == shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(f"The mask has to broadcast to {shape}; {self.name} has {self.allowed.shape}.")


@dataclass(frozen=True, eq=False)
class LaterLayer:
    """The attention of one layer of a large run: small pictures are there, a pattern is worked out when it is asked for."""

    name: str
    title: str
    kept: Reduced
    run: OnDemand
    query_labels: tuple[str, ...]
    key_labels: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        heads, queries, keys = self.kept.shape
        return heads, queries, keys

    @property
    def pattern(self) -> Float[np.ndarray, "head query key"]:
        return self.run[f"{self.name}.pattern"][0].float().numpy(force=True)

    @property
    def allowed(self) -> Bool[np.ndarray, "head query key"]:
        return self.run[f"{self.name}.mask"][0].numpy(force=True)

    @property
    def z_size(self) -> tuple[float, ...]:
        return self.kept.z_size

    @property
    def silenced(self) -> tuple[int, ...]:
        return self.kept.silenced

    @property
    def is_masked(self) -> bool:
        return self.kept.is_masked

    def pool(self, side: int) -> tuple[int, int]:
        """As it was pooled when it ran, whatever the side."""
        rows, cols = self.kept.small.planes.shape[1:]
        return factor(self.shape[1], rows), factor(self.shape[2], cols)

    def reduced(self, side: int) -> Small:
        return self.kept.small

    def exact(self, head: int) -> Float[np.ndarray, "query key"]:
        if not self.is_masked:
            return exact_block(self.pattern, np.ones((1, 1, 1), dtype=bool), head)
        return exact_block(self.pattern, self.allowed, head)

    def moved_from(self, before: AnyLayer) -> Float[np.ndarray, " head"]:
        """Worked out once for each run before."""
        if not isinstance(before, LaterLayer):
            return moved(before.pattern, self.pattern)
        return self.run.remembered((before.run, self.name), lambda: moved(before.pattern, self.pattern))


AnyLayer = PatternLayer | LaterLayer
