"""Describe the diagram of a model: its parts, their connections, and the shape and parameter count of each.

    described(reading)      ->      Diagram(stacks, boxes, arrows)

Nothing is drawn here. Boxes are placed along the residual stream, arrows connect them, and one layer of a stack represents all
of them (`Box.repeats`). An external model is described by what one run recorded, not by the name of its family: parts that
were not recorded are left out, and an equation is given only where the recording implies it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from torch import Tensor

from xformer.adapters import TaskModel
from xformer.adapters.huggingface_opening import CLASSES
from xformer.adapters.inputs import PatchedImage
from xformer.components import MaskPicture
from xformer.config import ModelConfig
from xformer.counting import parameters_by_part
from xformer.errors import UnavailableError
from xformer.reading import Reading

Kind = Literal["tokens", "embedding", "positions", "attention", "feed_forward", "norm", "sum", "output"]

Place = Literal["stream", "above", "rise"]
"""On the residual stream, above it, or on the branch that leads from the stream into a sublayer (pre-norm)."""

Flow = Literal["stream", "residual", "branch", "add", "inside", "memory"]
"""Along the stream, past a sublayer, through a sublayer, positions added to the stream, positions that act inside attention,
or the encoder's output, which provides the keys and values of cross-attention."""


FULL: MaskPicture = ((True,) * 4,) * 4
CAUSAL: MaskPicture = tuple(tuple(key <= query for key in range(4)) for query in range(4))


@dataclass(frozen=True, kw_only=True)
class Box:
    """One part of the diagram.

    `shape` is the shape of its output for one input, and `activation` the name of that output in a trace (None if it is not
    recorded). `parameters` counts one instance of the part, of which the model has `repeats`. `sublayer` is the index of the
    sublayer inside its layer, or None for parts outside the layers.
    """

    id: str
    kind: Kind
    stack: str
    place: Place = "stream"
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
    is_shared: bool = False
    """Whether its weights are those of another box."""

    @property
    def shape_text(self) -> str:
        """The shape as PyTorch prints it: "[1, 9, 16]"."""
        return f"[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Arrow:
    """A connection from one box to another, given by their ids."""

    source: str
    target: str
    flow: Flow


@dataclass(frozen=True)
class StackFrame:
    """The layers of one stack, drawn once: their number, and the number of sublayers of each."""

    name: str
    title: str
    n_layers: int
    n_sublayers: int


