"""The run that this thread is in: which tape its activations go to, and how often each part has been called.

A model is one object that several threads may share; what is recorded or changed belongs to the call. Hooks and the attention
function find it here, in a context variable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from xformer.adapters.attend import Limits, Terms
from xformer.tape import AnyTape

if TYPE_CHECKING:
    from xformer.adapters.on_demand import DeferredAttention, Reduce

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
