"""What the checks share: findings, and a trace cut into stacks, layers and sublayers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.linalg import vector_norm

from xformer.trace import Trace

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `kind` is the bug's name in `xformer.bugs` where that has it."""

    kind: str
    where: tuple[str, ...]
    """The paths where it was found, with the head where it is a head's."""
    severity: Severity
    sentence: str
    numbers: dict[str, float] = field(default_factory=dict)
    """What was measured at the first place, and what it should be."""


def error(kind: str, where: str, sentence: str, numbers: Mapping[str, float] | None = None) -> Finding:
    """A mistake at one place."""
    return Finding(kind, (where,), "error", sentence, dict(numbers or {}))


def warning(kind: str, where: tuple[str, ...], sentence: str, numbers: Mapping[str, float]) -> Finding:
    """What may be a mistake, or what comes of one."""
    return Finding(kind, where, "warning", sentence, dict(numbers))


@dataclass(frozen=True)
class Measurement:
    """How far one place of a trace is from what it should be. An `excess` above 1 is more than rounding explains;
    None: it cannot be decided."""

    place: str
    excess: float | None
    why: str = ""


def broken(place: str, why: str = "") -> Measurement:
    """A place that is wrong by more than any rounding."""
    return Measurement(place, float("inf"), why)


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention layer of a trace."""

    path: str
    is_cross: bool
    causal: bool
    queries: Bool[Tensor, "batch query"]
    """Which queries are tokens, not padding."""
    keys: Bool[Tensor, "batch key"]


@dataclass(frozen=True, eq=False)
class Sublayer:
    """One sublayer: where its output is, and the stream before and after it."""

    path: str
    before: Float[Tensor, "batch pos d_model"]
    inside: Float[Tensor, "batch pos d_model"]
    out: Float[Tensor, "batch pos d_model"]
    after: Float[Tensor, "batch pos d_model"]


@dataclass(frozen=True, eq=False)
class Case:
    """A trace with what is known about it besides."""

    trace: Trace
    valid: Bool[Tensor, "batch pos"]
    target_valid: Bool[Tensor, "batch target"] | None
    weights: Mapping[str, Tensor] | None = None
    """The model's own, by their names in it, where the model is at hand."""

    def __contains__(self, name: str) -> bool:
        return name in self.trace

    def __getitem__(self, name: str) -> Tensor:
        return self.trace[name]

    def has(self, path: str, *names: str) -> bool:
        """Whether the trace kept all of these activations of a layer."""
        return all(f"{path}.{name}" in self.trace for name in names)

    def attention(self, *names: str) -> Iterator[tuple[Layer, list[Tensor]]]:
        """The attention layers of which all of these activations were kept, with them."""
        for layer in self.layers:
            if self.has(layer.path, *names):
                yield layer, [self[f"{layer.path}.{name}"] for name in names]

    def feed_forward(self, *names: str) -> Iterator[tuple[str, list[Tensor]]]:
        """The paths of the feed-forward layers of which all of these activations were kept, with them."""
        for block in self.blocks:
            if self.has(f"{block}.ffn", *names):
                yield f"{block}.ffn", [self[f"{block}.ffn.{name}"] for name in names]

    def weight(self, name: str) -> Tensor | None:
        """A weight by the path of its layer in a trace, "encoder.0.attn.weight_in"; None where it is not known."""
        return (self.weights or {}).get(re.sub(r"^(encoder|decoder)\.(?=\d)", r"\1.blocks.", name))

    def norm_weights(self, name: str) -> tuple[Tensor | None, Tensor | None]:
        """γ and β of a normalisation."""
        return self.weight(f"{name}.weight"), self.weight(f"{name}.bias")

    @cached_property
    def stacks(self) -> list[TraceStack]:
        """The stacks, the one that makes the logits last."""
        trace, config = self.trace, self.trace.config
        if config.architecture != "encoder-decoder":
            return [TraceStack(config.architecture, "", "embedding.token", trace.tokens, self.valid)]
        source = "embedding.token" if config.tied_source else "source_embedding.token"
        found = [TraceStack("encoder", "encoder.", source, trace.tokens, self.valid)]
        if trace.target is not None and self.target_valid is not None:
            found.append(TraceStack("decoder", "decoder.", "embedding.token", trace.target, self.target_valid))
        return found

    @cached_property
    def layers(self) -> list[Layer]:
        """The attention layers whose pattern was kept."""
        config, found = self.trace.config, []
        valid = {"encoder": self.valid, "decoder": self.valid if self.target_valid is None else self.target_valid}
        for site in self.trace.sites():
            is_output = site.stack == "decoder" or config.architecture == "encoder"
            causal = not site.is_cross and is_output and bool(config.causal)
            found.append(Layer(site.path, site.is_cross, causal, valid[site.query_stack], valid[site.key_stack]))
        return found

    @cached_property
    def blocks(self) -> list[str]:
        """The paths of the layers of all stacks: "encoder.0", …"""
        return list(dict.fromkeys(layer.path.rpartition(".")[0] for layer in self.layers))

    @cached_property
    def sublayers(self) -> list[Sublayer]:
        """The sublayers that were kept whole, in order."""
        found = []
        for block in self.blocks:
            chain = [("attn", "resid_pre", "resid_mid"), ("ffn", "resid_mid", "resid_post")]
            if f"{block}.cross_attn.pattern" in self.trace:
                chain = [
                    ("self_attn", "resid_pre", "resid_mid"),
                    ("cross_attn", "resid_mid", "resid_cross"),
                    ("ffn", "resid_cross", "resid_post"),
                ]
            for part, before, after in chain:
                names = (before, f"{part}.in", f"{part}.out", after)
                if self.has(block, *names):
                    found.append(Sublayer(f"{block}.{part}", *(self[f"{block}.{name}"] for name in names)))
        return found

    @cached_property
    def memory(self) -> Tensor | None:
        """What an encoder-decoder's decoder should look at: the encoder's output."""
        if self.trace.target is None:
            return None
        names = ("encoder.final_norm", f"encoder.{self.trace.config.n_layers - 1}.resid_post")
        return next((self[name] for name in names if name in self), None)

    def projected(self, path: str, name: str) -> Tensor:
        """q, k or v as it was projected: of keys and values that heads share, those of the first head of each group."""
        made, config = self[f"{path}.{name}"], self.trace.config
        return made if name == "q" else made[:, :: made.shape[1] // config.kv_component.n_kv_heads(config)]

    def rows_into(self, layer: Layer) -> Iterator[tuple[str, Tensor | None]]:
        """For each of q, k, v, the stream it should be made from."""
        x = self[f"{layer.path}.in"] if self.has(layer.path, "in") else None
        other = self.memory if layer.is_cross else x
        yield from (("q", x), ("k", other), ("v", other))


def tokens_that_count(tokens: Int[Tensor, "batch pos"], pad: int) -> Bool[Tensor, "batch pos"]:
    """True but for runs of the padding token at either end of a row (a row of nothing else counts as tokens)."""
    real = tokens != pad
    real = real | ~real.any(dim=-1, keepdim=True)
    seen_from_left = real.long().cumsum(dim=-1) > 0
    seen_from_right = real.long().flip(-1).cumsum(dim=-1).flip(-1) > 0
    return seen_from_left & seen_from_right


def relative(apart: Tensor, whole: Tensor) -> float:
    """‖apart‖ / ‖whole‖ in double precision; 0 where both vanish, ∞ where only the whole does."""
    above, below = vector_norm(apart.double()).item(), vector_norm(whole.double()).item()
    return above / below if below > 0 else (0.0 if above == 0 else float("inf"))


LEAST_SPREAD = 1e-3
"""Rows that spread less than this share of their length are one row, but for rounding and what has made more of it."""


def centred(rows: Float[Tensor, "*row width"]) -> Float[Tensor, "row width"] | None:
    """Rows less their mean, in double precision; None where they are all alike, so that nothing can be fitted to them."""
    rows = rows.double().flatten(0, -2)
    apart = rows - rows.mean(dim=0)
    return apart if len(rows) >= 3 and vector_norm(apart) > LEAST_SPREAD * vector_norm(rows) else None


def cells(layer: Layer, pattern: Tensor) -> Bool[Tensor, "batch 1 query key"] | None:
    """True where a token could look at a token; None where the pattern is not between the two streams of the layer."""
    if pattern.shape[-2:] != (layer.queries.shape[1], layer.keys.shape[1]):
        return None
    return (layer.queries[:, :, None] & layer.keys[:, None, :])[:, None]


@dataclass(frozen=True, eq=False)
class TraceStack:
    """One stack: "encoder" with the tokens, or "decoder" with the target of an encoder-decoder."""

    stack: str
    prefix: str
    """What stands before the names that a stack has once: "" where there is only one, else "encoder." or "decoder."."""
    table: str
    """The name of its embedding's table among the weights."""
    tokens: Int[Tensor, "batch pos"]
    valid: Bool[Tensor, "batch pos"]


def positions_of(valid: Bool[Tensor, "batch pos"]) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Each token's index counted from the first token of its row, and from the last."""
    n = valid.shape[1]
    index = torch.arange(n, device=valid.device).expand_as(valid)
    first = index.masked_fill(~valid, n).amin(dim=1, keepdim=True)
    last = index.masked_fill(~valid, -1).amax(dim=1, keepdim=True)
    return (index - first).clamp(min=0), (last - index).clamp(min=0)
