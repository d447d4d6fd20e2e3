"""One watched run of a model whose inside is unknown: every call of every part, in order, with what went in and came out.

The layout is found in it by what the numbers say, not by what a family happens to call its parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from xformer.adapters.attention import Limits, Terms
from xformer.tape import SILENT, AnyTape

if TYPE_CHECKING:
    from xformer.adapters.on_demand import DeferredAttention, Reduce


@dataclass
class Call:
    """One call of one module."""

    module: nn.Module
    path: str
    number: int
    """How often the module had been called before."""
    begin: int
    parents: tuple[int, ...]
    """The indices of the calls around it, the outermost first."""
    taken: Tensor | None
    """The first tensor of floating-point numbers that went in, or the first tensor at all."""
    inputs: tuple[Tensor, ...] = ()
    end: int = -1
    given: Tensor | None = None
    """The first tensor that came out."""
    outputs: tuple[Tensor, ...] = ()

    @property
    def is_changed_later(self) -> bool:
        """Whether a later part wrote over what came out."""
        return self.given is not None and not torch.equal(self.given, self.outputs[0])

    @property
    def is_leaf(self) -> bool:
        return next(self.module.children(), None) is None

    @property
    def has_weights(self) -> bool:
        """Whether it has weights of its own."""
        return next(self.module.parameters(recurse=False), None) is not None

    @property
    def is_matrix(self) -> bool:
        """Whether it maps its input by one matrix."""
        weight = getattr(self.module, "weight", None)
        is_table = isinstance(self.module, nn.Embedding)
        return self.is_leaf and isinstance(weight, Tensor) and weight.dim() == 2 and not is_table

    @property
    def is_norm(self) -> bool:
        """Whether it is a norm: by its name, or as all its weights are a number for each feature."""
        weights = list(self.module.parameters(recurse=False))
        by_weights = bool(weights) and all(weight.dim() == 1 for weight in weights)
        return self.is_leaf and ("norm" in type(self.module).__name__.lower() or by_weights)


@dataclass
class Attention:
    """One attention in the course of the run."""

    begin: int
    parents: tuple[int, ...]
    n_query: int
    n_key: int
    sees_later: bool
    """Whether its mask lets any query look at a later key."""
    end: int = -1
    z: Tensor | None = None


@dataclass
class Probe:
    """What was seen, in order."""

    calls: list[Call] = field(default_factory=list)
    attentions: list[Attention] = field(default_factory=list)
    output: Any = None
    _time: int = 0
    _open: list[int] = field(default_factory=list)
    _times: dict[int, int] = field(default_factory=dict)

    @property
    def is_causal(self) -> bool:
        """Whether no self-attention lets a query look at a later key: a property of the masks, whatever the input."""
        own = [one for one in self.attentions if one.n_query == one.n_key > 1]
        return bool(own) and not any(one.sees_later for one in own)

    def attention_begins(self, n_query: int, n_key: int, *, sees_later: bool) -> None:
        self.attentions.append(Attention(self._tick(), tuple(self._open), n_query, n_key, sees_later))

    def attention_ends(self, z: Tensor) -> None:
        self.attentions[-1].end, self.attentions[-1].z = self._tick(), z

    def enters(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = tuple(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        number = self._times.get(id(module), 0)
        self._times[id(module)] = number + 1
        taken = _main(inputs)  # copied, as a later part may add to it in place
        copied = None if taken is None else taken.clone()
        call = Call(module, path, number, self._tick(), tuple(self._open), copied, inputs)
        self._open.append(len(self.calls))
        self.calls.append(call)

    def leaves(self, output: Any) -> None:
        call = self.calls[self._open.pop()]
        call.end, call.outputs = self._tick(), _tensors(output)
        call.given = call.outputs[0].clone() if call.outputs else None

    def inside(self, index: int) -> list[Call]:
        """The calls within a call, in order."""
        return [call for call in self.calls if index in call.parents]

    def _tick(self) -> int:
        self._time += 1
        return self._time


@torch.no_grad()
def probe(model: nn.Module, run_model: Callable[[ActiveRun], Any], n_batch: int = 1) -> Probe:
    """Run a model once and watch. `run_model` calls it within the run that it is given."""
    seen = Probe()
    run = ActiveRun(SILENT, n_batch=n_batch, observer=seen)
    hooks = []
    for path, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(_entering(seen, path, run), with_kwargs=True))
        hooks.append(module.register_forward_hook(_leaving(seen, run)))
    try:
        seen.output = run_model(run)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _entering(seen: Probe, path: str, run: ActiveRun) -> Callable[..., None]:
    """Notes calls of this run alone: another thread may use the model meanwhile."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        if active_run() is run:
            seen.enters(path, module, args, kwargs or {})

    return hook


