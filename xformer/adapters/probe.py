"""One run of a model: the tape it records to (`ActiveRun`), and a probe of every module call for finding the layout.

Threads may share a model. Records and edits belong to one run, so hooks look the run up in a context variable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from xformer.adapters.attention import MaskLimits, Terms
from xformer.tape import SILENT, AnyTape

if TYPE_CHECKING:
    from xformer.adapters.attention_sums import SummedRun
    from xformer.adapters.on_demand import DeferredAttention


NOTHING = torch.empty(0)


@dataclass
class ModuleCall:
    """One call of one module."""

    module: nn.Module
    path: str
    number: int
    """The number of earlier calls of this module."""
    begin: int
    parents: tuple[int, ...]
    """The indices of the enclosing calls, outermost first."""
    input: Tensor
    """The first floating-point input, else the first tensor; empty if there is none."""
    inputs: tuple[Tensor, ...]
    end: int = -1
    output: Tensor = NOTHING
    """The first output tensor; empty if there is none."""
    outputs: tuple[Tensor, ...] = ()

    @property
    def is_leaf(self) -> bool:
        return next(self.module.children(), None) is None

    @property
    def has_weights(self) -> bool:
        """Whether the module has parameters of its own."""
        return next(self.module.parameters(recurse=False), None) is not None

    @property
    def is_matrix(self) -> bool:
        """Whether the module multiplies by one matrix."""
        weight = getattr(self.module, "weight", None)
        is_table = isinstance(self.module, nn.Embedding)
        return self.is_leaf and isinstance(weight, Tensor) and weight.dim() == 2 and not is_table

    @property
    def is_norm(self) -> bool:
        """Whether the module is a norm, by its name or because all its parameters are vectors."""
        weights = list(self.module.parameters(recurse=False))
        by_weights = bool(weights) and all(weight.dim() == 1 for weight in weights)
        return self.is_leaf and ("norm" in type(self.module).__name__.lower() or by_weights)


@dataclass
class AttentionCall:
    """One attention of the run."""

    begin: int
    parents: tuple[int, ...]
    n_query: int
    n_key: int
    sees_later: bool = False
    """Whether the mask lets any query attend to a later key."""
    end: int = -1
    z: Tensor = NOTHING
    """The output of its heads [batch, head, query, d_value]."""


def is_causal(attentions: Sequence[AttentionCall]) -> bool:
    """Whether no mask of the self-attentions allows a later key."""
    square = [one for one in attentions if one.n_query == one.n_key > 1]
    own = square or [one for one in attentions if one.n_key > one.n_query > 1]  # after the keys of a prefix
    return bool(own) and not any(one.sees_later for one in own)


Origin = Literal["source", "target"] | None
"""The stream of input tokens that positions come from; None: another input or the model itself."""
Origins = tuple[Origin, Origin]
"""Where the queries and the keys of an attention come from."""


@dataclass(frozen=True)
class Streams:
    """The streams of positions that a model reads."""

    n_target: int | None = None
    """The number of positions of the decoder in an encoder-decoder; None for one stack."""
    decoder: str | None = None
    """The path of the decoder module, if known."""
    has_memory: bool = False
    """Whether a model of one stack also attends to vectors that the caller gives."""
    are_several: bool = False
    """Whether a model of one stack reads several inputs with positions."""
    moved: Mapping[Origin, int] = field(default_factory=dict)
    """How much longer each stream of tokens is in the second example."""


def origins_of(
    sizes: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]], moved: Mapping[Origin, int]
) -> list[Origins] | None:
    """The stream that each attention's queries and keys come from; None if two runs do not call the same attentions.

    Args:
        sizes: The number of queries and of keys of each attention.
        others: The same in a run in which the lengths of the streams differ.
        moved: The difference of each stream's length; no two streams have the same.
    """
    by_difference: dict[int, Origin] = {difference: stream for stream, difference in moved.items()}
    if len(sizes) != len(others):
        return None
    return [
        (by_difference.get(other[0] - one[0]), by_difference.get(other[1] - one[1]))
        for one, other in zip(sizes, others, strict=True)
    ]


@dataclass
class ProbeRun:
    """The calls and attentions of a run of a module, in order."""

    module: nn.Module
    calls: list[ModuleCall] = field(default_factory=list)
    attentions: list[AttentionCall] = field(default_factory=list)
    output: Any = None
    _time: int = 0
    _open: list[int] = field(default_factory=list)
    _times: dict[int, int] = field(default_factory=dict)

    def attention_begins(self, n_query: int, n_key: int) -> AttentionCall:
        self.attentions.append(AttentionCall(self._tick(), tuple(self._open), n_query, n_key))
        return self.attentions[-1]

    def attention_goes_on(self, attention: AttentionCall) -> None:
        """Another head of the same layer begins, perhaps in another module."""
        both = zip(attention.parents, self._open, strict=False)
        attention.parents = tuple(one for one, other in takewhile(lambda pair: pair[0] == pair[1], both))

    def attention_ends(self, attention: AttentionCall, z: Tensor) -> None:
        attention.end, attention.z = self._tick(), z

    def enters(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = tuple(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        number = self._times.get(id(module), 0)
        self._times[id(module)] = number + 1
        first = next((value for value in inputs if value.is_floating_point()), inputs[0] if inputs else NOTHING)
        first = first.clone()  # a later module may modify it in place
        self._open.append(len(self.calls))
        self.calls.append(ModuleCall(module, path, number, self._tick(), tuple(self._open[:-1]), first, inputs))

    def leaves(self, output: Any) -> None:
        call = self.calls[self._open.pop()]
        several = output.values() if isinstance(output, dict) else output
        values = several if isinstance(output, dict | list | tuple) else [output]
        call.end, call.outputs = self._tick(), tuple(value for value in values if isinstance(value, Tensor))
        call.output = call.outputs[0].clone() if call.outputs else NOTHING

    def inside(self, index: int) -> list[ModuleCall]:
        """The calls within a call, in order."""
        return [call for call in self.calls if index in call.parents]

    def _tick(self) -> int:
        self._time += 1
        return self._time


@torch.no_grad()
def probe(model: nn.Module, run_model: Callable[[ActiveRun], Any], n_batch: int = 1) -> ProbeRun:
    """Run a model once and record every module call. `run_model` must call the model with the given run active."""
    seen = ProbeRun(model)
    run = ActiveRun(SILENT, n_batch=n_batch, observer=seen)

    def entering(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
            if active_run() is run:  # other threads may use the model meanwhile
                with run.aside():
                    seen.enters(path, module, args, kwargs or {})

        return hook

    def leaving(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if active_run() is run:
            with run.aside():
                seen.leaves(output)

    hooks = []
    for path, module in model.named_modules():
        if not isinstance(module, torch.jit.ScriptModule):  # it takes no hooks
            hooks.append(module.register_forward_pre_hook(entering(path), with_kwargs=True))
            hooks.append(module.register_forward_hook(leaving))
    try:
        seen.output = run_model(run)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


OnCall = Callable[[str, int, tuple[Any, ...], dict[str, Any]], None]


@dataclass
class ActiveRun:
    """One forward pass of one external model."""

    tape: AnyTape
    attention_paths: tuple[str, ...] = ()
    """The path of each attention in call order; empty during the probe."""
    n_batch: int = 1
    observer: ProbeRun | None = None
    """Receives each attention during the probe."""
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    kept: dict[str, Tensor] = field(default_factory=dict)
    """Values that one hook leaves for a later one, such as the stream at the start of a block."""
    limits: dict[tuple[int, bool], tuple[Tensor | None, MaskLimits]] = field(default_factory=dict)
    """Interpreted masks, by address and causality; most layers share one."""
    is_positions_first: bool = False
    """Whether the model computes [pos, batch, width] instead of [batch, pos, width]."""
    n_attentions: int = 0
    is_aside: bool = False
    """Whether a hook of this run is being served."""
    on_call: OnCall | None = None
    """Called with module name, call number and arguments of each call of an attention module."""
    later: dict[str, DeferredAttention] | None = None
    """The inputs of each attention by its path; None unless patterns are recomputed on demand."""
    most: int = 0
    """The largest side of the planes to which patterns are reduced, unless they are kept."""
    sums: SummedRun | None = None
    """Receives each attention of a run with sums in place of patterns; None for other runs."""

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Mark what runs inside as ours, not the model's."""
        before, self.is_aside = self.is_aside, True
        try:
            yield
        finally:
            self.is_aside = before

    def next_attention(self) -> str | None:
        """The path of the attention that begins now; None if the layout does not contain it."""
        index, self.n_attentions = self.n_attentions, self.n_attentions + 1
        return self.attention_paths[index] if index < len(self.attention_paths) else None

    def limits_of(self, terms: Terms, n_query: int, n_key: int, device: torch.device) -> MaskLimits:
        """Interpret a mask, once per run. The run holds the mask, so its address stays unique."""
        mask = terms.added if terms.allowed is None else terms.allowed
        at = (0 if mask is None else mask.data_ptr(), terms.is_causal)
        known = self.limits.get(at)
        if known is None or known[1].own.shape != (n_query, n_key) or (mask is not None and known[0] is None):
            known = (mask, MaskLimits.of(terms, n_query, n_key, device))
            self.limits[at] = known
        return known[1]

    def call_number(self, module: str, side: str) -> int:
        """The number of earlier calls of a module in this run; shared layers are called once per depth."""
        self.calls[module, side] += 1
        return self.calls[module, side] - 1


_RUN: ContextVar[ActiveRun | None] = ContextVar("xformer_run", default=None)


def active_run() -> ActiveRun | None:
    """The run of this thread, or None."""
    return _RUN.get()


@contextmanager
def running(run: ActiveRun | None) -> Iterator[ActiveRun | None]:
    """Make `run` the active run of this thread; None suspends the enclosing run."""
    token = _RUN.set(run)
    try:
        yield run
    finally:
        _RUN.reset(token)
