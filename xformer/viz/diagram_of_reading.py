"""Describe the diagram of an external model by what was found in one run of it, not by the name of its family.

Parts that were not found are not drawn, and an equation is written only where it follows from what was found.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch import Tensor

from xformer.adapters.huggingface_opening import CLASSES
from xformer.adapters.inputs import PatchedImage
from xformer.errors import UnavailableError
from xformer.reading import Reading
from xformer.site import Site, Stack, after
from xformer.viz.diagram import Arrow, Box, Diagram, Flow, Kind, StackFrame

_KINDS = {"encoder": "Encoder", "decoder": "Decoder", "encoder-decoder": "Encoder-decoder"}


def diagram_of(reading: Reading) -> Diagram:
    """The diagram of a reading's model, with the shapes of that input. The trace must hold all activations."""
    shape = reading.subject.shape
    stacks: list[Stack] = ["encoder", "decoder"] if reading.is_pair else [shape.sites[0].stack]
    walks = [_Walk(reading, stack) for stack in stacks]
    for walk in walks:
        walk.build(walks[0] if len(walks) > 1 and walk is walks[-1] else None)
    n = " + ".join(str(walk.frame.n_layers) for walk in walks)
    return Diagram(
        title=f"{_KINDS[shape.architecture]}, {n} {'layer' if n == '1' else 'layers'}, d_model {shape.d_model:,}",
        norm=shape.norm,
        stacks=tuple(walk.frame for walk in walks),
        boxes=tuple(box for walk in walks for box in walk.boxes),
        arrows=tuple(arrow for walk in walks for arrow in walk.arrows),
        total=_total(reading),
    )


def _total(reading: Reading) -> int | None:
    with suppress(UnavailableError):
        return reading.subject.weights.n_parameters()
    return None


def _output_words(reading: Reading) -> tuple[str, str]:
    """The output layer and its numbers, in words."""
    kind, n = reading.output, reading.subject.shape.vocab_size
    softmax = "a softmax turns the scores into probabilities."
    if kind == "answer_span":
        return f"Scores each token as the start and as the end of an answer; {softmax}", "2 scores a token"
    if kind not in CLASSES:
        return f"Scores each of the {n:,} tokens; {softmax}", f"{n:,} scores"
    if n == 1:
        return "Gives one number, which is no class.", "1 number"
    of = "each token" if kind == "token_class" else "the whole input"
    return f"Scores each of the {n:,} classes for {of}; {softmax}", f"{n:,} scores"


