"""The shape of a model, ours or external: its sizes, its layers, and the number of heads and neurons of each layer.

    ModelShape.of(config)          the shape of one of our own models
    adapter.shape                  the shape of any model that is read

Figures, edits and links use this; only code for our own weights uses a `ModelConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Literal

from xformer.config import ModelConfig
from xformer.layer_path import Kind, LayerPath, Stack
from xformer.task_limits import Architecture

READ_ONLY = (
    "This model's attention is captured only as returned weights: it can be read, but nothing in a run can be ablated, cut or "
    "replaced."
)


@dataclass(frozen=True, eq=False)
class ModelShape:
    """The sizes of a model. Layers may differ, so `heads`, `neurons` and `experts` are given by the path of the layer."""

    architecture: Architecture
    is_causal: bool
    """Whether no position of the stack that reads the input attends to later ones."""
    d_model: int
    n_layers: int
    """The number of blocks; for an encoder-decoder, of each stack."""
    vocab_size: int
    max_len: int
    """The largest number of positions of a stack."""
    n_inputs: int
    """Inputs are integers from 0 to `n_inputs` - 1: tokens, or the ink of a pixel."""
    layer_paths: tuple[LayerPath, ...]
    """The attention and feed-forward layers, in the order of computation."""
    heads: Mapping[str, int]
    """The number of heads of each attention layer."""
    neurons: Mapping[str, int]
    """The number of neurons of each feed-forward layer that has separate neurons."""
    norm: Literal["pre", "post", "none"]
    """Whether a block normalises the stream before each sublayer, after it, or not at all."""
    final_norm: bool
    """Whether there is a norm between the last block and the unembedding."""
    can_drop_positions: bool
    """Whether position information can be switched off."""
    activation: str = ""
    """The activation function of the feed-forward layers: "relu", "gelu", …; "" if unknown."""
    joined: frozenset[str] = frozenset()
    """The layers whose output is added to the stream together with that of other layers, so that there is no state between."""
    experts: Mapping[str, int] = field(default_factory=dict)
    """The number of experts of each feed-forward layer with a located router."""
    is_read_only: bool = False
    """Whether nothing inside a run can be edited; see `READ_ONLY`."""
    rotates: bool = False
    """Whether queries and keys are rotated by position after the projection (rotary positions)."""
    added: tuple[int, int] = (0, 0)
    """The numbers of positions that the model puts before and after those of its input, such as a soft prompt."""
    image: int = 0
    """The side of the square input images in pixels; 0 for models of tokens."""
    patch: int = 0
    """The side in pixels of the square patches of an image."""
    numbered: frozenset[str] = frozenset()
    """The axes of attention layers, as "encoder.0.attn.key", whose positions are not those that their stack reads."""

    without_attention: tuple[tuple[Stack, int], ...] = ()
    """The stack and number of each block without attention, in a model that also has blocks with attention."""

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, config: ModelConfig) -> ModelShape:
        """The shape of one of our own models."""
        sites = _sites(config)
        return cls(
            **{one.name: getattr(config, one.name) for one in fields(cls) if hasattr(config, one.name)},
            is_causal=bool(config.causal),
            layer_paths=sites,
            heads={site.path: config.n_heads for site in sites if site.is_attention},
            neurons={site.path: config.d_ff for site in sites if not site.is_attention},
            can_drop_positions=config.position_kind.acts_on != "nothing",
            rotates=config.position_kind.acts_on == "queries and keys",
        )

    @cached_property
    def attention(self) -> tuple[LayerPath, ...]:
        """The attention layers, in the order of computation."""
        return tuple(site for site in self.layer_paths if site.is_attention)

    @cached_property
    def feed_forward(self) -> tuple[LayerPath, ...]:
        """The feed-forward layers, in the order of computation."""
        return tuple(site for site in self.layer_paths if not site.is_attention)

    def blocks(self, stack: Stack | str) -> dict[int, list[LayerPath]]:
        """The layers of each block of a stack, by the number of the block; empty for a block without attention."""
        found: dict[int, list[LayerPath]] = {layer: [] for of, layer in self.without_attention if of == stack}
        for site in self.layer_paths:
            if site.stack == stack:
                found.setdefault(site.layer, []).append(site)
        return dict(sorted(found.items()))

    def stacks_of(self, site: LayerPath) -> tuple[Stack | None, Stack | None]:
        """The stacks that read the queries' and the keys' positions; None: those of another input or the model's own."""
        query, key = (f"{site.path}.{axis}" in self.numbered for axis in ("query", "key"))
        return None if query else site.query_stack, None if key else site.key_stack

    @property
    def output_stack(self) -> Stack:
        """The stack whose output becomes the logits: the decoder if there is one."""
        return self.layer_paths[-1].stack

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model has two stacks, an encoder and a decoder."""
        return self.architecture == "encoder-decoder"

    @property
    def n_heads(self) -> int:
        """The number of heads of an attention layer; if layers differ, the largest."""
        return max(self.heads.values(), default=0)


def _sites(config: ModelConfig) -> tuple[LayerPath, ...]:
    is_encoder_decoder = config.architecture == "encoder-decoder"
    after: tuple[Kind, ...] = ("ffn",) if config.d_ff else ()
    stacks: dict[Stack, tuple[Kind, ...]] = {}
    if config.architecture != "decoder":
        stacks["encoder"] = ("attn", *after)
    if config.architecture != "encoder":
        stacks["decoder"] = ("self_attn", "cross_attn", *after) if is_encoder_decoder else ("attn", *after)
    return tuple(
        LayerPath(stack, layer, kind)
        for stack, kinds in stacks.items()
        for layer in range(config.n_layers)
        for kind in kinds
    )
