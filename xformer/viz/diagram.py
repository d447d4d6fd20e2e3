"""Describe the picture of a model: its parts, how they are joined, and the real shapes and counts of each.

    diagram(config, n_tokens=9)      ->      Diagram(stacks, boxes, arrows)

Nothing is drawn here. A box says what stands where on the residual stream, an arrow says what flows into what, and one
layer of a stack stands for all of them (`Box.repeats`). The counts come from `ModelConfig.parameters_by_part`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from xformer.config import ModelConfig

Kind = Literal["tokens", "embedding", "positions", "attention", "feed_forward", "norm", "sum", "output"]
Place = Literal["stream", "above", "rise"]
"""On the residual stream · above it, off the stream · on the way up from the stream into a sublayer (pre-norm)."""
MaskKind = Literal["full", "causal", "strict"]
"""Sees every position · itself and earlier ones · earlier ones only."""
Flow = Literal["stream", "residual", "branch", "add", "inside", "memory"]
"""Along the stream · past a sublayer · through a sublayer · positions added to the stream · positions that act inside
attention · the encoder's output, which cross-attention reads keys and values from."""

ADDED = ("sinusoidal", "learned", "mirror")


@dataclass(frozen=True, kw_only=True)
class Box:
    """One part of the picture.

    `shape` is that of its output for one input, and `activation` the name under which a trace keeps that output (None
    where a trace has none). `parameters` counts one such part, of which the model has `repeats`. `target` is the screen
    that shows the part closely. `sublayer` counts the sublayers inside a layer; None stands outside the layers.
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
    target: str | None = None
    sublayer: int | None = None
    heads: int = 0
    mask: MaskKind | None = None
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

    def __getitem__(self, box_id: str) -> Box:
        return next(box for box in self.boxes if box.id == box_id)

    @property
    def n_parameters(self) -> int:
        """The learned numbers of all boxes, repeats included: those of the whole model."""
        return sum(box.parameters * box.repeats for box in self.boxes)

    @property
    def targets(self) -> frozenset[str]:
        """The screens that some box leads to."""
        return frozenset(box.target for box in self.boxes if box.target is not None)


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
    stacks = [_Stack(config, name, length, two=two) for name, length in zip(names, lengths, strict=True)]
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


class _Stack:
    """Collects the boxes and arrows of one stack in the order the input meets them."""

    def __init__(self, config: ModelConfig, name: str, length: int, *, two: bool) -> None:
        self.config, self.name, self.length, self.two = config, name, length, two
        self.boxes: list[Box] = []
        self.arrows: list[Arrow] = []
        self.counts = {part.name: part.count for part in config.parameters_by_part()}
        self.once = f"{name}." if two else ""  # what a stack has once is named so in the trace
        self.layer = f"{name}.0."  # … and what each of its layers has, so
        self.vectors = (1, length, config.d_model)
        self.crosses = two and name == "decoder"
        self.causal = bool(config.causal) and not (two and name == "encoder")
        layer = {"encoder": "Encoder", "decoder": "Decoder"}[name]
        self.frame = StackFrame(name, f"{layer} layer", config.n_layers, 1 + self.crosses + bool(config.d_ff))
        self.tip = ""  # the id of the box that the stream has reached

    def build(self, memory: _Stack | None) -> None:
        """Walk along the stream once; `memory` is the encoder that a decoder's cross-attention reads."""
        self._input()
        self._embedding()
        self._positions()
        self._sublayer("self_attn" if self.crosses else "attn", self._self_attention)
        if memory is not None:
            self._sublayer("cross_attn", lambda index: self._cross_attention(index, memory.length))
            self.arrows.append(Arrow(memory.tip, self._id("cross_attn"), "memory"))
        if self.config.d_ff:
            self._sublayer("ffn", self._feed_forward)
        if self.config.final_norm:
            self._extend(self._norm("final_norm", f"{self.once}final_norm", None, "after the last layer"))
        if not (self.two and self.name == "encoder"):
            self._output()

    # ── the stream ──

    def _add(self, box: Box) -> Box:
        self.boxes.append(box)
        return box

    def _extend(self, box: Box, flow: Flow = "stream") -> None:
        """Go on along the stream to a new box."""
        self._add(box)
        if self.tip:
            self.arrows.append(Arrow(self.tip, box.id, flow))
        self.tip = box.id

    def _id(self, name: str) -> str:
        return f"{self.name}.{name}"

    def _input(self) -> None:
        title = "Input" if not self.two else {"encoder": "Source", "decoder": "Target"}[self.name]
        tokens = "1 token" if self.length == 1 else f"{self.length} tokens"
        what = f"The input as {tokens}: one whole number from 0 to {self.config.vocab_size - 1} at each position."
        self._extend(
            Box(
                id=self._id("tokens"), kind="tokens", stack=self.name, place="stream", title=title, what=what,
                shape=(1, self.length),
            )
        )  # fmt: skip

    def _embedding(self) -> None:
        config = self.config
        shared = config.tied_source and self.name == "decoder"
        tables = 2 if self.two and not config.tied_source else 1
        scale = f" · √{config.d_model}" if config.scale_embeddings else ""
        scaled = f", times √{config.d_model}" if scale else ""
        self._extend(
            Box(
                id=self._id("embed"), kind="embedding", stack=self.name, place="stream", title="Embedding",
                equation=f"E[token]{scale}", detail=f"{config.vocab_size} tokens",
                what=f"Looks up the learned vector of each token{scaled}: {config.d_model} numbers a token.",
                shape=self.vectors, activation=f"{self.once}embed",
                parameters=0 if shared else self.counts["token embedding"] // tables,
                target="embeddings", note="shares its table with the source" if shared else "",
            )
        )  # fmt: skip

    def _positions(self) -> None:
        config, kind = self.config, self.config.positions
        if kind == "none":
            return
        detail, equation, what = _positions_text(config)
        added = kind in ADDED
        if added:
            shape, activation = (self.length, config.d_model), f"{self.once}pos_embed"
        elif kind == "rotary":
            shape = (self.length, config.d_head // 2)
            activation = f"{self.layer}{'self_attn' if self.crosses else 'attn'}.pos_angles"
        else:
            shape = (1, config.n_heads, self.length, self.length)
            activation = f"{self.layer}{'self_attn' if self.crosses else 'attn'}.pos_bias"
        box = self._add(
            Box(
                id=self._id("positions"), kind="positions", stack=self.name, place="above", title="Positions",
                equation=equation, detail=detail, what=what, shape=shape, activation=activation,
                parameters=self.counts.get("positions", 0) // (2 if self.two else 1), target="positions",
            )
        )  # fmt: skip
        if added:
            self._extend(self._sum("pos_sum", None, "the position's vector to the token's", f"{self.layer}resid_pre"))
            self.arrows.append(Arrow(box.id, self.tip, "add"))

    # ── one layer ──

    def _sublayer(self, name: str, make: Callable[[int], Box]) -> None:
        """A sublayer in its residual connection: pre x + f(Norm(x)), post Norm(x + f(x)), none x + f(x)."""
        config, before = self.config, self.tip
        index = sum(box.kind in ("attention", "feed_forward") for box in self.boxes)
        entry = before
        if config.norm == "pre":
            norm = self._add(self._norm(f"{name}_norm", f"{self.layer}{name}.in", index, "before the sublayer"))
            self.arrows.append(Arrow(before, norm.id, "branch"))
            entry = norm.id
        box = self._add(make(index))
        self.arrows.append(Arrow(entry, box.id, "branch"))
        if name in ("attn", "self_attn") and config.positions in ("rotary", "alibi"):
            self.arrows.append(Arrow(self._id("positions"), box.id, "inside"))
        after = self._resid_after(name)
        found = {"attention": "what attention found", "feed_forward": "what the feed-forward made"}[box.kind]
        # With post-norm the trace keeps the stream after the norm, so the bare sum has no name of its own.
        kept = None if config.norm == "post" else after
        self._extend(self._sum(f"{name}_sum", index, f"{found} to the stream", kept), "residual")
        self.arrows.append(Arrow(box.id, self.tip, "branch"))
        if config.norm == "post":
            self._extend(self._norm(f"{name}_norm", after, index, "after the sum"))

    def _resid_after(self, name: str) -> str:
        """The trace's name for the stream behind a sublayer."""
        if name == "ffn":
            return f"{self.layer}resid_post"
        if name == "cross_attn":
            return f"{self.layer}resid_cross"
        return f"{self.layer}resid_mid"

    def _self_attention(self, index: int) -> Box:
        config = self.config
        mask: MaskKind = "full" if not self.causal else "causal" if config.see_self else "strict"
        seen = {
            "full": "every position",
            "causal": "itself and the positions before it (causal mask)",
            "strict": "the positions before it, not at itself (causal mask)",
        }[mask]
        name = "self_attn" if self.crosses else "attn"
        count = self.counts[f"{self.name}: self-attention"]
        what = f"In every head, each position looks at {seen} and takes a weighted average of their values."
        return self._attention(name, "Self-attention", what, count, mask, index)

    def _cross_attention(self, index: int, n_source: int) -> Box:
        what = f"In every head, each target position looks at all {n_source} encoded source positions."
        count = self.counts[f"{self.name}: cross-attention"]
        return self._attention("cross_attn", "Cross-attention", what, count, "full", index)

    def _attention(self, name: str, title: str, what: str, count: int, mask: MaskKind, index: int) -> Box:
        config = self.config
        heads = "1 head" if config.n_heads == 1 else f"{config.n_heads} heads"
        return Box(
            id=self._id(name), kind="attention", stack=self.name, place="above", title=title,
            equation=f"softmax(q·kᵀ/√{config.d_head})·v", detail=heads, what=what, shape=self.vectors,
            activation=f"{self.layer}{name}.out", parameters=count // config.n_layers, repeats=config.n_layers,
            target="attention", sublayer=index, heads=config.n_heads, mask=mask,
        )  # fmt: skip

    def _feed_forward(self, index: int) -> Box:
        config = self.config
        name, keeps = {"relu": ("relu", "keeps what is positive"), "gelu": ("gelu", "bends it with GELU")}[
            config.activation
        ]
        return Box(
            id=self._id("ffn"), kind="feed_forward", stack=self.name, place="above", title="Feed-forward",
            equation=f"{name}(x·W₁)·W₂" if not config.ffn_bias else f"{name}(x·W₁ + b₁)·W₂ + b₂",
            detail=f"{config.d_model} → {config.d_ff} → {config.d_model}",
            what=f"On each position alone: maps {config.d_model} numbers to {config.d_ff}, {keeps}, and maps back.",
            shape=self.vectors, activation=f"{self.layer}ffn.out",
            parameters=self.counts[f"{self.name}: feed-forward"] // config.n_layers, repeats=config.n_layers,
            target="feed_forward", sublayer=index,
        )  # fmt: skip

    def _norm(self, name: str, activation: str, index: int | None, where: str) -> Box:
        inside = index is not None
        return Box(
            id=self._id(name), kind="norm", stack=self.name,
            place="rise" if inside and self.config.norm == "pre" else "stream", title="Norm",
            equation="γ·(x − mean)/√(var + ε) + β",
            what=f"Layer norm {where}: brings each vector to mean 0 and variance 1, then scales and shifts it.",
            shape=self.vectors, activation=activation, parameters=2 * self.config.d_model,
            repeats=self.config.n_layers if inside else 1, sublayer=index,
        )  # fmt: skip

    def _sum(self, name: str, index: int | None, adds: str, activation: str | None) -> Box:
        return Box(
            id=self._id(name), kind="sum", stack=self.name, place="stream", title="Sum",
            equation="x + f(x)" if index is not None else "x + p",
            what=f"Adds {adds}, number by number.", shape=self.vectors,
            activation=activation, repeats=1 if index is None else self.config.n_layers, target="residual",
            sublayer=index,
        )  # fmt: skip

    def _output(self) -> None:
        config = self.config
        matrix = "Eᵀ" if config.tied_output else "W"
        self._extend(
            Box(
                id=self._id("output"), kind="output", stack=self.name, place="stream", title="Output",
                equation=f"x·{matrix}{' + b' if config.output_bias else ''}", detail=f"{config.vocab_size} scores",
                what=f"Scores each of the {config.vocab_size} tokens at every position; a softmax turns the scores into "
                "probabilities.",
                shape=(1, self.length, config.vocab_size), activation="logits", parameters=self.counts.get("output", 0),
                target="residual", note="shares its matrix with the embedding" if config.tied_output else "",
            )
        )  # fmt: skip


def _positions_text(config: ModelConfig) -> tuple[str, str, str]:
    """Kind, equation and one sentence for each kind of positions."""
    base = f"{config.position_base:g}"
    return {
        "sinusoidal": (
            "sinusoidal, fixed",
            "sin, cos of pos·ωᵢ",
            f"Adds fixed waves, from short to very long (base {base}), so that every position has its own vector.",
        ),
        "learned": (
            "learned",
            "P[pos]",
            f"Adds a learned vector for each of {config.max_len} positions.",
        ),
        "mirror": (
            "mirror, learned",
            "P[start] + Q[end]",
            "Adds two learned vectors: one for the distance from the start and one for the distance from the end.",
        ),
        "rotary": (
            "rotary, fixed",
            "turn q, k by pos·θᵢ",
            "Turns queries and keys by an angle that grows with the position, so that a score depends on the offset.",
        ),
        "alibi": (
            "ALiBi, fixed",
            "score − mₕ·distance",
            "Lowers each attention score in proportion to the distance, with a slope of its own for every head.",
        ),
    }[config.positions]
