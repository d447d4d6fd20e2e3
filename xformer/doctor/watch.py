"""Capture the queries, keys, scores, softmax and weights of attention from a model's own code.

    for seen in watch(model, run):
        seen.layer, seen.q, seen.k, seen.scores, seen.pattern

`TokenModel.record` replaces the attention of Transformers models by xformer's. Here the model's own attention runs, and is
found by data flow in the program of the run (`xformer.program`). What cannot be read there is left out.
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from xformer.adapters.attention import (
    FORBIDDEN,
    for_each_head,
    kernel_arguments,
    multi_head_arguments,
    multi_head_attention,
)
from xformer.adapters.module_map import Chain, Layers
from xformer.doctor.token_model import ModelCall, TokenModel
from xformer.model import Transformer
from xformer.program.attention import PARTS, PATTERN, AttentionFinder, FoundAttention, Role
from xformer.program.axis_tracker import AxisTracker
from xformer.program.plan import layers_of
from xformer.program.record import Recorder, Value, tensors_in, watched


@dataclass(frozen=True, eq=False)
class Watched:
    """One attention layer of a run.

    Attributes:
        path: The module that computes it, or that holds the modules of its heads.
        layer: Its layer in its stack, from 0; None if it could not be determined.
        entered: The input of the innermost module with a stream as input; None if there is none.
        q: The queries in the product with the keys; None if they are not known.
        k: The keys, per query head or per group; None if they are not known.
        v: The values, per query head or per group; None if they are not known.
        scores: The input of the softmax, without the score of a sink.
        softmax: The output of the softmax, likewise.
        over: The axis of the softmax.
        pattern: The weights that are multiplied with the values.
        allowed: True where the mask lets a query attend to a key.
        has_sink: Whether the softmax includes one extra score that belongs to no key (an attention sink).
        is_kernel: Whether a fused kernel computed the attention; scores and softmax are then computed from q and k.
    """

    path: str
    layer: int | None
    entered: Float[Tensor, "batch pos features"] | None
    q: Float[Tensor, "batch head query d_head"] | None
    k: Float[Tensor, "batch kv_head key d_head"] | None
    v: Float[Tensor, "batch kv_head key d_value"] | None
    scores: Float[Tensor, "batch head query key"]
    softmax: Float[Tensor, "batch head query key"]
    over: Role
    pattern: Float[Tensor, "batch head query key"]
    allowed: Bool[Tensor, "batch head query key"]
    has_sink: bool = False
    is_kernel: bool = False

    @property
    def is_square(self) -> bool:
        """Whether there are as many keys as queries."""
        return self.pattern.shape[-1] == self.pattern.shape[-2]


@dataclass(frozen=True, eq=False)
class Event:
    """What a run computed at one point: the inputs or outputs of a module, or an attention."""

    kind: Literal["input", "output", "attention"]
    chain: Chain
    number: int
    """The number of earlier events of this kind in this module."""
    module: nn.Module
    values: tuple[Tensor, ...] = ()
    """The floating-point tensors of an input or output."""
    attention: Watched | None = None

    @property
    def path(self) -> str:
        """The path of the innermost module."""
        return self.chain[-1][0] if self.attention is None else self.attention.path

    @property
    def key(self) -> tuple[str, str, int]:
        """What identifies the event in another run of the same model."""
        return self.kind, self.path, self.number


class _Note(NamedTuple):
    """The inputs or outputs of one call of a module."""

    kind: Literal["input", "output"]
    chain: Chain
    at: int
    """The number of operations before it."""
    values: tuple[Value, ...]


class _EventRecorder(Recorder):
    """Records a program with the tensors of its attention, and the inputs and outputs of all modules."""

    def __init__(self, module: nn.Module, inputs: Any) -> None:
        super().__init__(module, inputs, keep_of=PARTS)
        self.notes: list[_Note] = []
        self._is_noting = False

    @property
    def is_paused(self) -> bool:
        """Whether what runs now is not the module's."""
        return self._is_noting

    def enters(self, path: str, given: Any) -> None:
        super().enters(path, given)
        args, kwargs = given
        self._note("input", self._chain, [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)])

    def leaves(self, args: tuple[Any, ...], output: Any) -> None:
        chain = self._chain
        super().leaves(args, output)
        self._note("output", chain, tensors_in(output))

    @property
    def _chain(self) -> Chain:
        return tuple((path, call) for path, call, _ in self._modules)

    def _note(self, kind: Literal["input", "output"], chain: Chain, tensors: Sequence[Tensor]) -> None:
        self._is_noting = True
        tensors = [one for one in tensors if one.is_floating_point()]
        values = tuple(map(self.value_of, tensors))
        self.keep(values, tensors)
        self.notes.append(_Note(kind, chain, len(self.program.operations), values))
        self._is_noting = False


