"""Capture the queries, keys, scores, softmax and weights of attention from a model's own code.

    for seen in watch(model, run):
        seen.layer, seen.q, seen.k, seen.scores, seen.pattern

`TokenModel.record` replaces the attention of Transformers models by xformer's. Here the model's own attention runs, and is
found by data flow in the program of the run (`xformer.program`). What cannot be read there is left out.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from xformer.adapters.attention import for_each_head, kernel_arguments, permitted
from xformer.adapters.module_map import Chain, Layers
from xformer.doctor.model_call import ModelCall
from xformer.doctor.token_model import TokenModel
from xformer.model import Transformer
from xformer.program.attention import PARTS, AttentionFinder, FoundAttention
from xformer.program.axes import argument
from xformer.program.axis_tracker import AxisTracker
from xformer.program.heads import PATTERN, Role
from xformer.program.operations import AttentionOperations
from xformer.program.plan import layers_of
from xformer.program.record import Program, Recorder, Value, tensors_in, watched

RecorderT = TypeVar("RecorderT", bound=Recorder)


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
        scores: The input of the softmax, without the scores of a sink; the natural logarithms of what it normalises.
        sinks: The scores of sinks, which have no values.
        added: What is added to the sum of the exponentials, as in exp / (1 + sum): a number or weight, or what depends on the
            input; "" for nothing.
        softmax: The output of the softmax, without the sinks.
        over: The axis of the softmax.
        pattern: The weights that are multiplied with the values.
        allowed: True where the mask lets a query attend to a key.
        is_kernel: Whether a fused kernel computed the attention; scores and softmax are then computed from q and k.
    """

    path: str
    layer: int | None
    entered: Float[Tensor, "batch pos features"] | None
    q: Float[Tensor, "batch head query d_head"] | None
    k: Float[Tensor, "batch kv_head key d_head"] | None
    v: Float[Tensor, "batch kv_head key d_value"] | None
    scores: Float[Tensor, "batch head query key"]
    sinks: Float[Tensor, "batch head query sink"]
    added: Literal["", "constant", "variable"]
    softmax: Float[Tensor, "batch head query key"]
    over: Role
    pattern: Float[Tensor, "batch head query key"]
    allowed: Bool[Tensor, "batch head query key"]
    is_kernel: bool = False

    @property
    def is_square(self) -> bool:
        """Whether there are as many keys as queries."""
        return self.pattern.shape[-1] == self.pattern.shape[-2]

    @property
    def is_finite(self) -> bool:
        """Whether its tensors have no NaN or infinity, apart from masked scores of −∞; otherwise they cannot be compared."""
        parts = [part for part in (self.q, self.k, self.v, self.softmax, self.pattern) if part is not None]
        return bool((self.scores < math.inf).all()) and all(bool(part.isfinite().all()) for part in parts)


@dataclass(frozen=True, eq=False)
class Event:
    """What a run computed at one point: the inputs or outputs of a module, or an attention."""

    kind: Literal["input", "output", "attention"]
    chain: Chain
    number: int
    """The number of earlier events of this kind in this module."""
    module: nn.Module
    at: float
    """The number of operations before it."""
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


class _EventRecorder(Recorder):
    """Records a program with the tensors of its attention, and the inputs and outputs of all modules."""

    def __init__(self, module: nn.Module, inputs: Any) -> None:
        super().__init__(module, inputs, keep_of=PARTS)
        self.notes: list[tuple[Event, tuple[Value, ...]]] = []
        """The inputs and outputs of each call of a module."""
        self._counts: Counter[tuple[str, str]] = Counter()
        self._parts = dict(module.named_modules())
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
        self._is_noting, path = True, chain[-1][0]
        tensors = [one for one in tensors if one.is_floating_point()]
        values = tuple(map(self.value_of, tensors))
        self.keep(values, tensors)
        event = Event(kind, chain, self._counts[kind, path], self._parts[path], len(self.program.operations))
        self.notes.append((event, values))
        self._counts[kind, path] += 1
        self._is_noting = False


