"""Describe each part of a model as a box: what it computes, on what shape, with how many learned numbers.

    Boxes(config, "encoder", 9, is_pair=False).attention(0)      ->      Box(id="encoder.attn", …)

The counts come from `parameters_by_part`; the shapes are those for one input.
"""

from __future__ import annotations

from xformer.config import ModelConfig
from xformer.counting import parameters_by_part
from xformer.viz.diagram_parts import Box, MaskPicture


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
                shape=self.vectors, activation="embed", parameters=self.counts["patch embedding"], target="embeddings",
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
            target="embeddings", note="shares its table with the source" if shared else "",
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
            activation=where + kind.activation, parameters=kind.n_parameters(config), target="positions",
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
            target="residual", note="shares its matrix with the embedding" if config.tied_output else "",
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
            repeats=config.n_layers, target="attention", sublayer=index, heads=config.n_heads, mask=mask,
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
            parameters=self.counts[f"{self.stack}: feed-forward"] // config.n_layers, repeats=config.n_layers,
            target="feed_forward", sublayer=index,
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
            activation=activation, repeats=1 if index is None else self.config.n_layers, target="residual",
            sublayer=index,
        )  # fmt: skip
