"""One watched run of a model whose inside is unknown: every call of every part, in order, with what went in and came out.

The layout is found in it by what the numbers say, not by what a family happens to call its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from xformer.adapters.active_run import ActiveRun, active_run
from xformer.tape import SILENT


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
