"""Types that the checks share: mistakes, and a trace divided into stacks, layers and sublayers."""

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
class Mistake:
    """One fault. `kind` is the bug's name in `xformer.doctor.faults`, if it has one."""

    kind: str
    where: tuple[str, ...]
    """The paths where it was found, with the head if a single head is at fault."""
    severity: Severity
    sentence: str
    numbers: dict[str, float] = field(default_factory=dict)
    """The values measured at the first location, and the expected ones."""


def error(kind: str, where: str, sentence: str, numbers: Mapping[str, float] | None = None) -> Mistake:
    """Return a definite mistake at one location."""
    return Mistake(kind, (where,), "error", sentence, dict(numbers or {}))


def warning(kind: str, where: tuple[str, ...], sentence: str, numbers: Mapping[str, float]) -> Mistake:
    """Return a possible mistake, or the consequence of one."""
    return Mistake(kind, where, "warning", sentence, dict(numbers))


@dataclass(frozen=True)
class Deviation:
    """The deviation of one location of a trace from its expected value.

    An `excess` above 1 is more than rounding explains; None: undecidable.
    """

    place: str
    excess: float | None
    why: str = ""


def broken(place: str, why: str = "") -> Deviation:
    """Return a measurement of a location that is wrong by more than any rounding."""
    return Deviation(place, float("inf"), why)


@dataclass(frozen=True, eq=False)
class TraceLayer:
    """One attention layer of a trace."""

    path: str
    is_cross: bool
    causal: bool
    queries: Bool[Tensor, "batch query"]
    """True for queries that are tokens and not padding."""
    keys: Bool[Tensor, "batch key"]


@dataclass(frozen=True, eq=False)
class TraceSublayer:
    """One sublayer: its input and output, and the stream before and after it."""

    path: str
    before: Float[Tensor, "batch pos d_model"]
    inside: Float[Tensor, "batch pos d_model"]
    out: Float[Tensor, "batch pos d_model"]
    after: Float[Tensor, "batch pos d_model"]


