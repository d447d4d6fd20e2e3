"""The sub-layers of a block: their norms, their residuals, and what a feed-forward network computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from xformer.adapters.module_map import Layers
from xformer.doctor.formulas.flow import CASTS, SUMS, Flow, called_with, is_stream, same_size
from xformer.doctor.formulas.formula import CLOSE, Formula, part_of
from xformer.doctor.formulas.norms import OTHER, Norm, norms_of
from xformer.program.attention import FoundAttention
from xformer.program.backwards import KERNELS
from xformer.program.record import Operation, SourceLine, Value

_ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda h: F.gelu(h, approximate="tanh"),
    "silu": F.silu,
    "quick_gelu": lambda h: h * (1.702 * h).sigmoid(),
    "relu²": lambda h: F.relu(h).square(),
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mish": F.mish,
    "softplus": F.softplus,
}
_MIXES = {"softmax", "embedding", "cumsum", "gather", "index_select", "scatter", "index_add", "topk", "sort", "roll"}
"""Operations that are no part of a feed-forward network, which computes each position alone."""


@dataclass(frozen=True, eq=False)
class Sublayer:
    """An attention or a feed-forward network.

    Attributes:
        name: "attention" or "feed_forward".
        entered: The input of its first projections.
        left: The output of its last projection.
        first: Its first projections.
        last: Its last projection.
    """

    name: str
    entered: Value
    left: Value
    first: tuple[Operation, ...]
    last: Operation

    @property
    def running(self) -> tuple[tuple[str, int], ...]:
        """The modules that run its last projection."""
        return self.last.running


@dataclass(frozen=True, eq=False)
class _Sum:
    """The sum of a sub-layer's output and a stream."""

    operation: Operation
    n_norms: int
    """The number of norms between the stream and the sub-layer's input."""
    norm: Norm | None
    """The norm of the output before the sum."""
    is_last: bool
    """Whether a norm is all that reads the sum."""
    is_other: bool = False
    """Whether the stream is one from before the sub-layer's input."""