class _Walk:
    """Collects the boxes and arrows of one stack, from the input on; its first layer stands for all."""

    def __init__(self, reading: Reading, stack: Stack) -> None:
        shape = reading.subject.shape
        self.reading, self.shape, self.stack, self.tip = reading, shape, stack, ""
        self.sites = [site for site in shape.sites if (site.stack, site.layer) == (stack, 0)]
        self.n_layers = 1 + max(site.layer for site in shape.sites if site.stack == stack)
        self.at = f"{stack}." if reading.is_pair else ""
        self.vectors = (1, len(reading.ids(stack)), shape.d_model)
        self.boxes: list[Box] = []
        self.arrows: list[Arrow] = []
        self.frame = StackFrame(stack, f"{stack.capitalize()} layer", self.n_layers, len(self.sites))

    def build(self, memory: _Walk | None) -> None:
        n = self.vectors[1]
        title = {"encoder": "Source", "decoder": "Target"}[self.stack] if self.reading.is_pair else "Input"
        tokens = f"{n} token{'s' * (n != 1)}"
        what = f"The input as {tokens}: one whole number from 0 to {self.shape.n_inputs - 1:,} at each position."
        shape = (1, n)
        pixels = (self.reading.example.arguments or {}).get("pixel_values")
        if isinstance(self.reading.subject.input, PatchedImage) and isinstance(pixels, Tensor):
            rows, columns = pixels.shape[-2:]
            what, shape = f"The picture: {rows} × {columns} pixels, a number for each channel.", tuple(pixels[:1].shape)
        self._extend(self._box("tokens", "tokens", title, what, shape=shape))
        self._embedding(self.shape.n_inputs)
        for index, site in enumerate(self.sites):
            self._sublayer(index, site, memory)
        is_last = self.stack == self.reading.output_stack
        if f"{'' if is_last else self.at}final_norm" in self.reading:
            name = f"{'' if is_last else self.at}final_norm"
            self._extend(self._norm("final_norm", name, None, "after the last layer"))
        if is_last and self.reading.has_logits:
            what, detail = _output_words(self.reading)
            shape = tuple(self.reading.logits[:1].shape)
            more: dict[str, Any] = {"shape": shape, "detail": detail, "activation": "logits"}
            self._extend(self._box("output", "output", "Output", what, **more))

    def _embedding(self, n_tokens: int) -> None:
        what = f"Looks up the learned vector of each token: {self.shape.d_model:,} numbers per token."
        equation, detail, of = "E[token]", f"{n_tokens:,} tokens", self.reading.subject.input
        if isinstance(of, PatchedImage):
            what = f"Maps the pixels of each patch to {self.shape.d_model:,} numbers."
            equation, detail = "", f"patches of {of.patch[0]} × {of.patch[1]} pixels"
        name = f"{self.at}embed"
        more: dict[str, Any] = {"equation": equation, "detail": detail, "activation": name}
        self._extend(self._box("embed", "embedding", "Embedding", what, **more))
        if f"{self.at}pos_embed" in self.reading:
            what = "A learned or fixed vector for each position, which the model adds to the token’s."
            box = self._box("positions", "positions", "Positions", what, place="above",
                            equation="P[position]", activation=f"{self.at}pos_embed")  # fmt: skip
            self.boxes.append(box)
            name = f"{self.stack}.0.resid_pre"
            self._extend(
                self._box("pos_sum", "sum", "Sum", "Adds the position’s vector.", equation="x + p", activation=name)
            )
            self.arrows.append(Arrow(box.id, self.tip, "add"))
        elif inside := self._positions_inside():
            name, equation, what = inside
            self.boxes.append(
                self._box("positions", "positions", "Positions", what, place="above", equation=equation,
                          activation=name, shape=tuple(self.reading[name].shape))
            )  # fmt: skip

    def _positions_inside(self) -> tuple[str, str, str] | None:
        for name in self.reading:
            if name.startswith("pos_angles"):
                return name, "(R_i q)·(R_j k)", "Turns queries and keys by angles that grow with the position."
            if name.startswith(self.stack) and name.endswith("pos_bias"):
                return name, "score + b(i − j)", "Adds to each score a number that hangs on the distance."
        return None

    def _sublayer(self, index: int, site: Site, memory: _Walk | None) -> None:
        before, entry, pre = self.tip, self.tip, self.shape.norm == "pre"
        if pre:
            norm = self._norm(f"{site.kind}_norm", f"{site.path}.in", index, "before the sublayer")
            self.boxes.append(norm)
            self.arrows.append(Arrow(before, norm.id, "branch"))
            entry = norm.id
        box = self._attention(index, site) if site.is_attention else self._feed_forward(index, site)
        self.boxes.append(box)
        self.arrows.append(Arrow(entry, box.id, "branch"))
        if site.is_cross and memory is not None:
            self.arrows.append(Arrow(memory.tip, box.id, "memory"))
        positions = f"{self.stack}.positions"
        inside = f"{self.at}pos_embed" not in self.reading and any(one.id == positions for one in self.boxes)
        if inside and site.is_attention and not site.is_cross:
            self.arrows.append(Arrow(positions, box.id, "inside"))
        end, what = after(site), "Adds what this layer made to the stream."
        if self.shape.joined:
            what += " Attention and feed-forward of this model read the same stream and are added at once."
        more = {
            "equation": "x + f(x)",
            "activation": end if pre and end in self.reading else None,
        }
        self._extend(self._box(f"{site.kind}_sum", "sum", "Sum", what, index=index, **more), "residual")
        self.arrows.append(Arrow(box.id, self.tip, "branch"))
        if self.shape.norm == "post":
            self._extend(self._norm(f"{site.kind}_norm", end, index, "after the sum"))

    def _attention(self, index: int, site: Site) -> Box:
        heads = self.shape.heads[site.path]
        causal = site.stack == "decoder" and not site.is_cross
        seen = "itself and the positions before it (causal mask)" if causal else "every position"
        name = {"attn": "Self-attention", "self_attn": "Self-attention", "cross_attn": "Cross-attention"}[site.kind]
        return self._box(
            site.kind, "attention", name,
            f"In every head, each position looks at {seen} and takes a weighted average of their values.",
            place="above", equation="softmax(scores)·v", detail=f"{heads} head{'s' * (heads != 1)}", index=index,
            activation=f"{site.path}.out", heads=heads, mask="causal" if causal else "full",
        )  # fmt: skip

    def _feed_forward(self, index: int, site: Site) -> Box:
        width, d = self.shape.neurons.get(site.path), f"{self.shape.d_model:,}"
        gated = f"{site.path}.up" in self.reading
        what = f"On each position alone: maps {d} numbers to {width:,} neurons and back."
        what = what if width else "On each position alone."
        return self._box(
            "ffn", "feed_forward", "Feed-forward", what, place="above", index=index, activation=f"{site.path}.out",
            equation="(act(x·W_gate) ∘ x·W_up)·W₂" if gated else "act(x·W₁)·W₂" if width else "",
            detail=f"{d} → {width:,} → {d}" if width else "",
        )  # fmt: skip

    def _norm(self, name: str, activation: str, index: int | None, where: str) -> Box:
        place = "rise" if index is not None and self.shape.norm == "pre" else "stream"
        return self._box(
            name, "norm", "Norm", f"A norm {where}: brings each vector to one length.", place=place, index=index,
            activation=activation if activation in self.reading else None,
        )  # fmt: skip

    def _box(self, name: str, kind: Kind, title: str, what: str, *, index: int | None = None, **more: object) -> Box:
        repeats = self.n_layers if index is not None else 1
        fields = {
            "place": "stream",
            "shape": self.vectors,
            "note": "" if kind in ("tokens", "sum") else "learned",
        } | more
        if fields.get("activation") not in self.reading:
            fields["activation"] = None
        return Box(  # pyright: ignore[reportCallIssue]
            id=f"{self.stack}.{name}", kind=kind, stack=self.stack, title=title, what=what, repeats=repeats, sublayer=index,
            **fields,  # pyright: ignore[reportArgumentType]
        )  # fmt: skip

    def _extend(self, box: Box, flow: Flow = "stream") -> None:
        """Go on along the stream to a new box."""
        self.boxes.append(box)
        if self.tip:
            self.arrows.append(Arrow(self.tip, box.id, flow))
        self.tip = box.id