class _Run:
    """A recorded run, and the attention in it."""

    def __init__(self, module: nn.Module, recorder: _EventRecorder, outputs: Tensor) -> None:
        self.outputs, self._notes, self._module = outputs, recorder.notes, module
        program = recorder.finish(outputs)
        self._axes = AxisTracker(program)
        finder = AttentionFinder(program, self._axes, over=PATTERN)
        read = [(heads, one) for heads in layers_of(program, finder)[0] if (one := self._read(heads)) is not None]
        paths = [one.path for _, one in read] or [one.operation.address.module for one in finder.refused]
        self.layers = Layers(module, paths)
        self._found = [(heads, replace(one, layer=self.layers.of(heads[0].first.running))) for heads, one in read]
        self.seen = [one for _, one in self._found]

    @property
    def events(self) -> list[Event]:
        """Everything that the modules read and computed, in forward order."""
        modules, counts = dict(self._module.named_modules()), Counter[tuple[str, str]]()
        found: list[tuple[float, Event]] = [
            (note.at, Event(note.kind, note.chain, 0, modules[note.chain[-1][0]], _tensors(note.values)))
            for note in self._notes
        ]
        for heads, one in self._found:
            chain = heads[0].first.running
            event = Event("attention", chain, 0, modules[chain[-1][0]], attention=one)
            found.append((heads[0].normaliser.index + 0.5, event))
        events = []
        for _, event in sorted(found, key=lambda one: one[0]):
            events.append(replace(event, number=counts[event.key[:2]]))
            counts[event.key[:2]] += 1
        return [*events, Event("output", (("output", 0),), 0, self._module, (self.outputs.cpu(),))]

    def _read(self, heads: Sequence[FoundAttention]) -> Watched | None:
        """One layer, whose heads may be computed alone; None if its tensors cannot be read."""
        pieces = [self._kernel(one) if one.kernel else self._steps(one) for one in heads]
        read = [piece for piece in pieces if piece is not None]
        if len(read) < len(pieces):
            return None
        joined = {name: _joined([piece[name] for piece in read]) for name in read[0]}
        paths = [f"/{one.first.address.module.replace('.', '/')}" for one in heads]
        path = os.path.commonpath(paths)[1:].replace("/", ".")
        n_extra = heads[0].scores.shape.numel() - heads[0].pattern.shape.numel()
        return Watched(
            path,
            None,
            self._entered(heads[0]),
            over=heads[0].normalised,
            has_sink=n_extra > 0,
            is_kernel=heads[0].kernel is not None,
            **joined,  # pyright: ignore[reportArgumentType]
        )

    def _steps(self, found: FoundAttention) -> dict[str, Tensor | None] | None:
        """The tensors of an attention in steps."""
        scores, softmax, pattern = found.scores.tensor, found.normaliser.result.tensor, found.pattern.tensor
        if scores is None or softmax is None or pattern is None or softmax.shape != scores.shape:
            return None
        scores, softmax = found.layout.to_heads(scores), found.layout.to_heads(softmax)
        pattern = found.pattern_layout.to_heads(pattern)
        keys = _columns_of_keys(found, pattern.shape[-1], scores.shape[-1])
        if keys is None:
            return None
        scores, softmax = scores[..., keys], softmax[..., keys]
        allowed = scores > FORBIDDEN
        if found.is_masked_later:
            allowed = allowed & (pattern != 0)
        read: dict[str, Tensor | None] = dict.fromkeys("qkv")
        for name, (value, layout) in found.operands.items():
            read[name] = None if value.tensor is None else layout.to_heads(value.tensor)
        return read | {"scores": scores, "softmax": softmax, "pattern": pattern, "allowed": allowed}

    def _kernel(self, found: FoundAttention) -> dict[str, Tensor | None] | None:
        """The same of a kernel, computed from its arguments."""
        operation = found.kernel
        assert operation is not None
        args, kwargs = _with_tensors(operation.args), _with_tensors(operation.kwargs)
        read: dict[str, Tensor | None] = {}

        def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> tuple[Tensor, Tensor]:
            scores = q @ for_each_head(k, q.shape[1]).transpose(-2, -1) * scale
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
            pattern = scores.softmax(dim=-1)
            read.update(q=q, k=k, v=v, scores=scores, softmax=pattern, pattern=pattern, allowed=scores > FORBIDDEN)
            return pattern @ for_each_head(v, q.shape[1]), pattern

        if operation.name == "multi_head_attention_forward":
            given = multi_head_arguments(args, kwargs)
            if given is not None:
                multi_head_attention(attend, given)
        else:
            is_flex = operation.name == "flex_attention"
            attend(*kernel_arguments(found.layout, args, kwargs, is_flex=is_flex))
        return read or None

    def _entered(self, found: FoundAttention) -> Tensor | None:
        """The input [batch, pos, features] of the innermost module that reads one with the queries' positions."""
        product, kernel = found.product, found.kernel
        if product is not None:
            own = (*product.rows, *product.columns)
        else:
            assert kernel is not None
            own = self._axes.of(kernel.inputs[0])[0 if kernel.name == "multi_head_attention_forward" else -2]
        positions = {id(atom.root) for atom in own if atom.origin == "input" and atom.size > 1}
        batch = None if found.batch is None else id(found.batch.root)
        inputs: dict[tuple[str, int], list[Value]] = defaultdict(list)
        for note in self._notes:
            if note.kind == "input":
                inputs[note.chain[-1]] += note.values
        for call in reversed(found.first.running):
            for value in inputs[call]:
                roots = [{id(atom.root) for atom in axis} for axis in self._axes.of(value)]
                at = [
                    1 if one & positions else 0 if size == 1 or batch in one else 2
                    for one, size in zip(roots, value.shape, strict=True)
                ]
                if sorted(at) == [0, 1, 2]:
                    assert value.tensor is not None
                    return value.tensor.permute([at.index(role) for role in range(3)])
        return None