def _leaving(seen: Probe, run: ActiveRun) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if active_run() is run:
            seen.leaves(output)

    return hook


def _tensors(output: Any) -> tuple[Tensor, ...]:
    if isinstance(output, Tensor):
        return (output,)
    values = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    return tuple(value for value in values if isinstance(value, Tensor))


def _main(inputs: tuple[Tensor, ...]) -> Tensor | None:
    return next((value for value in inputs if value.is_floating_point()), inputs[0] if inputs else None)


Catches = Callable[[str, int, tuple[Any, ...], dict[str, Any]], None]


class Observer(Protocol):
    """Whoever wants to know of each attention of a run while a model's layout is still unknown."""

    def attention_begins(self, n_query: int, n_key: int, *, sees_later: bool) -> None: ...

    def attention_ends(self, z: Tensor) -> None: ...


@dataclass
class ActiveRun:
    """One forward pass of one foreign model."""

    tape: AnyTape
    attention_paths: tuple[str, ...] = ()
    """The path of each attention in the order of the calls; empty while they are being found."""
    n_batch: int = 1
    observer: Observer | None = None
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    kept: dict[str, Tensor] = field(default_factory=dict)
    """What one hook leaves for a later one of the same run: the stream that a block began with."""
    limits: dict[tuple[int, bool], tuple[Tensor | None, Limits]] = field(default_factory=dict)
    """What the masks of this run mean: most layers share one."""
    inside: int = 0
    """How many attention modules the run is in; counts only where attention is found by its softmax."""
    n_attentions: int = 0
    catches: Catches | None = None
    """Is told of each call of a module that holds an attention: which module, which of its calls, what it is called with."""
    later: dict[str, DeferredAttention] | None = None
    """What each attention was given, by its path, where that is kept in the place of what it makes of it."""
    reduce: Reduce | None = None

    def next_attention(self) -> str | None:
        """The path of the attention that begins now; None for one that was not there when the model was opened."""
        index, self.n_attentions = self.n_attentions, self.n_attentions + 1
        return self.attention_paths[index] if index < len(self.attention_paths) else None

    def limits_of(self, terms: Terms, n_query: int, n_key: int, device: torch.device) -> Limits:
        """What a mask means, worked out once a run. The mask is held, so that no other can take its place in memory."""
        mask = terms.added if terms.allowed is None else terms.allowed
        at = (0 if mask is None else mask.data_ptr(), terms.is_causal)
        known = self.limits.get(at)
        if known is None or known[1].own.shape != (n_query, n_key) or (mask is not None and known[0] is None):
            known = (mask, Limits.of(terms, n_query, n_key, device))
            self.limits[at] = known
        return known[1]

    def call_number(self, module: str, side: str) -> int:
        """How often this was asked before in this run: a layer that is shared is called once for every depth."""
        self.calls[module, side] += 1
        return self.calls[module, side] - 1


_RUN: ContextVar[ActiveRun | None] = ContextVar("xformer_run", default=None)


def active_run() -> ActiveRun | None:
    """The run of this thread, None where nobody records."""
    return _RUN.get()


@contextmanager
def running(run: ActiveRun | None) -> Iterator[ActiveRun | None]:
    """Everything that a model does inside belongs to `run`; None: to nobody, as if there were no run around it."""
    token = _RUN.set(run)
    try:
        yield run
    finally:
        _RUN.reset(token)