@dataclass(frozen=True)
class Diagram:
    """The diagram of a whole model; see `Box`, `Arrow` and `StackFrame`."""

    title: str
    norm: str
    stacks: tuple[StackFrame, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    total: int | None = None
    """The number of parameters of the whole model, if the counts of its boxes are unknown."""

    def __getitem__(self, box_id: str) -> Box:
        return next(box for box in self.boxes if box.id == box_id)

    @property
    def n_parameters(self) -> int:
        """The number of parameters of the whole model: of all boxes, including repeats."""
        return sum(box.parameters * box.repeats for box in self.boxes) if self.total is None else self.total

    def frame(self) -> pd.DataFrame:
        """Return the parts as a table: description, output shape, parameter count and repeats of each."""
        columns = ("stack", "title", "what", "equation", "detail", "shape", "parameters", "repeats", "activation")
        return pd.DataFrame([{**vars(box), "shape": box.shape_text} for box in self.boxes], columns=pd.Index(columns))


def described(reading: Reading) -> Diagram:
    """Describe the model of a reading, with the shapes for its input."""
    shape, adapter = reading.adapter.shape, reading.adapter
    if isinstance(adapter, TaskModel):
        example, config = reading.example, adapter.model.config
        n_target = None if example.target is None else example.target.shape[1]
        return diagram(config, config.n_positions(example.input_ids.shape[1]), n_target)
    stacks = ["encoder", "decoder"] if reading.is_encoder_decoder else [shape.layer_paths[0].stack]
    total = None
    with suppress(UnavailableError):
        total = adapter.weights.n_parameters()
    return _joined(shape.architecture, shape.d_model, [_FoundParts(reading, stack) for stack in stacks], total)


def diagram(config: ModelConfig, n_tokens: int, n_target: int | None = None) -> Diagram:
    """Describe a model of this library that reads `n_tokens` tokens (and, as an encoder-decoder, `n_target` target tokens)."""
    if n_target is None:
        parts = [_OwnParts(config, config.architecture, n_tokens, is_encoder_decoder=False)]
    else:
        lengths = {"encoder": n_tokens, "decoder": n_target}
        parts = [_OwnParts(config, stack, length, is_encoder_decoder=True) for stack, length in lengths.items()]
    return _joined(config.architecture, config.d_model, parts, None)


def _joined(architecture: str, d_model: int, stacks: list[_OwnParts] | list[_FoundParts], total: int | None) -> Diagram:
    walks = [_Walk(parts) for parts in stacks]
    for walk in walks:
        walk.build(walks[0] if walk is not walks[0] else None)
    n = " + ".join(str(parts.n_layers) for parts in stacks)
    title = f"{architecture.capitalize()}, {n} {'layer' if n == '1' else 'layers'}, d_model {d_model:,}"
    frames = ((one.stack, f"{one.stack.capitalize()} layer", one.n_layers, len(one.sublayers)) for one in stacks)
    boxes = tuple(box for walk in walks for box in walk.boxes)
    arrows = tuple(arrow for walk in walks for arrow in walk.arrows)
    return Diagram(title, stacks[0].norm_place, tuple(StackFrame(*one) for one in frames), boxes, arrows, total)


class _Walk:
    """Collects the boxes and arrows of one stack in the order of the forward pass."""

    def __init__(self, parts: _OwnParts | _FoundParts) -> None:
        self.parts, self.tip = parts, ""  # the id of the box that the stream has reached
        self.boxes: list[Box] = []
        self.arrows: list[Arrow] = []

    def build(self, memory: _Walk | None) -> None:
        """Walk along the stream once; `memory` is the encoder that cross-attention attends to."""
        parts = self.parts
        self._extend(parts.input())
        self._extend(parts.embedding())
        if parts.positions_act_on != "nothing":
            positions = parts.positions()
            self.boxes.append(positions)
            if parts.positions_act_on == "stream":
                what = "Adds the position vector to the token vector, element by element."
                name = f"{parts.stack}.0.resid_pre"
                self._extend(parts.box("pos_sum", "sum", "Sum", what, equation="x + p", activation=name))
                self.arrows.append(Arrow(positions.id, self.tip, "add"))
        for index, name in enumerate(parts.sublayers):
            self._sublayer(index, name, memory)
        for box in (parts.final_norm(), parts.output()):
            if box is not None:
                self._extend(box)

    def _sublayer(self, index: int, name: str, memory: _Walk | None) -> None:
        """Add a sublayer with its residual connection: pre x + f(Norm(x)), post Norm(x + f(x)), none x + f(x)."""
        parts, before, place = self.parts, self.tip, self.parts.norm_place
        entry = before
        if place == "pre":
            norm = parts.norm(f"{name}_norm", f"{parts.layer}{name}.in", index, "before the sublayer")
            self.boxes.append(norm)
            self.arrows.append(Arrow(before, norm.id, "branch"))
            entry = norm.id
        box = parts.feed_forward(index) if name == "ffn" else parts.attention(index, name, memory)
        self.boxes.append(box)
        self.arrows.append(Arrow(entry, box.id, "branch"))
        if name == "cross_attn" and memory is not None:
            self.arrows.append(Arrow(memory.tip, box.id, "memory"))
        elif name != "ffn" and parts.positions_act_on not in ("nothing", "stream"):
            self.arrows.append(Arrow(f"{parts.stack}.positions", box.id, "inside"))
        end = parts.layer + {"ffn": "resid_post", "cross_attn": "resid_cross"}.get(name, "resid_mid")
        what = f"Adds the output of {'the feed-forward' if name == 'ffn' else 'attention'} to the stream, element by element."
        # With post-norm the trace records the stream after the norm, so the sum itself has no name.
        more = {"equation": "x + f(x)", "activation": None if place == "post" else end}
        self._extend(parts.box(f"{name}_sum", "sum", "Sum", what + parts.about_sums, index=index, **more), "residual")
        self.arrows.append(Arrow(box.id, self.tip, "branch"))
        if place == "post":
            self._extend(parts.norm(f"{name}_norm", end, index, "after the sum"))

    def _extend(self, box: Box, flow: Flow = "stream") -> None:
        """Append a box to the stream."""
        self.boxes.append(box)
        if self.tip:
            self.arrows.append(Arrow(self.tip, box.id, flow))
        self.tip = box.id


class _OwnParts:
    """The boxes of one stack of a model of this library; `is_encoder_decoder` means that it belongs to an encoder-decoder."""

    about_sums = ""

    def __init__(self, config: ModelConfig, stack: str, length: int, *, is_encoder_decoder: bool) -> None:
        self.config, self.stack, self.length, self.is_encoder_decoder = config, stack, length, is_encoder_decoder
        self.counts = {part.name: part.count for part in parameters_by_part(config)}
        self.once = (
            f"{stack}." if is_encoder_decoder else ""
        )  # prefix, in the trace, of activations that a stack has once
        self.layer = f"{stack}.0."  # … and of those of its first layer
        self.n_layers, self.norm_place, self.vectors = config.n_layers, config.norm, (1, length, config.d_model)
        crosses = is_encoder_decoder and stack == "decoder"
        self.sublayers = [*(["self_attn", "cross_attn"] if crosses else ["attn"]), *(["ffn"] if config.d_ff else [])]
        self.positions_act_on = config.position_kind.acts_on

    def box(self, name: str, kind: Kind, title: str, what: str, *, index: int | None = None, **more: Any) -> Box:
        repeats = self.n_layers if index is not None else 1
        fields: dict[str, Any] = {"shape": self.vectors, "repeats": repeats, "sublayer": index} | more
        return Box(id=f"{self.stack}.{name}", kind=kind, stack=self.stack, title=title, what=what, **fields)

    def input(self) -> Box:
        if side := self.config.image:
            ink = self.config.n_inputs - 1
            what = f"An image of {side}×{side} pixels, each an integer from 0 (paper) to {ink} (ink)."
            return self.box("tokens", "tokens", "Image", what, shape=(1, side * side))
        title = {"encoder": "Source", "decoder": "Target"}[self.stack] if self.is_encoder_decoder else "Input"
        what = _of_tokens(self.length, self.config.vocab_size)
        return self.box("tokens", "tokens", title, what, shape=(1, self.length))

    def embedding(self) -> Box:
        config = self.config
        if config.image:
            what = f"Splits the image into {config.n_patches} patches and maps the {config.patch**2} pixels of each to "
            what += f"a vector of {config.d_model} numbers; a learned class token comes first."
            return self.box(
                "embed", "embedding", "Patches", what, equation="[class; p·W + b]", activation="embed",
                detail=f"{config.n_patches} of {config.patch}×{config.patch}", parameters=self.counts["patch embedding"],
            )  # fmt: skip
        shared = config.tied_source and self.stack == "decoder"
        tables = 2 if self.is_encoder_decoder and not config.tied_source else 1
        scale = f"√{config.d_model}" if config.scale_embeddings else ""
        what = "Looks up the learned vector of each token"
        what += f"{scale and ', scaled by '}{scale}: {config.d_model} numbers per token."
        return self.box(
            "embed", "embedding", "Embedding", what, equation=f"E[token]{scale and ' · '}{scale}",
            detail=f"{config.vocab_size} tokens", activation=f"{self.once}embed",
            parameters=0 if shared else self.counts["token embedding"] // tables,
            is_shared=shared,
        )  # fmt: skip

    def positions(self) -> Box:
        config, kind = self.config, self.config.position_kind
        shape = {
            "stream": (self.length, config.d_model),
            "queries and keys": (self.length, config.d_head // 2),
            "scores": (1, config.n_heads, self.length, self.length),
        }[kind.acts_on]
        where = self.once if kind.acts_on == "stream" else f"{self.layer}{self.sublayers[0]}."
        return self.box(
            "positions", "positions", "Positions", kind.explanation(config), place="above", equation=kind.equation,
            detail=kind.detail, shape=shape, activation=where + kind.activation, parameters=kind.n_parameters(config),
        )  # fmt: skip

    def attention(self, index: int, name: str, memory: _Walk | None) -> Box:
        config, title, mask = self.config, "Self-attention", FULL
        if memory is not None and name == "cross_attn":
            title, n_source = "Cross-attention", memory.parts.vectors[1]
            what = f"In every head, each target position attends to all {n_source} encoded source positions."
        else:
            causal = bool(config.causal) and not (self.is_encoder_decoder and self.stack == "encoder")
            component = config.mask_component
            mask, seen = component.picture(config, causal=causal), component.seen(config, causal=causal)
            what = f"In every head, each position attends to {seen} and takes a weighted average of their values."
        return self.box(
            name, "attention", title, what, index=index, place="above", equation=f"softmax(q·kᵀ/√{config.d_head})·v",
            detail=config.kv_component.detail(config), activation=f"{self.layer}{name}.out", heads=config.n_heads,
            mask=mask, parameters=self.counts[f"{self.stack}: {title.lower()}"] // config.n_layers,
        )  # fmt: skip

    def feed_forward(self, index: int) -> Box:
        config, component = self.config, self.config.ffn_component
        what = f"At each position alone: maps {config.d_model} numbers to {config.d_ff}, {component.effect}, and maps back."
        return self.box(
            "ffn", "feed_forward", "Feed-forward", what, index=index, place="above", equation=component.equation(config),
            detail=f"{config.d_model} → {config.d_ff} → {config.d_model}", activation=f"{self.layer}ffn.out",
            parameters=self.counts[f"{self.stack}: feed-forward"] // config.n_layers,
        )  # fmt: skip

    def norm(self, name: str, activation: str, index: int | None, where: str) -> Box:
        component = self.config.norm_component
        return self.box(
            name, "norm", "Norm", f"{component.title} {where}: {component.effect}.", index=index,
            place="rise" if index is not None and self.norm_place == "pre" else "stream",
            equation=component.equation, activation=activation, parameters=component.n_parameters(self.config),
        )  # fmt: skip

    def final_norm(self) -> Box | None:
        name = f"{self.once}final_norm"
        return self.norm("final_norm", name, None, "after the last layer") if self.config.final_norm else None

    def output(self) -> Box | None:
        config = self.config
        if self.is_encoder_decoder and self.stack == "encoder":
            return None
        scores = f"Computes a logit for each of the {config.vocab_size} tokens at every position"
        matrix = "Eᵀ" if config.tied_output else "W"
        return self.box(
            "output", "output", "Output", f"{scores}; a softmax turns the logits into probabilities.",
            equation=f"x·{matrix}{' + b' if config.output_bias else ''}",
            detail=f"{config.vocab_size} logits", shape=(1, self.length, config.vocab_size), activation="logits",
            parameters=self.counts.get("output", 0),
            is_shared=config.tied_output,
        )  # fmt: skip


def _of_tokens(n: int, n_inputs: int) -> str:
    tokens = "1 token" if n == 1 else f"{n} tokens"
    return f"The input as {tokens}: one integer from 0 to {n_inputs - 1:,} at each position."


class _FoundParts:
    """The boxes of one stack of an external model, from a reading with all activations."""

    def __init__(self, reading: Reading, stack: Any) -> None:
        shape = reading.adapter.shape
        self.reading, self.shape, self.stack = reading, shape, stack
        blocks = {number: sites for number, sites in shape.blocks(stack).items() if sites}
        first = min(blocks)
        self.layer_paths = {site.kind: site for site in blocks[first]}
        self.sublayers, self.layer, self.n_layers = list(self.layer_paths), f"{stack}.{first}.", len(blocks)
        self.once = f"{stack}." if reading.is_encoder_decoder else ""
        self.vectors, self.norm_place = (1, len(reading.ids(stack)), shape.d_model), shape.norm
        self.about_sums = ""
        if others := [number + 1 for of, number in shape.without_attention if of == stack]:
            self.about_sums = f" Blocks without attention are not drawn: layer {', '.join(map(str, others))}."
        if shape.joined:
            self.about_sums += " Attention and feed-forward of this model read the same stream and are added together."
        turned = [name for name in reading if name.startswith("pos_angles")]
        biased = [name for name in reading if name.startswith(stack) and name.endswith("pos_bias")]
        self.positions_act_on, self.positions_name = "stream", f"{self.once}pos_embed"
        if self.positions_name not in reading:
            self.positions_act_on = "queries and keys" if turned else "scores" if biased else "nothing"
            self.positions_name = next(iter(turned or biased), "")

    def box(self, name: str, kind: Kind, title: str, what: str, *, index: int | None = None, **more: Any) -> Box:
        repeats = self.n_layers if index is not None else 1
        fields: dict[str, Any] = {"shape": self.vectors, "repeats": repeats, "sublayer": index} | more
        if fields.get("activation") not in self.reading:
            fields["activation"] = None
        return Box(id=f"{self.stack}.{name}", kind=kind, stack=self.stack, title=title, what=what, **fields)

    def input(self) -> Box:
        n = self.vectors[1]
        title = {"encoder": "Source", "decoder": "Target"}[self.stack] if self.reading.is_encoder_decoder else "Input"
        what, shape = _of_tokens(n, self.shape.n_inputs), (1, n)
        pixels = (self.reading.example.arguments or {}).get("pixel_values")
        if isinstance(self.reading.adapter.input, PatchedImage) and isinstance(pixels, Tensor):
            rows, columns = pixels.shape[-2:]
            what, shape = f"The image: {rows} × {columns} pixels, one number per channel.", tuple(pixels[:1].shape)
        return self.box("tokens", "tokens", title, what, shape=shape)

    def embedding(self) -> Box:
        what = f"Looks up the learned vector of each token: {self.shape.d_model:,} numbers per token."
        equation, detail, source = "E[token]", f"{self.shape.n_inputs:,} tokens", self.reading.adapter.input
        if isinstance(source, PatchedImage):
            what = f"Maps the pixels of each patch to {self.shape.d_model:,} numbers."
            equation, detail = "", f"patches of {source.patch[0]} × {source.patch[1]} pixels"
        more: dict[str, Any] = {"equation": equation, "detail": detail, "activation": f"{self.once}embed"}
        return self.box("embed", "embedding", "Embedding", what, **more)

    def positions(self) -> Box:
        what, equation = {
            "stream": ("A learned or fixed vector for each position, added to the token vector.", "P[position]"),
            "queries and keys": ("Rotates queries and keys by angles that grow with the position.", "(R_i q)·(R_j k)"),
            "scores": ("Adds a bias that depends on the distance to each score.", "score + b(i − j)"),
        }[self.positions_act_on]
        name = self.positions_name
        shape = self.vectors if self.positions_act_on == "stream" else tuple(self.reading[name].shape)
        more: dict[str, Any] = {"place": "above", "equation": equation, "activation": name, "shape": shape}
        return self.box("positions", "positions", "Positions", what, **more)

    def attention(self, index: int, name: str, memory: _Walk | None) -> Box:
        site = self.layer_paths[name]
        heads, causal = self.shape.heads[site.path], site.stack == "decoder" and not site.is_cross
        seen = "itself and the positions before it (causal mask)" if causal else "every position"
        return self.box(
            name, "attention", "Cross-attention" if site.is_cross else "Self-attention",
            f"In every head, each position attends to {seen} and takes a weighted average of their values.",
            place="above", equation="softmax(scores)·v", detail=f"{heads} head{'s' * (heads != 1)}", index=index,
            activation=f"{site.path}.out", heads=heads, mask=CAUSAL if causal else FULL,
        )  # fmt: skip

    def feed_forward(self, index: int) -> Box:
        path, d = self.layer_paths["ffn"].path, f"{self.shape.d_model:,}"
        width, is_gated = self.shape.neurons.get(path), f"{path}.up" in self.reading
        more: dict[str, Any] = {"index": index, "place": "above", "activation": f"{path}.out"}
        more["equation"] = "(act(x·W_gate) ∘ x·W_up)·W₂" if is_gated else "act(x·W₁)·W₂" if width else ""
        what = f"At each position alone{f': maps {d} numbers to {width:,} neurons and back' if width else ''}."
        detail = f"{d} → {width:,} → {d}" if width else ""
        return self.box("ffn", "feed_forward", "Feed-forward", what, detail=detail, **more)

    def norm(self, name: str, activation: str, index: int | None, where: str) -> Box:
        place = "rise" if index is not None and self.norm_place == "pre" else "stream"
        what = f"A norm {where}: scales each vector to a common length."
        return self.box(name, "norm", "Norm", what, index=index, place=place, activation=activation)

    def final_norm(self) -> Box | None:
        name = "final_norm" if self.stack == self.reading.output_stack else f"{self.once}final_norm"
        return self.norm("final_norm", name, None, "after the last layer") if name in self.reading else None

    def output(self) -> Box | None:
        if self.stack != self.reading.output_stack or not self.reading.has_logits:
            return None
        kind, n = self.reading.output, self.shape.vocab_size
        what, detail = f"Computes a logit for each of the {n:,} tokens", f"{n:,} logits"
        if kind == "answer_span":
            what = "Computes logits for each token as the start and as the end of an answer"
            detail = "2 logits per token"
        elif kind in CLASSES:
            item = "each token" if kind == "token_class" else "the whole input"
            what = f"Computes a logit for each of the {n:,} classes for {item}"
        what += "; a softmax turns the logits into probabilities."
        if kind in CLASSES and n == 1:
            what, detail = "Returns one number (regression, not a class).", "1 number"
        shape = tuple(self.reading.logits[:1].shape)
        return self.box("output", "output", "Output", what, shape=shape, detail=detail, activation="logits")
