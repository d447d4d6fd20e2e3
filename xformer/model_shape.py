"""The shape of a model, ours or external: its sizes, its layers, and how many heads and neurons each has.

    ModelShape.of(config)          of one of our own models
    adapter.shape                  of any model that is read

Figures, edits and links use this; only code that works on our own weights uses a `ModelConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Literal

from xformer.config import ModelConfig
from xformer.site import Kind, Site, Stack
from xformer.task_limits import Architecture

READ_ONLY = (
    "This model's attention is captured only as returned weights: it can be read, but nothing in a run can be ablated, cut or "
    "replaced."
)


@dataclass(frozen=True, eq=False)
class ModelShape:
    """The sizes of a model. `heads` and `neurons` say how many each layer has, by its path, for layers may differ."""

    architecture: Architecture
    is_causal: bool
    """Whether no position of the stack that reads the input sees what comes later."""
    d_model: int
    n_layers: int
    """Of an encoder-decoder, in each of its two stacks."""
    vocab_size: int
    max_len: int
    """The most positions of a stack."""
    n_inputs: int
    """What it reads are whole numbers from 0 to `n_inputs` - 1: tokens, or the ink of a pixel."""
    sites: tuple[Site, ...]
    """Its attention and feed-forward layers, in the order the input meets them."""
    heads: Mapping[str, int]
    neurons: Mapping[str, int]
    """A feed-forward layer without separate neurons is left out."""
    norm: Literal["pre", "post", "none"]
    """Where a block normalises the stream: before each part, after it, or nowhere."""
    final_norm: bool
    """Whether there is one more norm between the last block and the output layer."""
    can_drop_positions: bool
    """Whether what tells it where a token stands can be switched off."""
    activation: str = ""
    """The function inside its feed-forward layers: "relu", "gelu", …; "" where it is none that has a name here."""
    joined: frozenset[str] = frozenset()
    """The layers after which the stream has no state of its own, as what they add is added together with what others do."""
    experts: Mapping[str, int] = field(default_factory=dict)
    """How many experts each feed-forward layer chooses among, by its path; none where it has no router that was found."""
    is_read_only: bool = False
    """Whether nothing inside a run can be changed: see `READ_ONLY`."""
    rotates: bool = False
    """Whether queries and keys are rotated by their position after the projection (rotary positions)."""
    image: int = 0
    """The side of the square images that it reads, in pixels; 0 where it reads tokens."""
    patch: int = 0
    """The side of the square patches that an image is cut into."""

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, config: ModelConfig) -> ModelShape:
        """The shape of one of our own models."""
        sites = _sites(config)
        return cls(
            **{one.name: getattr(config, one.name) for one in fields(cls) if hasattr(config, one.name)},
            is_causal=bool(config.causal),
            sites=sites,
            heads={site.path: config.n_heads for site in sites if site.is_attention},
            neurons={site.path: config.d_ff for site in sites if not site.is_attention},
            can_drop_positions=config.position_kind.acts_on != "nothing",
            rotates=config.position_kind.acts_on == "queries and keys",
        )

    @cached_property
    def attention(self) -> tuple[Site, ...]:
        """The attention layers, in the order the input meets them."""
        return tuple(site for site in self.sites if site.is_attention)

    @cached_property
    def feed_forward(self) -> tuple[Site, ...]:
        """The feed-forward layers, in the order the input meets them."""
        return tuple(site for site in self.sites if not site.is_attention)

    @property
    def output_stack(self) -> Stack:
        """The stack whose output becomes the logits: the decoder where there is one."""
        return self.sites[-1].stack

    @property
    def is_pair(self) -> bool:
        """Whether it has two stacks, an encoder and a decoder."""
        return self.architecture == "encoder-decoder"

    @property
    def n_heads(self) -> int:
        """How many heads an attention layer has; where layers differ, the most."""
        return max(self.heads.values(), default=0)


def _sites(config: ModelConfig) -> tuple[Site, ...]:
    is_pair = config.architecture == "encoder-decoder"
    after: tuple[Kind, ...] = ("ffn",) if config.d_ff else ()
    stacks: dict[Stack, tuple[Kind, ...]] = {}
    if config.architecture != "decoder":
        stacks["encoder"] = ("attn", *after)
    if config.architecture != "encoder":
        stacks["decoder"] = ("self_attn", "cross_attn", *after) if is_pair else ("attn", *after)
    return tuple(
        Site(stack, layer, kind)
        for stack, kinds in stacks.items()
        for layer in range(config.n_layers)
        for kind in kinds
    )
