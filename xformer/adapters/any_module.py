"""The adapter of any `torch.nn.Module`: `nn.TransformerEncoder`, `nn.MultiheadAttention`, or a hand-written model.

    reading = xformer.read(module, x)                 a tensor, a tuple of tensors, or named arguments
    reading["encoder.0.attn.pattern"]

Integer inputs are shown as token ids; for all others, positions are numbered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer.adapters.adapter import ADDED, Input, label_added
from xformer.adapters.capture_backends import ChangedLayoutError, is_pattern
from xformer.adapters.external import ExternalAdapter, shape_of
from xformer.adapters.on_demand import lengths, recorded_bytes
from xformer.adapters.opening import Inputs, OpenedModel, Verification, open_module, planned, resized, takes_a_function
from xformer.adapters.own_models import numbered
from xformer.adapters.placement import Placement, placement
from xformer.adapters.probe import Origin, Streams
from xformer.decoding import Step
from xformer.edits import Edit
from xformer.errors import InputError, UnavailableError
from xformer.layer_path import Stack
from xformer.model_shape import ModelShape
from xformer.program.inputs import Call, ModuleInputs, accepted, call_module, named_inputs, runs, text_without_batch
from xformer.program.module_state import (
    cache_of,
    cached,
    copied,
    detect_randomness,
    draws_random_numbers,
    on_device,
    preserve_state,
)
from xformer.program.plan import NO_PLAN, AttentionPlan
from xformer.tasks.task import Example
from xformer.trace import Trace


class GivenInput(Input):
    """The inputs that a module was opened with, instead of typed text."""

    kind: ClassVar[str] = "given"
    name = "given"
    instruction = "The model reads the inputs it was opened with."
    format_hint = "No typed input."
    default = "as given"
    no_sample_reason = "This model takes no typed input."

    def __init__(self, source: tuple[int, ...]) -> None:
        self.source = source

    def read(self, text: str) -> tuple[int, ...]:
        return self.source

    def text(self, source: Sequence[int]) -> str:
        return self.default


@dataclass(frozen=True, eq=False)
class AnyModule(ExternalAdapter):
    """A module with its located parts and the inputs it is called with. Read-only."""

    inputs: Inputs = field(default_factory=dict)
    given: Inputs = field(default_factory=dict)
    """The same inputs as the module itself takes them, where its batch is not first."""
    placements: Mapping[Stack, Placement] = field(default_factory=dict)
    """The entries of the inputs at the positions of each stack."""

    @classmethod
    def open(cls, module: nn.Module, inputs: ModuleInputs, name: str = "module") -> AnyModule:
        """Locate the attention of a module, once per signature of its inputs. Raises `InputError` if there is none."""
        named = copied(named_inputs(inputs))
        called = tuple((name, value.dim() if isinstance(value, Tensor) else None) for name, value in named.items())

        random_state = torch.get_rng_state()
        try:
            order, parts, verification, shape, placements = cached(module, called, lambda: _open(module, named))
        finally:
            if draws_random_numbers(module):
                torch.set_rng_state(random_state)
        text = text_without_batch(named)
        read = order.batch_first(named) if text is None else named | {text: named[text][None]}
        return cls(OpenedModel(module, **parts), shape, verification, name, read, named, placements)

    def reopened(self) -> AnyModule:
        """The module opened anew with these inputs, as it now computes other operations than when it was opened.

        Raises `InputError` if a recorded run of these inputs differs from the module itself.
        """
        cache_of(self.opened.module).found = {}
        again = type(self).open(self.opened.module, self.given, self.name)
        try:
            again.opened.verify(again.inputs, again.inputs, _n_batch(again.inputs))
        except ChangedLayoutError as error:
            raise _unsteady(self.opened.module, error) from error
        return again

    @property
    def is_positions_first(self) -> bool:
        """Whether the module reads its streams with the batch second, as they were given."""
        streams = [(self.given[name], value) for name, value in _streams(self.inputs).items() if name in self.given]
        return any(one.dim() == value.dim() and not torch.equal(one, value) for one, value in streams)

    @property
    def token_labels(self) -> tuple[str, ...]:
        """Token ids."""
        return numbered(self.shape.vocab_size)

    def to_example(self, inputs: Any = None) -> Example:
        """The inputs that the module is called with, as an example without reference outputs."""
        stream = self._positions(self.shape.attention[0].stack, 0)
        target = self._positions("decoder", 1) if self.shape.is_encoder_decoder else None
        return Example.unlabelled(stream, target, arguments=self.inputs)

    def inputs_of(self, example: Example) -> Inputs:
        """The arguments of the module's forward pass."""
        return self.inputs if example.arguments is None else dict(example.arguments)

    def token_names(self, tokens: Int[Tensor, " pos"]) -> tuple[str, ...]:
        """The ids of the tokens, or the numbers of the positions."""
        return label_added(tokens, lambda ids: [str(token) for token in ids.tolist()])

    def record(self, example: Example, *, edits: Sequence[Edit] = (), keep: Sequence[str] = ("*",)) -> Trace:
        """Record a run; see `xformer.record`."""
        inputs = self.inputs_of(example)
        activations = self.opened.run(inputs, n_batch=_n_batch(inputs), edits=edits, keep=keep)
        is_own = example.input_ids[0] != ADDED
        added = (0, 0) if bool(is_own.all()) else self.shape.added
        return Trace(None, example.input_ids[:, is_own], example.target, tuple(edits), activations, added=added)

    def unembed(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """The module's output for a final stream state. Raises `InputError` if it is not a function of that alone."""
        if self.opened.head is None:
            raise InputError(f"The output of {self.name} is not a function of its final stream state alone.")
        return self.opened.head(stream)

    @property
    def input(self) -> GivenInput:
        """A placeholder for typed input, as the module reads the inputs it is called with."""
        return GivenInput(self.to_example().source)

    def steps(self, example: Example, n: int | None = None, **how: Any) -> Iterator[Step]:
        """Raises `UnavailableError`: the module does not generate."""
        raise UnavailableError(f"{self.name} is a module without a vocabulary, so it does not generate text.")

    def recording_bytes(self, example: Example) -> int:
        """Estimate the memory of a recorded run in bytes, from shapes alone."""
        return recorded_bytes(self.shape, *lengths(example))

    def _positions(self, stack: Stack, index: int) -> Int[Tensor, "1 pos"]:
        """The tokens that a stack reads, or position numbers."""
        streams = _tensors(self.inputs) if self.shape.is_encoder_decoder else _ids_of(self.inputs)
        placed, n_batch = self.placements.get(stack, Placement()), _n_batch(self.inputs)
        is_flattened = n_batch > 1 and bool(self.opened.plan.layers) and self.opened.plan.batch is None
        has_ids = index < len(streams) and not streams[index].is_floating_point()
        if has_ids and placed == Placement() and not is_flattened:
            return streams[index].cpu()
        own = [site for site in self.shape.attention if site.stack == stack]
        site = next((site for site in own if not site.is_cross), own[0])
        is_of_keys = f"{site.path}.query" in self.shape.numbered and not site.is_cross
        n = self._lengths[f"{site.path}.pattern"][1 if is_of_keys else 0]
        if has_ids:
            found = placed.of(streams[index].cpu())
            if found.shape[1] == n and not (placed.is_numbered or is_flattened):
                return found
            placed = Placement()  # positions are numbered
        entries = torch.arange(n - sum(placed.added) + sum(placed.dropped))
        return placed.of(entries[None]).expand(n_batch, -1)

    @cached_property
    def _lengths(self) -> dict[str, tuple[int, int]]:
        """The numbers of queries and keys of each attention with these inputs, measured in a run."""
        run = self.opened.run(self.inputs, n_batch=_n_batch(self.inputs), keep=("*.pattern",))
        return {name: (value.shape[-2], value.shape[-1]) for name, value in run.items()}


@dataclass(frozen=True)
class StreamOrder:
    """The place of the batch in a module's own streams; this package computes with the batch first."""

    axis: int | None = 0
    """The axis of the batch; None for a module that takes one input without a batch."""
    names: frozenset[str] = frozenset()
    """The arguments that have it."""

    @classmethod
    def of(cls, plan: AttentionPlan, inputs: Inputs) -> StreamOrder:
        """The order that a module's attention shows."""
        if (text := text_without_batch(inputs)) is not None:
            return cls(None if plan.batch is None else 0, frozenset([text]))
        streams = {name: value for name, value in _streams(inputs).items() if "mask" not in name}
        main = next(iter(streams.values()), None)
        if main is None or not plan.layers or plan.refused:
            return cls()
        alike = {name: value for name, value in streams.items() if value.dim() == main.dim()}
        if plan.batch is None and main.dim() == 2 and main.is_floating_point():
            return cls(None, frozenset(alike))
        if plan.batch is None or plan.batch[1] != 1:
            return cls()
        return cls(1, frozenset(name for name, value in alike.items() if value.shape[1] == main.shape[1]))

    def batch_first(self, inputs: Inputs) -> Inputs:
        """The module's own inputs with the batch first."""
        return {name: self.turned(value) if name in self.names else value for name, value in inputs.items()}

    def turned(self, value: Tensor) -> Tensor:
        """A stream or an output of the module with the batch first."""
        if self.axis == 1 and value.dim() > 1:
            return value.transpose(0, 1)
        return value[None] if self.axis is None else value

    def call(self, module: nn.Module, inputs: Inputs) -> Any:
        """Call the module with inputs that have the batch first."""
        back = (lambda value: value[0]) if self.axis is None else self.turned
        return call_module(
            module, {name: back(value) if name in self.names else value for name, value in inputs.items()}
        )


def _streams(inputs: Inputs) -> dict[str, Tensor]:
    """The tensors that hold streams, by argument name. Boolean tensors are masks and are left out."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    return {name: value for name, value in tensors.items() if value.dim() >= 2 and value.dtype != torch.bool}


def _tensors(inputs: Inputs) -> list[Tensor]:
    return list(_streams(inputs).values())


def _ids_of(inputs: Inputs) -> tuple[Tensor, ...]:
    return tuple(value for value in _tensors(inputs) if not value.is_floating_point())


def _n_batch(inputs: Inputs) -> int:
    return _tensors(inputs)[0].shape[0] if _tensors(inputs) else 1


def _probed(module: nn.Module, call: Call, inputs: Inputs) -> tuple[Inputs, int | None]:
    """Inputs that distinguish the module's parts, and the length of the second of two streams in them.

    Streams of one or two positions do not reveal a mask, and two streams of equal length cannot be distinguished. Such streams
    are lengthened if the module accepts that, so that the names of its parts do not depend on the inputs.
    """
    if _tensors(inputs)[0].shape[1] < 3:
        longer = resized(inputs, dict.fromkeys(_streams(inputs), 3))
        inputs = longer if runs(module, call, longer) else inputs
    streams = _tensors(inputs)
    if len(streams) < 2:
        return inputs, None
    if streams[0].shape[1] != streams[1].shape[1]:
        return inputs, streams[1].shape[1]
    for n in (1, -1):  # a table of positions may have no more rows
        for name in list(_streams(inputs))[:2]:
            other = inputs | resized({name: inputs[name]}, {name: n})
            if runs(module, call, other):
                return other, _tensors(other)[1].shape[1]
    return inputs, None


def _examples(module: nn.Module, call: Call, inputs: Inputs, n_target: int | None) -> tuple[list[Inputs], Streams]:
    """The inputs, and inputs whose streams have other lengths, if the module accepts them."""
    names = list(_streams(inputs))
    changes = dict.fromkeys(names, 1) if n_target is None else dict(zip(names[:2], (1, 2), strict=True))
    for sign in (-1, 1):
        longer = {name: sign * n for name, n in changes.items()}
        other = resized(inputs, longer) if all(inputs[name].shape[1] + n > 0 for name, n in longer.items()) else inputs
        if other is not inputs and runs(module, call, other):
            moved: dict[Origin, int] = {"source": sign} if n_target is None else {"source": sign, "target": 2 * sign}
            return [inputs, other], Streams(n_target, moved=moved)
    return [inputs], Streams(n_target, are_several=len(names) > 1)


def _ordered(module: nn.Module, inputs: Inputs) -> tuple[Inputs, AttentionPlan, StreamOrder]:
    """The inputs in the shape that the module takes, its attention, and the place of the batch."""

    def planning(given: Inputs) -> tuple[Inputs, AttentionPlan, StreamOrder]:
        plan = NO_PLAN if takes_a_function(module) else planned(module, call_module, given)
        return given, plan, StreamOrder.of(plan, given)

    text = text_without_batch(inputs)
    for given in accepted(module, inputs):
        found = planning(given)
        order = found[2]
        if text is None or order.axis is None or given[text].shape[order.axis] == 1:
            return found
    return planning(inputs)


def _open(
    module: nn.Module, inputs: Inputs
) -> tuple[StreamOrder, dict[str, Any], Verification, ModelShape, dict[Stack, Placement]]:
    if not _tensors(inputs) and text_without_batch(inputs) is None:
        got = ", ".join(type(value).__name__ for value in inputs.values()) or "none"
        raise InputError(
            f"A module's input is a tensor [batch, pos] or [batch, pos, features] in an argument of its own, got {got}."
        )
    inputs, plan, order = _ordered(module, inputs)
    call, inputs = order.call, order.batch_first(inputs)
    probed, n_target = _probed(module, call, inputs)
    here = on_device(probed, module)
    with preserve_state(module), torch.no_grad(), detect_randomness(module):
        path = output_path(call(module, here), here, module)

    def opening(
        inputs: Inputs, n_target: int | None, *, is_alone: bool = False
    ) -> tuple[OpenedModel, Verification, dict[str, Tensor]]:
        examples, streams = _examples(module, call, inputs, n_target)
        if is_alone:
            examples, streams = examples[:1], Streams(n_target, are_several=len(_streams(inputs)) > 1)
        shown = partial(_shown, order, path)
        return open_module(
            module, call, shown, examples, streams, _ids_of, plan=plan, is_positions_first=order.axis == 1
        )

    try:
        opened, verification, run = opening(probed, n_target)
    except ChangedLayoutError:  # the number of its layers changes with that of the positions
        try:
            opened, verification, run = opening(inputs, None, is_alone=True)
        except ChangedLayoutError as error:
            raise _unsteady(module, error) from error
        probed = inputs
    except InputError:
        if n_target is None:
            raise
        opened, verification, run = opening(inputs, None)
        probed = inputs
    tables = [opened.module.get_submodule(tap.module) for tap in opened.layout.taps if tap.name.endswith("embed")]
    sizes = [table.num_embeddings for table in tables if isinstance(table, nn.Embedding)]
    is_causal = {one.stack for one in opened.layout.attention} == {"decoder"}
    n_inputs = max([*sizes[:1], *(int(ids.max()) + 1 for ids in _ids_of(inputs))], default=0)
    placements = dict(_placements(opened, probed, n_target))
    opened.layout.numbered |= {axis for one in placements.values() for axis in one.others}
    added = placements.get(opened.layout.attention[0].stack, Placement()).added
    shape = shape_of(opened, run, is_causal=is_causal, max_len=None, n_inputs=n_inputs, added=added)
    return order, opened.parts, verification, shape, placements


def _unsteady(module: nn.Module, error: ChangedLayoutError) -> InputError:
    name = type(module).__name__
    return InputError(
        f"What {name} computes changes from one call to the next, or with the number of positions, so its attention cannot be "
        f"read; try a longer input. {error.what}."
    )


def _placements(opened: OpenedModel, inputs: Inputs, n_target: int | None) -> Iterator[tuple[Stack, Placement]]:
    """The entries of the inputs at the positions of each stack."""
    streams = _streams(inputs)
    if n_target is None:  # labels are those of tokens, if there are any
        streams = {name: one for name, one in streams.items() if not one.is_floating_point()} or streams
    stacks: list[Stack] = sorted({site.stack for site in opened.layout.attention}, reverse=True)  # the encoder first
    for at, stack in enumerate(stacks):
        name, value = list(streams.items())[0 if n_target is None else at]
        sites = [one for one in opened.layout.attention if one.stack == stack and not one.is_cross]
        if sites and value.dim() == (3 if value.is_floating_point() else 2):
            yield stack, placement(opened, inputs, name, sites, _n_batch(inputs))


def _shown(order: StreamOrder, path: Sequence[Any], returned: Any) -> Tensor:
    """The shown output of a return value, with the batch first."""
    return order.turned(output_at(returned, path))


OUTPUT_NAMES = ("logits", "prediction_logits", "last_hidden_state", "prediction_outputs", "language_output")
"""The names of the shown output, in the order in which they are looked for."""


def output_path(returned: Any, inputs: Inputs, module: nn.Module) -> tuple[Any, ...]:
    """The keys that lead to the shown output in a module's return value; see `output_at`.

    A name decides first, then the input's positions, then the width of the vocabulary: a tensor [batch, pos, width] goes before
    losses, caches, attention weights and pooled vectors, and a returned value before a part of one.

    Args:
        returned: The return value: a tensor, or tensors in tuples, lists, mappings, dataclasses or objects with "logits".
        inputs: The inputs of the call.
        module: The module that was called.

    Raises:
        InputError: There is no such tensor, or nothing decides between several.
    """
    found = dict(_outputs(returned))
    for name in OUTPUT_NAMES:
        if named := [path for path in found if path and path[-1] == name]:
            return min(named, key=len)
    ending = [path for path in found if path and str(path[-1]).endswith(OUTPUT_NAMES[0])]
    if len(ending) == 1:
        return ending[0]
    left = [
        path for path, one in found.items() if one.is_floating_point() and one.dim() >= (1 if len(found) == 1 else 2)
    ]
    streams = list(_streams(inputs).values())
    starts, lengths_of = {one.shape[:2] for one in streams}, {one.shape[1] for one in streams}
    vocabularies = {one.num_embeddings for one in module.modules() if isinstance(one, nn.Embedding)}
    rules: tuple[Callable[[tuple[Any, ...]], bool], ...] = (
        lambda path: not (is_pattern(found[path]) and (found[path].dim() == 4 or found[path].shape[-1] in lengths_of)),
        lambda path: found[path].shape[:2] in starts,
        lambda path: found[path].dim() == 3,
        lambda path: len(path) == min(map(len, left)),
        lambda path: found[path].shape[-1] in vocabularies,
    )
    for rule in rules:
        left = [path for path in left if rule(path)] or left
    if len(left) == 1:
        return left[0]
    listed = ", ".join(f"{_written(path)} {list(found[path].shape)}" for path in left or found) or "none"
    if left:
        raise InputError(
            f"Several of the returned tensors can be the output: {listed}. Name one 'logits', or return it alone."
        )
    raise InputError(f"A module must return vectors or scores for its input, got {listed}.")


def _written(path: Sequence[Any]) -> str:
    return ".".join(key if isinstance(key, str) else f"[{key}]" for key in path) or "a tensor"


def output_at(returned: Any, path: Sequence[Any]) -> Tensor:
    """The tensor in a return value that `output_path` found."""
    for key in path:
        is_field = isinstance(key, str) and not isinstance(returned, Mapping)
        returned = getattr(returned, key) if is_field else returned[key]
    return returned


def _outputs(returned: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Every tensor in a return value, with the keys that lead to it. The fields of a named tuple go by their names."""
    parts: Mapping[Any, Any] | Sequence[Any] = {}
    if isinstance(returned, Tensor):
        yield path, returned
    elif isinstance(returned, Mapping):
        parts = returned
    elif isinstance(returned, list | tuple):
        names = getattr(returned, "_fields", range(len(returned)))
        parts = dict(zip(names, returned, strict=True))
    elif is_dataclass(returned) or hasattr(returned, OUTPUT_NAMES[0]):
        parts = vars(returned)
    for key, value in parts.items():
        yield from _outputs(value, (*path, key))