class BlockReader:
    """Reads the formulas of the sub-layers of one program."""

    def __init__(self, flow: Flow, attentions: Sequence[Sequence[FoundAttention]], layers: Layers) -> None:
        self._flow, self._layers = flow, layers
        self.norms = norms_of(flow)
        self._read = flow.before(flow.program.outputs)
        self._norm_of = {flow.root(norm.result): norm for norm in self.norms}
        self._norms_from: dict[Value, list[Norm]] = {}
        for norm in self.norms:
            self._norms_from.setdefault(flow.root(norm.x), []).append(norm)
        found = [one for heads in attentions if (one := self._attention(heads)) is not None]
        found += self._feed_forwards()
        self.sublayers = sorted(found, key=lambda one: one.last.index)
        self._sums = {one: self._sum(one) for one in self.sublayers}

    def parts(self) -> Iterator[Formula]:
        """The parts of all sub-layers, in forward order."""
        layer, told = None, set[Norm]()
        for one in self.sublayers:
            own = self._layers.of(one.running)
            layer = own if own is not None else layer
            for part in self._parts(one, told):
                yield replace(part, layer=layer)
        for norm in self.norms:
            is_of_stream = any(same_size(self._flow.root(norm.x), one.entered) for one in self.sublayers)
            if norm.cause and norm not in told and is_of_stream:
                yield replace(self._norm(norm, ""), layer=self._layers.of(norm.operation.running))

    def _parts(self, one: Sublayer, told: set[Norm]) -> Iterator[Formula]:
        at, name = self._sums[one], one.name
        if name == "feed_forward":
            yield from filter(None, [self._network(one, at)])
        if one.left not in self._read:
            by = one.last if at is None else at.operation
            yield part_of("residual", f"x, without {name}(x)", "output_unused", by, f"x + {name}(x)")
            return
        if at is None:
            if self._is_in_layer(one) and self._is_cut(one):
                part = part_of("residual", f"x = {name}(x)", "residual_missing", one.last, f"x + {name}(x)")
                alike = [it for it in self.sublayers if it.name == name and it.last.line == one.last.line]
                # Nothing shows where the last sub-layer ends.
                line = self._call_of(alike[0] if one is self.sublayers[-1] else one)
                yield part if line is None else replace(part, line=str(line), text=line.text)
            return
        if at.is_other:
            usual = f"x + {name}(x)"
            yield part_of("residual", f"an earlier x + {name}(x)", "residual_other", at.operation, usual)
            return
        inner, after = self._inner(one), self._norms_from.get(at.operation.result, [])
        where = "before" if at.n_norms else self._arrangement(one)
        x = "norm(x)" if where == "before" else "x"
        function = f"{name}({x})" if at.norm is None else f"norm({name}({x}))"
        usual, cause = f"x + {function}", ""
        if where == "before":
            yield from self._placed(inner, f"before {_THE[name]}", told)
            formula = usual if at.n_norms else f"norm(x) + {function}"
            cause = "" if at.n_norms else "residual_from_norm"
        elif where == "after" and at.norm is None:
            yield from self._placed(after[0], f"after {_THE[name]}", told)
            formula = usual = f"norm(x + {function})"
        elif at.norm is not None or (inner is None and not at.is_last):
            formula = usual
        else:
            return
        yield from self._placed(at.norm, f"on the output of {_THE[name]}", told)
        yield part_of("residual", formula, cause, at.operation, usual)

    # Sub-layers

    def _attention(self, heads: Sequence[FoundAttention]) -> Sublayer | None:
        found, flow = heads[0], self._flow
        kernel = found.kernel
        if kernel is not None and kernel.name == "multi_head_attention_forward":
            return Sublayer("attention", kernel.inputs[0], kernel.result, (kernel,), kernel)
        if kernel is not None:
            queries, keys = kernel.inputs[:2]
        elif {"q", "k"} <= {*found.operands}:
            queries, keys = found.operands["q"].value, found.operands["k"].value
        else:
            return None
        last, first, inputs = self._next_projection(found.z), self.projections_of(queries), self.inputs_of(queries)
        if len(inputs) != 1 or last is None:
            return None
        [entered] = inputs
        if not same_size(last.result, entered):  # queries of a low rank have two projections
            norm = self._norm_of.get(entered)
            before = flow.root(entered if norm is None else norm.x).operation
            whole = None if before is None else flow.projected(before)
            if whole is None or flow.root(whole) not in self.inputs_of(keys):
                return None
            entered = flow.root(whole)
        return (
            Sublayer("attention", entered, last.result, tuple(first), last) if same_size(last.result, entered) else None
        )

    def inputs_of(self, value: Value) -> set[Value]:
        """What queries, keys or values are projected from."""
        given = map(self._flow.projected, self.projections_of(value))
        return {self._flow.root(one) for one in given if one is not None}

    def projections_of(self, value: Value) -> list[Operation]:
        """The last projections from which queries or keys were computed, whatever norms and rotations are between."""
        left, seen, found = [value], set[Value](), list[Operation]()
        while left and len(seen) < 200:
            one = left.pop()
            if one in seen or one.operation is None or not is_stream(one):
                continue
            seen.add(one)
            given = self._flow.projected(one.operation)
            if given is not None and self._has_features(given):
                found.append(one.operation)
            elif one.operation not in self._flow.axes.products:
                left += one.operation.inputs
        return found

    def _has_features(self, value: Value) -> bool:
        """Whether the last axis comes from weights, unlike that of positions."""
        axis = self._flow.axes.of(value)[-1]
        return bool(axis) and all(atom.origin == "weight" for atom in axis)

    def _next_projection(self, value: Value) -> Operation | None:
        """The first projection after a value, before it is added to anything."""
        left, n = [value], 0
        while left and n < 30:
            one, n = left.pop(0), n + 1
            for operation in self._flow.consumers[one]:
                if self._flow.projected(operation) is not None:
                    return operation
                if not self._flow.summands(operation) and operation not in self._flow.axes.products:
                    left += operation.results
        return None

    def _feed_forwards(self) -> Iterator[Sublayer]:
        flow = self._flow
        for last in flow.program.operations:
            given = flow.projected(last)
            if given is None:
                continue
            first = self._positionwise(given)
            inputs = {flow.root(x) for one in first if (x := flow.projected(one)) is not None}
            if len(inputs) != 1 or not 1 <= len(first) <= 2:
                continue
            x = inputs.pop()
            widths = [one.result.shape[-1] for one in first]
            if x.shape[-1] == last.result.shape[-1] <= min(widths) and same_size(x, last.result):
                yield Sublayer("feed_forward", x, last.result, tuple(sorted(first, key=lambda one: one.index)), last)

    def _positionwise(self, value: Value) -> list[Operation]:
        """The projections from which a value was computed, by functions of each number; none if there was more."""
        left, seen, found = [value], set[Value](), list[Operation]()
        while left:
            one = left.pop()
            if one in seen or not is_stream(one):
                continue
            seen.add(one)
            operation = one.operation
            if operation is None or len(seen) > 40 or operation.name in _MIXES or operation.name in KERNELS:
                return []
            if self._flow.projected(operation) is not None:
                found.append(operation)
            elif operation in self._flow.axes.products or self._flow.root(one) in self._norm_of:
                return []
            else:
                left += operation.inputs
        return list(dict.fromkeys(found))

    # Residuals

    def _sum(self, one: Sublayer) -> _Sum | None:
        """Where the output of a sub-layer is added to the stream that it reads; None if that is not found."""
        streams, value = dict[Value, int](), self._flow.root(one.entered)
        while True:  # the input, and what it was before norms
            streams[value] = len(streams)
            norm = self._norm_of.get(value)
            if norm is None or len(streams) > 3:
                break
            value = self._flow.root(norm.x)
        own, entered = self._norm_of.get(self._flow.root(one.entered)), self._flow.root(one.entered).operation
        summands = () if entered is None else self._flow.summands(entered)
        roots = {self._flow.root(one) for one in summands}
        inner = {self._flow.root(norm.x) for root in roots if (norm := self._norm_of.get(root)) is not None}
        is_known = (own is not None or entered is None or bool(summands)) and roots.isdisjoint(inner)  # no norm(x) + x
        left: list[tuple[Value, Norm | None]] = [(one.left, None)]
        seen, earlier = set[Value](), list[_Sum]()
        before = self._flow.before([one.entered])
        while left and len(seen) < 60:
            value, normed = left.pop(0)
            if value in seen:
                continue
            seen.add(value)
            left += [(norm.result, norm) for norm in self._norms_from.get(value, [])]
            for operation in self._flow.consumers[value]:
                summands = self._flow.summands(operation)
                if not summands:
                    if self._flow.rescaled(operation) is value:
                        left.append((operation.result, normed))
                    continue
                other = summands[1] if summands[0] is value else summands[0]
                terms = self._terms(other)
                if own is not None and any(self._is_alike(self._norm_of.get(term), own) for term in terms):
                    terms.add(self._flow.root(one.entered))  # the same norm, called twice
                stream = max(
                    (stream for stream in streams if stream in terms), key=lambda one: streams[one], default=None
                )
                if stream is not None and value is not other:
                    return _Sum(operation, streams[stream], normed, self._is_only_normed(operation.result))
                if one.left not in self._flow.before([other]):
                    left.append((operation.result, normed))
                    if is_known and self._flow.root(other) in before and same_size(other, one.entered):
                        earlier.append(_Sum(operation, 0, normed, is_last=False, is_other=True))
        return earlier[0] if len(earlier) == 1 else None

    def _is_alike(self, norm: Norm | None, other: Norm) -> bool:
        """Whether two norms normalise the same numbers."""
        return norm is not None and self._flow.root(norm.x) is self._flow.root(other.x) and norm.kind == other.kind

    def _terms(self, value: Value) -> set[Value]:
        """What a value is the sum of, each with a factor."""
        left, found = [value], set[Value]()
        while left and len(found) < 40:
            one = left.pop()
            if one in found:
                continue
            found.add(one)
            operation = one.operation
            if operation is None:
                continue
            inner = self._flow.rescaled(operation)
            left += self._flow.summands(operation) or ([] if inner is None else [inner])
        return found

    def _is_only_normed(self, value: Value) -> bool:
        """Whether a norm is all that reads a value."""
        norms = self._norms_from.get(self._flow.root(value), [])
        if len(norms) != 1:
            return False
        inside = self._flow.before([norms[0].result], without=value)
        left = [value]
        while left:
            one = left.pop()
            for operation in self._flow.consumers[one]:
                if operation.name in ("size", "dim"):
                    continue
                if operation.result is norms[0].result or operation.result in inside:
                    continue
                if self._flow.root(operation.result) is not self._flow.root(value):
                    return False
                left.append(operation.result)
        return True

    def _arrangement(self, one: Sublayer) -> str:
        """Where a sub-layer that adds what it reads has its norm: "before" it or "after" the sum; "" for neither or not known.

        The same functions may be read both ways. A module that is a whole layer decides, or a sum that no norm reads.
        """
        block, inner = self._block(one.running), self._inner(one)
        same = [its for other in self.sublayers if other.name == one.name and (its := self._sums[other])]
        is_post = all(its.is_last for its in same if not its.n_norms)
        if inner is None:  # the norm after the last layer follows one sum only
            return "after" if is_post and len(self.sublayers) > 2 else ""
        lead = self._lead(one, block)
        if lead is not one:
            led = None if lead is None else self._sums[lead]
            if lead is None or led is None:
                return ""
            if led.n_norms:
                return "before"
            where = self._arrangement(lead)
            return where if where == "before" or is_post else ""
        if block is not None:
            return "before" if self._block(inner.operation.running) == block else "after" if is_post else ""
        same = [
            its for other in self.sublayers if (its := self._sums[other]) and not its.n_norms and self._inner(other)
        ]
        if all(its.is_last for its in same):
            return "after"
        attentions = [other for other in self.sublayers if other.name == "attention"]
        return "before" if all(map(self._inner, attentions)) else ""

    def _call_of(self, one: Sublayer) -> SourceLine | None:
        """The line that should add the output of a sub-layer: that of its call, or of the norm after it."""
        lead = self._lead(one, block := self._block(one.running))
        own = None if lead is None else self._inner(lead)
        is_pre = own is not None and (block is None or self._block(own.operation.running) == block)
        after = [norm.operation for norm in self._norms_from.get(self._flow.root(one.left), [])]
        is_post = bool(after) and not is_pre
        after += [other.first[0] for other in self.sublayers if other.first[0].index > one.last.index]
        after += self._flow.program.operations[-1:]
        last = self._last_copy(one)
        if last is not None and not is_post:
            return called_with(last, after[0])
        pair = (after[0], one.last) if is_post else (one.last, after[0])
        return called_with(*pair)

    def _last_copy(self, one: Sublayer) -> Operation | None:
        """The last operation that copies the output of a sub-layer, or adds it to itself; None if there is none."""
        value, last = one.left, None
        functions = {(line.file, line.function) for line in one.last.callers}
        while len(readers := self._flow.consumers[value]) in (1, 2):
            by = readers[0]
            roots = {self._flow.root(given) for given in by.inputs}
            is_inside = any((line.file, line.function) in functions for line in by.callers[:1])
            is_copy = by.name in CASTS or (by.name in SUMS and roots == {self._flow.root(value)})
            if not is_copy or not is_inside:
                break
            value, last = by.result, by
        return last

    def _lead(self, one: Sublayer, block: tuple[str, int] | None) -> Sublayer | None:
        """The first attention of the layer; without a module for each layer, the attention before a feed-forward network."""
        attentions = [
            other for other in self.sublayers if other.name == "attention" and other.last.index <= one.last.index
        ]
        if block is not None:
            attentions = [other for other in attentions if self._block(other.running) == block]
            return attentions[0] if attentions else None
        return attentions[-1] if attentions else None

    def _inner(self, one: Sublayer) -> Norm | None:
        """The norm whose result a sub-layer reads."""
        return self._norm_of.get(self._flow.root(one.entered))

    def _block(self, running: tuple[tuple[str, int], ...]) -> tuple[str, int] | None:
        """The layer that runs, if it is a module."""
        return next((one for one in running if self._layers.is_layer(one[0])), None)

    def _is_in_layer(self, one: Sublayer) -> bool:
        """Whether a sub-layer is one of a layer with attention, unlike a network of the embeddings or before the output."""
        block = self._block(one.running)
        if one.name == "attention":
            return True
        if any(self._block(other.running) for other in self.sublayers):
            return block is not None and self._lead(one, block) is not None
        at = [other.last.index for other in self.sublayers if other.name == "attention"]
        alike = [other for other in self.sublayers if other.name == one.name and other.last.line == one.last.line]
        return any(min(at) < other.last.index < max(at) for other in alike) if at else False

    def _is_cut(self, one: Sublayer) -> bool:
        """Whether nothing of what a sub-layer reads reaches the output but through it.

        An expert reads a selection of the stream, so what may go around it has the size of the stream.
        """
        block = self._block(one.running)
        lead = self._lead(one, block)
        stream = one.entered if lead is None else lead.entered
        if not same_size(one.entered, one.left):
            return False
        beside = [
            other.left
            for other in self.sublayers
            if other is one or (block and self._block(other.running) == block and self._sums[other] is None)
        ]
        around = self._flow.before(self._flow.program.outputs, without=beside)
        before = self._flow.before([one.entered])
        return not any(is_stream(value) and same_size(value, stream) for value in around & before)

    # Norms and feed-forward networks

    def _placed(self, norm: Norm | None, place: str, told: set[Norm]) -> Iterator[Formula]:
        if norm is not None and norm not in told:
            told.add(norm)
            yield self._norm(norm, place)

    def _norm(self, norm: Norm, place: str) -> Formula:
        over = " and ".join(dict.fromkeys(norm.over))
        formula = f"{norm.kind} over the {over}{', ' if place else ''}{place}"
        formula += f", with ε = {norm.epsilon:g}" if norm.epsilon is not None else ""
        kind = "a layer or RMS norm" if norm.kind == OTHER else norm.kind
        return part_of("norm", formula, norm.cause, norm.operation, f"{kind} over the features")

    def _network(self, one: Sublayer, at: _Sum | None) -> Formula | None:
        """What a feed-forward network computes, if the recorded numbers agree."""
        given = self._flow.projected(one.last)
        assert given is not None
        hidden = given.tensor
        inner = [self._flow.with_bias(first).tensor for first in one.first]
        if hidden is None or any(h is None for h in inner):
            return None
        usual = "W₂·relu(W₁·x)"
        if (
            len(inner) == 1
            and at is not None
            and self._flow.root(given) is self._flow.root(self._flow.with_bias(one.first[0]))
        ):
            return part_of("feed_forward", "W₂·W₁·x", "activation_missing", one.first[0], usual)
        whole = inner[0] if len(inner) == 1 else None
        if whole is not None and whole.shape == hidden.shape:
            name = _activation(whole, hidden)
            return part_of("feed_forward", f"W₂·{name}(W₁·x)", "", one.last, usual) if name else None
        pair = inner if len(inner) == 2 else _halves(whole, hidden)
        for gate, other in (pair, pair[::-1]) if len(pair) == 2 else ():
            if gate is not None and other is not None and gate.shape == other.shape == hidden.shape:
                name = _activation(gate, hidden, other)
                if name:
                    return part_of("feed_forward", f"W₂·({name}(W₁·x) ⊙ W₃·x)", "", one.last, usual)
                if at is not None and float((gate * other - hidden).abs().max()) <= CLOSE * float(hidden.abs().max()):
                    by = given.operation or one.last
                    return part_of("feed_forward", "W₂·(W₁·x ⊙ W₃·x)", "activation_missing", by, usual)
        return None


_THE = {"attention": "the attention", "feed_forward": "the feed-forward network"}


def _halves(whole: Tensor | None, hidden: Tensor) -> list[Tensor]:
    if whole is None or whole.shape[-1] != 2 * hidden.shape[-1]:
        return []
    return list(whole.chunk(2, dim=-1))


def _activation(h: Float[Tensor, "*shape"], a: Float[Tensor, "*shape"], times: Tensor | None = None) -> str:
    """The name of the function with a = function(h), or function(h) · times; "" if it is none that is known."""
    h, a, times = h.double(), a.double(), None if times is None else times.double()
    sizes = {
        name: float(((function(h) if times is None else function(h) * times) - a).abs().max())
        for name, function in _ACTIVATIONS.items()
    }
    best = min(sizes, key=lambda name: sizes[name])
    return best if sizes[best] <= CLOSE * float(a.abs().max()) and bool(a.any()) else ""