def _tensors(values: Sequence[Value]) -> tuple[Tensor, ...]:
    return tuple(value.tensor.cpu() for value in values if value.tensor is not None)


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The heads of a layer side by side."""
    known = [one for one in parts if one is not None]
    if len(known) < len(parts):
        return None
    return known[0] if len(known) == 1 else torch.cat(known, dim=1)


def _columns_of_keys(found: FoundAttention, n_key: int, n_scores: int) -> slice | None:
    """The scores of keys, beside those of a sink that is joined to them; None if that is not known."""
    if n_key == n_scores:
        return slice(None)
    assert found.product is not None
    value = found.product.operation.result
    for operation in found.chain:
        if operation.name in ("cat", "concat"):
            return slice(n_key) if operation.inputs[0] is value else slice(n_scores - n_key, None)
        value = operation.result
    return None


def _with_tensors(given: Any) -> Any:
    """Nested arguments with their tensors in place of values."""
    if isinstance(given, Value):
        return given.tensor
    if isinstance(given, Mapping):
        return {name: _with_tensors(one) for name, one in given.items()}
    return tuple(map(_with_tensors, given)) if type(given) is tuple else given


def watch(model: TokenModel, run: ModelCall, *, by_steps: bool = False) -> list[Watched]:
    """Return the attention layers of a run, in forward order; empty if none was found.

    Args:
        model: The model.
        run: The arguments of the call.
        by_steps: Whether to take the path that computes the softmax explicitly, if the model has one.
    """
    if by_steps and isinstance(model.module, Transformer):
        return _recorded(model, replace(run, recorded=True)).seen
    return _recorded(stepwise(model) if by_steps else model, run).seen


def watch_outputs(model: TokenModel, run: ModelCall) -> tuple[list[Watched], Float[Tensor, "batch out vocab"]]:
    """Return the attention layers of a run, as `watch` does, and the outputs of the run."""
    recorded = _recorded(model, run)
    return recorded.seen, recorded.outputs


def watch_events(model: TokenModel, run: ModelCall) -> tuple[list[Event], Layers]:
    """Return everything that the modules of a run read and computed, in forward order, and the layers of the model."""
    recorded = _recorded(model, run)
    return recorded.events, recorded.layers


@torch.no_grad()
def _recorded(model: TokenModel, run: ModelCall) -> _Run:
    call, inputs = model.last_call(run)
    recorder = _EventRecorder(model.module, inputs)
    with watched(model.module, recorder):
        outputs = call()
    return _Run(model.module, recorder, outputs)


def stepwise(model: TokenModel) -> TokenModel:
    """Return a copy that computes attention with an explicit softmax (eager), if the model has that path."""
    model = model.shared()
    if model.is_transformers and getattr(model.module.config, "_attn_implementation", "eager") != "eager":
        model.module.set_attn_implementation("eager")  # pyright: ignore[reportCallIssue]
    return model