def read_layer(heads: Sequence[FoundAttention]) -> Watched | None:
    """An attention layer, whose heads may be computed alone; None if its tensors cannot be read."""
    one, first = AttentionOperations(tuple(heads)), heads[0]
    scores, softmax, pattern, q, k, v = one.scores, one.softmax, one.pattern, one.q, one.k, one.v
    if first.kernel is not None:
        computed = [part for part in map(_kernel, heads) if part is not None]
        if len(computed) < len(heads):
            return None
        q, k, v, scores = (
            parts[0] if len(parts) == 1 else torch.cat(parts, dim=1) for parts in zip(*computed, strict=True)
        )
        softmax = pattern = scores.softmax(dim=-1)
    if scores is None or softmax is None or pattern is None:
        return None
    keys = _columns_of_keys(first, pattern.shape[-1], scores.shape[-1])
    if keys is None:
        return None
    scores = scores * math.log(first.normaliser.base)
    is_key = torch.zeros(scores.shape[-1], dtype=torch.bool, device=scores.device)
    is_key[keys] = True
    scores, sinks, softmax = scores[..., is_key], scores[..., ~is_key], softmax[..., is_key]
    allowed = permitted(scores) & (pattern != 0) if first.is_masked_later else permitted(scores)
    path, is_kernel = path_of(heads), first.kernel is not None
    added, over = first.normaliser.added, first.normalised
    return Watched(path, None, None, q, k, v, scores, sinks, added, softmax, over, pattern, allowed, is_kernel)


def path_of(heads: Sequence[FoundAttention]) -> str:
    """The module that computes the heads, or that holds the modules of each."""
    paths = [f"/{found.first.address.module.replace('.', '/')}" for found in heads]
    return os.path.commonpath(paths)[1:].replace("/", ".")


def _kernel(found: FoundAttention) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """q, k, v, and the scores that a kernel does not return."""
    kernel = found.kernel
    assert kernel is not None
    args, kwargs = _with_tensors(kernel.args), _with_tensors(kernel.kwargs)
    arguments = kernel_arguments(kernel.name, found.layout, args, kwargs)
    if arguments is None:
        return None
    q, k, v, scale, mask = arguments
    scores = q @ for_each_head(k, q.shape[1]).transpose(-2, -1) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return q, k, v, scores


def _with_tensors(given: Any) -> Any:
    """Nested arguments with their tensors in place of values."""
    if isinstance(given, Value):
        return given.tensor
    if isinstance(given, Mapping):
        return {name: _with_tensors(one) for name, one in given.items()}
    return tuple(map(_with_tensors, given)) if type(given) is tuple else given


def _columns_of_keys(found: FoundAttention, n_key: int, n_scores: int) -> slice | None:
    """The scores of keys, beside those of a sink that is joined to them; None if that is not known."""
    if n_key == n_scores:
        return slice(None)
    assert found.product is not None
    value = found.product.operation.result
    for operation in found.chain:
        if operation.name in ("cat", "concat"):
            return slice(n_key) if operation.inputs[0] is value else slice(n_scores - n_key, None)
        if operation.name == "pad":  # the last axis first, each with the numbers before and after it
            pads = [int(one) for one in argument(operation, 1, "pad")]
            before, after = sum(pads[::2]), sum(pads[1::2])
            if n_scores - n_key in (before, after) and 0 in (before, after):
                return slice(n_key) if after else slice(before, None)
        value = operation.result
    return None


def _entered(
    found: FoundAttention, inputs: Mapping[tuple[str, int], Sequence[Value]], axes: AxisTracker
) -> Tensor | None:
    """The input [batch, pos, features] of the innermost running module that reads one with the queries' positions."""
    if found.product is not None:
        own = (*found.product.rows, *found.product.columns)
    else:
        own = axes.of(found.first.inputs[0])[0 if found.first.name == "multi_head_attention_forward" else -2]
    positions = {id(atom.root) for atom in own if atom.origin == "input" and atom.size > 1}
    batch = None if found.batch is None else id(found.batch.root)
    for value in (value for call in reversed(found.first.running) for value in inputs.get(call, ())):
        roots = [{id(atom.root) for atom in axis} for axis in axes.of(value)]
        of = ["pos" if root & positions else "batch" if batch in root else "width" for root in roots]
        of = ["batch" if size == 1 and one == "width" else one for one, size in zip(of, value.shape, strict=True)]
        if sorted(of) == ["batch", "pos", "width"] and value.tensor is not None:
            return value.tensor.permute([of.index(axis) for axis in ("batch", "pos", "width")])
    return None