@dataclass(frozen=True, eq=False)
class Case:
    """A trace with its padding and, if known, the weights of the model."""

    trace: Trace
    valid: Bool[Tensor, "batch pos"]
    target_valid: Bool[Tensor, "batch target"] | None
    weights: Mapping[str, Tensor] | None = None
    """The model's state dict; None if the model is not available."""

    def __contains__(self, name: str) -> bool:
        return name in self.trace

    def __getitem__(self, name: str) -> Tensor:
        return self.trace[name]

    def has(self, path: str, *names: str) -> bool:
        """Return whether the trace has all of these activations of a layer."""
        return all(f"{path}.{name}" in self.trace for name in names)

    def attention(self, *names: str) -> Iterator[tuple[TraceLayer, list[Tensor]]]:
        """Yield the attention layers that have all of these activations, with the activations."""
        for layer in self.layers:
            if self.has(layer.path, *names):
                yield layer, [self[f"{layer.path}.{name}"] for name in names]

    def feed_forward(self, *names: str) -> Iterator[tuple[str, list[Tensor]]]:
        """Yield the paths of the feed-forward layers that have all of these activations, with the activations."""
        for block in self.blocks:
            if self.has(f"{block}.ffn", *names):
                yield f"{block}.ffn", [self[f"{block}.ffn.{name}"] for name in names]

    def weight(self, name: str) -> Tensor | None:
        """Return a weight by its path in trace notation, "encoder.0.attn.weight_in"; None if it is unknown."""
        return (self.weights or {}).get(re.sub(r"^(encoder|decoder)\.(?=\d)", r"\1.blocks.", name))

    def norm_weights(self, name: str) -> tuple[Tensor | None, Tensor | None]:
        """Return γ and β of a normalisation."""
        return self.weight(f"{name}.weight"), self.weight(f"{name}.bias")

    @cached_property
    def stacks(self) -> list[TraceStack]:
        """The stacks; the one that produces the logits is last."""
        trace, config = self.trace, self.trace.config
        if config.architecture != "encoder-decoder":
            return [TraceStack(config.architecture, "", "embedding.token", trace.tokens, self.valid)]
        source = "embedding.token" if config.tied_source else "source_embedding.token"
        found = [TraceStack("encoder", "encoder.", source, trace.tokens, self.valid)]
        if trace.target is not None and self.target_valid is not None:
            found.append(TraceStack("decoder", "decoder.", "embedding.token", trace.target, self.target_valid))
        return found

    @cached_property
    def layers(self) -> list[TraceLayer]:
        """The attention layers whose pattern was recorded."""
        config, found = self.trace.config, []
        valid = {"encoder": self.valid, "decoder": self.valid if self.target_valid is None else self.target_valid}
        for site in self.trace.layer_paths():
            is_output = site.stack == "decoder" or config.architecture == "encoder"
            causal = not site.is_cross and is_output and bool(config.causal)
            found.append(TraceLayer(site.path, site.is_cross, causal, valid[site.query_stack], valid[site.key_stack]))
        return found

    @cached_property
    def blocks(self) -> list[str]:
        """The paths of the layers of all stacks: "encoder.0", …"""
        return list(dict.fromkeys(layer.path.rpartition(".")[0] for layer in self.layers))

    @cached_property
    def sublayers(self) -> list[TraceSublayer]:
        """The sublayers whose input, output and surrounding stream were recorded, in forward order."""
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
                    found.append(TraceSublayer(f"{block}.{part}", *(self[f"{block}.{name}"] for name in names)))
        return found

    @cached_property
    def memory(self) -> Tensor | None:
        """The encoder's output, which an encoder-decoder's decoder should attend to."""
        if self.trace.target is None:
            return None
        names = ("encoder.final_norm", f"encoder.{self.trace.config.n_layers - 1}.resid_post")
        return next((self[name] for name in names if name in self), None)

    def projected(self, path: str, name: str) -> Tensor:
        """Return q, k or v as projected: for keys and values shared by a group, only the first head of each group."""
        made, config = self[f"{path}.{name}"], self.trace.config
        return made if name == "q" else made[:, :: made.shape[1] // config.kv_component.n_kv_heads(config)]

    def rows_into(self, layer: TraceLayer) -> Iterator[tuple[str, Tensor | None]]:
        """Yield q, k and v, each with the stream from which it should be projected."""
        x = self[f"{layer.path}.in"] if self.has(layer.path, "in") else None
        other = self.memory if layer.is_cross else x
        yield from (("q", x), ("k", other), ("v", other))


def tokens_that_count(tokens: Int[Tensor, "batch pos"], pad: int) -> Bool[Tensor, "batch pos"]:
    """Return False for runs of the padding token at either end of a row; a row of only padding counts as tokens."""
    real = tokens != pad
    real = real | ~real.any(dim=-1, keepdim=True)
    seen_from_left = real.long().cumsum(dim=-1) > 0
    seen_from_right = real.long().flip(-1).cumsum(dim=-1).flip(-1) > 0
    return seen_from_left & seen_from_right


def relative(apart: Tensor, whole: Tensor) -> float:
    """Return ‖apart‖ / ‖whole‖ in double precision; 0 if both vanish, ∞ if only the whole does."""
    above, below = vector_norm(apart.double()).item(), vector_norm(whole.double()).item()
    return above / below if below > 0 else (0.0 if above == 0 else float("inf"))


MIN_SPREAD = 1e-3
"""Rows whose spread is below this fraction of their norm count as identical: the rest can be amplified rounding."""


def centred(rows: Float[Tensor, "*row width"]) -> Float[Tensor, "row width"] | None:
    """Subtract the mean of the rows, in double precision; None if all rows are equal, so that nothing can be fitted."""
    rows = rows.double().flatten(0, -2)
    apart = rows - rows.mean(dim=0)
    return apart if len(rows) >= 3 and vector_norm(apart) > MIN_SPREAD * vector_norm(rows) else None


def cells(layer: TraceLayer, pattern: Tensor) -> Bool[Tensor, "batch 1 query key"] | None:
    """Return True where query and key are both tokens; None if the pattern's shape does not match the layer's streams."""
    if pattern.shape[-2:] != (layer.queries.shape[1], layer.keys.shape[1]):
        return None
    return (layer.queries[:, :, None] & layer.keys[:, None, :])[:, None]


@dataclass(frozen=True, eq=False)
class TraceStack:
    """One stack: "encoder" with the tokens, or "decoder" with the target of an encoder-decoder."""

    stack: str
    prefix: str
    """The prefix of activations that a stack has once: "" for a single stack, else "encoder." or "decoder."."""
    table: str
    """The name of its embedding table in the state dict."""
    tokens: Int[Tensor, "batch pos"]
    valid: Bool[Tensor, "batch pos"]


def positions_of(valid: Bool[Tensor, "batch pos"]) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Return each token's index counted from the first token of its row, and counted back from the last."""
    n = valid.shape[1]
    index = torch.arange(n, device=valid.device).expand_as(valid)
    first = index.masked_fill(~valid, n).amin(dim=1, keepdim=True)
    last = index.masked_fill(~valid, -1).amax(dim=1, keepdim=True)
    return (index - first).clamp(min=0), (last - index).clamp(min=0)
