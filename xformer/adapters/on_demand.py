"""The activations of a run of a large model: few are kept, the others are worked out again when somebody asks for one.

    attention    from what it was given (q, k, v before anything is made of them), by the same arithmetic under the same edits
    all others   by another run that keeps them, unless they are few enough to be kept in the first

A pattern takes [head, query, key] numbers: 30 layers of 9 heads would be 4.5 GB at 2,048 tokens, what they follow from 0.2 GB.
While it is at hand each pattern is reduced to what a picture of all heads shows.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, KeysView, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from xformer.adapters.attention import Limits, Terms, attend
from xformer.adapters.until import EarlyStopTape, StopForward
from xformer.edits import AnyEdit
from xformer.tape import AnyTape, TapeAt

MOST_GROUPS = 2
"""So many groups of activations that were worked out again stay."""
Reduce = Callable[[str, dict[str, Tensor]], Any]
"""Makes of a layer's path and of its mask, pattern and z what is kept of them."""


@dataclass(frozen=True, eq=False)
class DeferredAttention:
    """What one attention was given: enough to do it again."""

    q: Tensor
    k: Tensor
    v: Tensor
    terms: Terms
    limits: Limits
    names: tuple[str, ...]
    """What it hands to a tape, in its order."""
    reduced: Any

    def again(self, names: Sequence[str], path: str, edits: Sequence[AnyEdit]) -> dict[str, Tensor]:
        """Some of its activations, by their whole names."""
        tape = EarlyStopTape(edits, names)
        with suppress(StopForward):
            attend(self.q, self.k, self.v, self.terms, tape.at(path), self.limits)
        return tape.activations

    @property
    def held(self) -> list[Tensor]:
        return [self.q, self.k, self.v]


class Calls(dict[tuple[str, int], tuple[tuple[Any, ...], dict[str, Any]]]):
    """What each module that holds an attention was called with, by its name and the number of the call: all but the stream."""

    def keep(self, module: str, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What a run tells of its calls."""
        others = {name: None if name == "hidden_states" else value for name, value in kwargs.items()}
        self[module, number] = ((None, *args[1:]) if args else (), others)


class SpyTape(TapeAt):
    """A tape that looks at what one attention hands over and keeps none of it."""

    def __init__(self, tape: AnyTape) -> None:
        self._inner = tape
        self.names: list[str] = []
        self.seen: dict[str, Tensor] = {}

    def __call__(self, name: str, value: Tensor) -> Tensor:
        value = self._inner(name, value)
        self.names.append(name)
        if name in ("mask", "pattern", "z"):
            self.seen[name] = value
        return value


class OnDemand(dict[str, Tensor]):
    """Activations by name, in the order of the run; those that were kept are in the dictionary itself."""

    def __init__(
        self,
        kept: dict[str, Tensor],
        names: Sequence[str],
        later: dict[str, DeferredAttention],
        edits: Sequence[AnyEdit],
        record: Callable[[Sequence[str]], dict[str, Tensor]],
        calls: Calls,
    ) -> None:
        super().__init__(kept)
        self.later, self.calls = later, calls
        self._names = dict.fromkeys(names)
        self._edits, self._record = tuple(edits), record
        self._groups: dict[str, dict[str, Tensor]] = {}
        self._last: dict[str, Tensor] = {}
        self._memory: dict[tuple[object, ...], Any] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Tensor:
        if dict.__contains__(self, name):
            return super().__getitem__(name)
        path, _, what = name.rpartition(".")
        with self._lock:
            if path in self.later and what in self.later[path].names:
                if name not in self._last:
                    wanted = ("mask", "pattern") if what in ("mask", "pattern") else (what,)  # mostly both are wanted
                    names = [f"{path}.{one}" for one in self.later[path].names if one in wanted]
                    self._last = self.later[path].again(names, path, self._edits)
                return self._last[name]
            group = _group(what or name)
            if group not in self._groups:
                wanted = [one for one in self if not dict.__contains__(self, one) and not self._is_later(one)]
                found = self._record([one for one in wanted if _group(one.rpartition(".")[2]) == group])
                self._groups = dict([*self._groups.items(), (group, found)][-MOST_GROUPS:])
            return self._groups[group][name]

    def _is_later(self, name: str) -> bool:
        path, _, what = name.rpartition(".")
        return path in self.later and what in self.later[path].names

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        return self._names.keys()

    def values(self) -> Any:
        return (self[name] for name in self)

    def items(self) -> Any:
        return ((name, self[name]) for name in self)

    def held(self) -> list[Tensor]:
        """What is in memory of it."""
        groups = [tensor for group in self._groups.values() for tensor in group.values()]
        later = [tensor for one in self.later.values() for tensor in one.held]
        return [*dict.values(self), *later, *groups, *_tensors(list(self.calls.values()))]

    def remembered(self, key: tuple[object, ...], make: Callable[[], Any]) -> Any:
        """What was worked out from it and others before; of other objects in the key only their place is known."""
        at = tuple(id(one) if isinstance(one, OnDemand) else one for one in key)
        found = self._memory.get(at)
        alive = [weakref.ref(one) for one in key if isinstance(one, OnDemand)]
        if found is None or [one() for one in found[0]] != [one() for one in alive]:
            found = self._memory[at] = (alive, make())
        return found[1]

    def reduced(self, path: str) -> Any:
        """What was kept of a layer's pattern; None where nothing was."""
        return self.later[path].reduced if path in self.later else None


def _tensors(value: Any) -> list[Tensor]:
    """Those in tuples, lists and dictionaries."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for one in value for tensor in _tensors(one)]
    return [value] if isinstance(value, Tensor) else []


def _group(what: str) -> str:
    """Which activations are worked out together: what stands in the stream or is added to it, and else those of a kind."""
    return "stream" if what.startswith(("resid", "pos_")) or what in ("embed", "in", "out", "final_norm") else what