def watch(model: TokenModel, run: ModelCall, *, by_steps: bool = False) -> list[Watched]:
    """Return the attention layers of a run, in forward order; empty if none was found.

    Args:
        model: The model.
        run: The arguments of the call.
        by_steps: Whether to take the path that computes the softmax explicitly, if the model has one.
    """
    if by_steps and isinstance(model.module, Transformer):
        run = replace(run, recorded=True)
    return watch_outputs(stepwise(model) if by_steps else model, run)[0]


def watch_outputs(model: TokenModel, run: ModelCall) -> tuple[list[Watched], Float[Tensor, "batch out vocab"]]:
    """Return the attention layers of a run, as `watch` does, and the outputs of the run."""
    events, _ = watch_events(model, run)
    return [event.attention for event in events if event.attention is not None], events[-1].values[0]


@dataclass(frozen=True, eq=False)
class Recorded:
    """The program of the last call of a run, and the attentions that were found in it, by layer."""

    program: Program
    axes: AxisTracker
    finder: AttentionFinder
    attentions: list[list[FoundAttention]]
    outputs: Float[Tensor, "batch out vocab"]


@torch.no_grad()
def recorded(
    model: TokenModel, run: ModelCall, make: Callable[[nn.Module, Any], RecorderT]
) -> tuple[RecorderT, Recorded]:
    """Record the last call of a run, with the recorder that `make` returns for a module and its inputs."""
    call, inputs = model.last_call(run)
    recorder = make(model.module, inputs)
    with watched(model.module, recorder):
        outputs = call()
    program = recorder.finish(outputs)
    axes = AxisTracker(program)
    finder = AttentionFinder(program, axes, over=PATTERN)
    return recorder, Recorded(program, axes, finder, layers_of(program, finder)[0], outputs)


@torch.no_grad()
def watch_events(model: TokenModel, run: ModelCall) -> tuple[list[Event], Layers]:
    """Return everything that the modules of a run read and computed, in forward order, and the layers of the model.

    The last event is the output of the model.
    """
    recorder, last = recorded(model, run, _EventRecorder)
    program = last.program
    read = [(heads[0], one) for heads in last.attentions if (one := read_layer(heads)) is not None]
    refused = [one.operation.address.module for one in last.finder.refused]
    layers = Layers(model.module, [one.path for _, one in read] or refused)
    streams = {event.chain[-1]: values for event, values in recorder.notes if event.kind == "input"}
    counts: Counter[str] = Counter()
    events = [replace(event, values=tuple(map(_tensor, values))) for event, values in recorder.notes]
    for found, one in read:
        chain = found.first.running
        seen = replace(one, layer=layers.of(chain), entered=_entered(found, streams, last.axes))
        module = model.module.get_submodule(chain[-1][0])
        at = found.normaliser.operation.index + 0.5
        events.append(Event("attention", chain, counts[one.path], module, at, attention=seen))
        counts[one.path] += 1
    for operation in program.operations:  # its cycles would keep the tensors alive
        for value in (*operation.inputs, *operation.results):
            value.tensor = None
    output = Event("output", (("output", 0),), 0, model.module, len(program.operations), (last.outputs,))
    return [*sorted(events, key=lambda event: event.at), output], layers


def _tensor(value: Value) -> Tensor:
    assert value.tensor is not None
    return value.tensor


def stepwise(model: TokenModel) -> TokenModel:
    """Return a copy that computes attention with an explicit softmax (eager), if the model has that path."""
    model = model.shared()
    if model.is_transformers and getattr(model.module.config, "_attn_implementation", "eager") != "eager":
        model.module.set_attn_implementation("eager")  # pyright: ignore[reportCallIssue]
    return model
