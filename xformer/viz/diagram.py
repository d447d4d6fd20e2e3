"""Describe the picture of a model: its parts, how they are joined, and the real shapes and counts of each.

    diagram(config, n_tokens=9)      ->      Diagram(stacks, boxes, arrows)

Nothing is drawn here. A box says what stands where on the residual stream, an arrow says what flows into what, and one
layer of a stack stands for all of them (`Box.repeats`).
"""

from __future__ import annotations

from collections.abc import Callable

from xformer.config import ModelConfig
from xformer.viz.diagram_boxes import Boxes
from xformer.viz.diagram_parts import Arrow, Box, Diagram, Flow, StackFrame


def diagram(config: ModelConfig, n_tokens: int, n_target: int | None = None) -> Diagram:
    """Describe the picture of a model that reads `n_tokens` tokens (an encoder-decoder: and writes `n_target`).

    Raises ValueError when a length does not fit the configuration.
    """
    two = config.architecture == "encoder-decoder"
    lengths = [_length(config, "n_tokens", n_tokens)]
    if two:
        lengths.append(_length(config, "n_target", n_target))
    elif n_target is not None:
        raise ValueError(f"Only an encoder-decoder has a target; leave n_target out, received n_target={n_target}.")
    names = ("encoder", "decoder") if two else (config.architecture,)
    stacks = [_Walk(config, name, length, is_pair=two) for name, length in zip(names, lengths, strict=True)]
    for stack in stacks:
        stack.build(memory=stacks[0] if two and stack is stacks[-1] else None)
    layers = f"{config.n_layers} + {config.n_layers}" if two else str(config.n_layers)
    noun = "layer" if config.n_layers == 1 and not two else "layers"
    kind = {"encoder": "Encoder", "decoder": "Decoder", "encoder-decoder": "Encoder-decoder"}[config.architecture]
    return Diagram(
        title=f"{kind}, {layers} {noun}, d_model {config.d_model}",
        norm=config.norm,
        stacks=tuple(stack.frame for stack in stacks),
        boxes=tuple(box for stack in stacks for box in stack.boxes),
        arrows=tuple(arrow for stack in stacks for arrow in stack.arrows),
    )


def _length(config: ModelConfig, name: str, value: int | None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= config.max_len:
        raise ValueError(f"{name} must be from 1 to max_len = {config.max_len}, received {value!r}; for example 1.")
    return value


class _Walk:
    """Collects the boxes and arrows of one stack in the order the input meets them."""

    def __init__(self, config: ModelConfig, name: str, length: int, *, is_pair: bool) -> None:
        self.config = config
        self.make = Boxes(config, name, length, is_pair=is_pair)
        self.boxes: list[Box] = []
        self.arrows: list[Arrow] = []
        self.speaks = not (is_pair and name == "encoder")
        layer = {"encoder": "Encoder", "decoder": "Decoder"}[name]
        n_sublayers = 1 + self.make.crosses + bool(config.d_ff)
        self.frame = StackFrame(name, f"{layer} layer", config.n_layers, n_sublayers)
        self.tip = ""  # the id of the box that the stream has reached

    def build(self, memory: _Walk | None) -> None:
        """Walk along the stream once; `memory` is the encoder that a decoder's cross-attention reads."""
        make = self.make
        self._extend(make.input())
        self._extend(make.embedding())
        self._positions()
        self._sublayer(make.attention_name, make.self_attention)
        if memory is not None:
            self._sublayer("cross_attn", lambda index: make.cross_attention(index, memory.make.length))
            self.arrows.append(Arrow(memory.tip, make.id("cross_attn"), "memory"))
        if self.config.d_ff:
            self._sublayer("ffn", make.feed_forward)
        if self.config.final_norm:
            self._extend(make.norm("final_norm", f"{make.once}final_norm", None, "after the last layer"))
        if self.speaks:
            self._extend(make.output())

    def _add(self, box: Box) -> Box:
        self.boxes.append(box)
        return box

    def _extend(self, box: Box, flow: Flow = "stream") -> None:
        """Go on along the stream to a new box."""
        self._add(box)
        if self.tip:
            self.arrows.append(Arrow(self.tip, box.id, flow))
        self.tip = box.id

    def _positions(self) -> None:
        if self.config.position_kind.acts_on == "nothing":
            return
        make = self.make
        box = self._add(make.positions())
        if self.config.position_kind.acts_on == "stream":
            self._extend(make.sum("pos_sum", None, "the position's vector to the token's", f"{make.layer}resid_pre"))
            self.arrows.append(Arrow(box.id, self.tip, "add"))

    def _sublayer(self, name: str, describe: Callable[[int], Box]) -> None:
        """A sublayer in its residual connection: pre x + f(Norm(x)), post Norm(x + f(x)), none x + f(x)."""
        config, make, before = self.config, self.make, self.tip
        index = sum(box.kind in ("attention", "feed_forward") for box in self.boxes)
        entry = before
        if config.norm == "pre":
            norm = self._add(make.norm(f"{name}_norm", f"{make.layer}{name}.in", index, "before the sublayer"))
            self.arrows.append(Arrow(before, norm.id, "branch"))
            entry = norm.id
        box = self._add(describe(index))
        self.arrows.append(Arrow(entry, box.id, "branch"))
        if name in ("attn", "self_attn") and config.position_kind.acts_on in ("queries and keys", "scores"):
            self.arrows.append(Arrow(make.id("positions"), box.id, "inside"))
        after = make.layer + {"ffn": "resid_post", "cross_attn": "resid_cross"}.get(name, "resid_mid")
        found = {"attention": "what attention found", "feed_forward": "what the feed-forward made"}[box.kind]
        # With post-norm the trace keeps the stream after the norm, so the bare sum has no name of its own.
        kept = None if config.norm == "post" else after
        self._extend(make.sum(f"{name}_sum", index, f"{found} to the stream", kept), "residual")
        self.arrows.append(Arrow(box.id, self.tip, "branch"))
        if config.norm == "post":
            self._extend(make.norm(f"{name}_norm", after, index, "after the sum"))
