"""Describe the picture of a model: its parts, how they are joined, and the real shapes and counts of each.

    diagram(config, n_tokens=9)      ->      Diagram(stacks, boxes, arrows)

Nothing is drawn here. A box says what stands where on the residual stream, an arrow says what flows into what, and one
layer of a stack stands for all of them (`Box.repeats`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from xformer.components import MaskPicture
from xformer.config import ModelConfig
from xformer.counting import parameters_by_part


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


Kind = Literal["tokens", "embedding", "positions", "attention", "feed_forward", "norm", "sum", "output"]

Place = Literal["stream", "above", "rise"]
"""On the residual stream · above it, off the stream · on the way up from the stream into a sublayer (pre-norm)."""

Flow = Literal["stream", "residual", "branch", "add", "inside", "memory"]
"""Along the stream · past a sublayer · through a sublayer · positions added to the stream · positions that act inside
attention · the encoder's output, which cross-attention reads keys and values from."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """One part of the picture.

    `shape` is that of its output for one input, and `activation` the name under which a trace keeps that output (None
    where a trace has none). `parameters` counts one such part, of which the model has `repeats`. `sublayer` counts the
    sublayers inside a layer; None stands outside the layers.
    """

    id: str
    kind: Kind
    stack: str
    place: Place
    title: str
    equation: str = ""
    detail: str = ""
    what: str
    shape: tuple[int, ...]
    activation: str | None = None
    parameters: int = 0
    repeats: int = 1
    sublayer: int | None = None
    heads: int = 0
    mask: MaskPicture | None = None
    note: str = ""

    @property
    def shape_text(self) -> str:
        """The shape as PyTorch prints it: "[1, 9, 16]"."""
        return f"[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Arrow:
    """What flows from one box into another, both named by their ids."""

    source: str
    target: str
    flow: Flow


@dataclass(frozen=True)
class StackFrame:
    """The layers of one stack, drawn once: how many there are, and how many sublayers each has."""

    name: str
    title: str
    n_layers: int
    n_sublayers: int


@dataclass(frozen=True)
class Diagram:
    """A whole model as a picture to be drawn; see `Box`, `Arrow` and `StackFrame`."""

    title: str
    norm: str
    stacks: tuple[StackFrame, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    total: int | None = None
    """The learned numbers of the whole model, where those of its boxes are not known one by one."""

    def __getitem__(self, box_id: str) -> Box:
        return next(box for box in self.boxes if box.id == box_id)

    @property
    def n_parameters(self) -> int:
        """The learned numbers of all boxes, repeats included: those of the whole model."""
        return sum(box.parameters * box.repeats for box in self.boxes) if self.total is None else self.total

    def frame(self) -> pd.DataFrame:
        """The parts as a table: what each is, its output shape, its parameters, and how many of it there are."""
        columns = ("stack", "title", "what", "equation", "detail", "shape", "parameters", "repeats", "activation")
        rows = [
            {name: box.shape_text if name == "shape" else getattr(box, name) for name in columns} for box in self.boxes
        ]
        return pd.DataFrame(rows, columns=pd.Index(columns))


class Boxes:
    """The boxes of one stack; `is_pair` says that it is one of an encoder-decoder's two."""

    def __init__(self, config: ModelConfig, stack: str, length: int, *, is_pair: bool) -> None:
        self.config, self.stack, self.length, self.is_pair = config, stack, length, is_pair
        self.counts = {part.name: part.count for part in parameters_by_part(config)}
        self.crosses = is_pair and stack == "decoder"
        self.once = f"{stack}." if is_pair else ""  # what a stack has once is named so in the trace
        self.layer = f"{stack}.0."  # … and what each of its layers has, so
        self.vectors = (1, length, config.d_model)

    def id(self, name: str) -> str:
        """The id of the stack's box of that name."""
        return f"{self.stack}.{name}"

    @property
    def attention_name(self) -> str:
        """What the stack's self-attention is called in a trace."""
        return "self_attn" if self.crosses else "attn"

    # ── outside the layers ──

    def input(self) -> Box:
        title = "Input" if not self.is_pair else {"encoder": "Source", "decoder": "Target"}[self.stack]
        tokens = "1 token" if self.length == 1 else f"{self.length} tokens"
        if side := self.config.image:
            what = f"An image of {side}×{side} pixels, each a whole number from 0 (paper) to {self.config.n_inputs - 1} (ink)."
            return Box(
                id=self.id("tokens"), kind="tokens", stack=self.stack, place="stream", title="Image", what=what,
                shape=(1, side * side),
            )  # fmt: skip
        what = f"The input as {tokens}: one whole number from 0 to {self.config.vocab_size - 1} at each position."
        return Box(
            id=self.id("tokens"), kind="tokens", stack=self.stack, place="stream", title=title, what=what,
            shape=(1, self.length),
        )  # fmt: skip

    def embedding(self) -> Box:
        config = self.config
        if config.image:
            return Box(
                id=self.id("embed"), kind="embedding", stack=self.stack, place="stream", title="Patches",
                equation="[class; p·W + b]", detail=f"{config.n_patches} of {config.patch}×{config.patch}",
                what=f"Cuts the image into {config.n_patches} patches and maps the {config.patch**2} pixels of each to "
                f"{config.d_model} numbers; a learned class token goes first.",
                shape=self.vectors, activation="embed", parameters=self.counts["patch embedding"],
            )  # fmt: skip
        shared = config.tied_source and self.stack == "decoder"
        tables = 2 if self.is_pair and not config.tied_source else 1
        scale = f" · √{config.d_model}" if config.scale_embeddings else ""
        scaled = f", times √{config.d_model}" if scale else ""
        return Box(
            id=self.id("embed"), kind="embedding", stack=self.stack, place="stream", title="Embedding",
            equation=f"E[token]{scale}", detail=f"{config.vocab_size} tokens",
            what=f"Looks up the learned vector of each token{scaled}: {config.d_model} numbers per token.",
            shape=self.vectors, activation=f"{self.once}embed",
            parameters=0 if shared else self.counts["token embedding"] // tables,
            note="shares its table with the source" if shared else "",
        )  # fmt: skip

    def positions(self) -> Box:
        config, kind = self.config, self.config.position_kind
        shape = {
            "stream": (self.length, config.d_model),
            "queries and keys": (self.length, config.d_head // 2),
            "scores": (1, config.n_heads, self.length, self.length),
        }[kind.acts_on]
        where = self.once if kind.acts_on == "stream" else f"{self.layer}{self.attention_name}."
        return Box(
            id=self.id("positions"), kind="positions", stack=self.stack, place="above", title="Positions",
            equation=kind.equation, detail=kind.detail, what=kind.explained(config), shape=shape,
            activation=where + kind.activation, parameters=kind.n_parameters(config),
        )  # fmt: skip

    def output(self) -> Box:
        config = self.config
        matrix = "Eᵀ" if config.tied_output else "W"
        return Box(
            id=self.id("output"), kind="output", stack=self.stack, place="stream", title="Output",
            equation=f"x·{matrix}{' + b' if config.output_bias else ''}", detail=f"{config.vocab_size} scores",
            what=f"Scores each of the {config.vocab_size} tokens at every position; a softmax turns the scores into "
            "probabilities.",
            shape=(1, self.length, config.vocab_size), activation="logits", parameters=self.counts.get("output", 0),
            note="shares its matrix with the embedding" if config.tied_output else "",
        )  # fmt: skip

    # ── inside a layer; `index` counts its sublayers ──

    def self_attention(self, index: int) -> Box:
        config = self.config
        causal = bool(config.causal) and not (self.is_pair and self.stack == "encoder")
        component = config.mask_component
        mask, seen = component.picture(config, causal=causal), component.seen(config, causal=causal)
        what = f"In every head, each position looks at {seen} and takes a weighted average of their values."
        count = self.counts[f"{self.stack}: self-attention"]
        return self._attention(self.attention_name, "Self-attention", what, count, mask, index)

    def cross_attention(self, index: int, n_source: int) -> Box:
        what = f"In every head, each target position looks at all {n_source} encoded source positions."
        count = self.counts[f"{self.stack}: cross-attention"]
        return self._attention("cross_attn", "Cross-attention", what, count, "full", index)

    def _attention(self, name: str, title: str, what: str, count: int, mask: MaskPicture, index: int) -> Box:
        config = self.config
        return Box(
            id=self.id(name), kind="attention", stack=self.stack, place="above", title=title,
            equation=f"softmax(q·kᵀ/√{config.d_head})·v", detail=config.kv_component.detail(config), what=what,
            shape=self.vectors, activation=f"{self.layer}{name}.out", parameters=count // config.n_layers,
            repeats=config.n_layers, sublayer=index, heads=config.n_heads, mask=mask,
        )  # fmt: skip

    def feed_forward(self, index: int) -> Box:
        config = self.config
        component = config.ffn_component
        return Box(
            id=self.id("ffn"), kind="feed_forward", stack=self.stack, place="above", title="Feed-forward",
            equation=component.equation(config),
            detail=f"{config.d_model} → {config.d_ff} → {config.d_model}",
            what=f"On each position alone: maps {config.d_model} numbers to {config.d_ff}, {component.effect}, and maps back.",
            shape=self.vectors, activation=f"{self.layer}ffn.out",
            parameters=self.counts[f"{self.stack}: feed-forward"] // config.n_layers, repeats=config.n_layers, sublayer=index,
        )  # fmt: skip

    # ── in and outside of the layers; outside, `index` is None ──

    def norm(self, name: str, activation: str, index: int | None, where: str) -> Box:
        inside, component = index is not None, self.config.norm_component
        return Box(
            id=self.id(name), kind="norm", stack=self.stack,
            place="rise" if inside and self.config.norm == "pre" else "stream", title="Norm",
            equation=component.equation,
            what=f"{component.title} {where}: {component.effect}.",
            shape=self.vectors, activation=activation, parameters=component.n_parameters(self.config),
            repeats=self.config.n_layers if inside else 1, sublayer=index,
        )  # fmt: skip

    def sum(self, name: str, index: int | None, adds: str, activation: str | None) -> Box:
        return Box(
            id=self.id(name), kind="sum", stack=self.stack, place="stream", title="Sum",
            equation="x + f(x)" if index is not None else "x + p",
            what=f"Adds {adds}, number by number.", shape=self.vectors,
            activation=activation, repeats=1 if index is None else self.config.n_layers,
            sublayer=index,
        )  # fmt: skip
