"""Which part of an unknown model is what, under our names: found once, by watching one run.

layer        how many blocks of its stack were entered before, so that a layer that is shared counts by call
stack        "encoder" or "decoder"; cross-attention looks from the one into the other
taps         which module's input or output is which activation
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from xformer.adapters.projections import ProjectionPlace
from xformer.site import Site, Stack

Side = Literal["in", "out", "adds", "angles", "experts"]
"""Where an activation is met: what a module takes, what it gives, what it adds to the stream, the angles of a rotation, the
choice of a router."""


@dataclass(frozen=True)
class Tap:
    """One activation at one call of a module."""

    module: str
    side: Side
    number: int
    name: str
    factor: float = 1.0
    """What it is multiplied with before it is added to the stream."""
    is_changed_later: bool = False
    """Whether a later part writes over it, so that what is kept has to be a copy."""


@dataclass
class Layout:
    """What was found."""

    attention: tuple[Site, ...]
    """The site of each attention, in the order of the calls."""
    owner_calls: tuple[tuple[str, int], ...]
    """For each attention the module that holds it, and which of its calls that is."""
    taps: list[Tap] = field(default_factory=list)
    feed_forward: list[Site] = field(default_factory=list)
    norms: dict[str, Literal["pre", "post", "parallel"]] = field(default_factory=dict)
    """How each block that could be taken apart uses its norms, by the path of its attention."""
    last: dict[Stack, str] = field(default_factory=dict)
    """The module that gives the last state of each stack's stream."""
    norm_before: dict[str, str] = field(default_factory=dict)
    """The norm between the stream and an attention, by the attention's path."""
    final_norm: dict[Stack, str] = field(default_factory=dict)
    projections: dict[str, ProjectionPlace] = field(default_factory=dict)
    """What maps the heads, or the neurons, of each layer back to the stream, by its path, where one matrix does."""
    norm_after: dict[str, str] = field(default_factory=dict)
    """The norm that stands on the stream after a layer's output was added, by its path, where there is one."""

    @property
    def owners(self) -> tuple[str, ...]:
        """The modules that hold an attention."""
        return tuple(dict.fromkeys(path for path, _ in self.owner_calls))

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(site.path for site in self.attention)

    @property
    def sites(self) -> tuple[Site, ...]:
        """Attention and feed-forward layers, in the order the input meets them."""
        order = {site: index for index, site in enumerate(self.attention)}
        stacks = list(dict.fromkeys(site.stack for site in self.attention))
        last = len(order)
        return tuple(
            sorted(
                dict.fromkeys([*self.attention, *self.feed_forward]),
                key=lambda site: (stacks.index(site.stack), site.layer, order.get(site, last)),
            )
        )
