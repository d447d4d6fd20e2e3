"""The tape: how one forward pass is read and changed without touching the model it runs on.

A layer hands each intermediate to the tape by name and goes on with what the tape returns:

    pattern = tape("pattern", scores.softmax(dim=-1))

The state belongs to the call. Any number of threads may run the same read-only model, each with its own tape.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from xformer.errors import EditError


@dataclass(frozen=True, eq=False)
class Edit:
    """One intervention: a glob over activation names, and what to make of each activation that it matches."""

    name: str

    def apply(self, name: str, value: Tensor) -> Tensor:
        """The changed activation: a new tensor of the same shape, on the same device."""
        raise NotImplementedError


def graph_of(edits: Iterable[Edit]) -> AbstractContextManager[None]:
    """A pass under `edits` builds a graph of what follows from what where one of them needs it (see `gradients`), else none."""
    return torch.set_grad_enabled(any(getattr(edit, "needs_graph", False) for edit in edits))


class Tape:
    """Keeps the activations of one forward pass and applies edits to them on the way.

    `keep` is a sequence of globs; only activations whose name matches one are kept (all of them by default). With `fused`, a
    part of the model in which nothing can be kept or changed gets no tape and takes its fused path.
    """

    recording = True

    def __init__(self, edits: Iterable[Edit] = (), keep: Sequence[str] = ("*",), *, fused: bool = False) -> None:
        self.activations: dict[str, Tensor] = {}
        self.names: list[str] = []
        self._edits = tuple(edits)
        self._keep = tuple(keep)
        self._fused = fused
        self._fired: set[int] = set()

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Pass an activation through: edited where an edit matches, kept where it was asked for."""
        self.names.append(name)
        for index, edit in enumerate(self._edits):
            if fnmatchcase(name, edit.name):
                edited = edit.apply(name, value)
                if (edited.shape, edited.dtype) != (value.shape, value.dtype):
                    raise EditError(
                        f"An edit must keep the shape and type of {name}, which are {list(value.shape)} and "
                        f"{value.dtype}, but {edit!r} made them {list(edited.shape)} and {edited.dtype}."
                    )
                value = edited
                self._fired.add(index)
        if any(fnmatchcase(name, glob) for glob in self._keep):
            self.activations[name] = value
        return value

    def at(self, path: str) -> AnyTape:
        """The same tape seen from inside a part of the model: names are prefixed with `path`."""
        globs = (*self._keep, *(edit.name for edit in self._edits))
        idle = self._fused and not any(_reaches(glob, f"{path}.") for glob in globs)
        return SILENT if idle else TapeAt(self, path)

    def without_keeping(self) -> Tape:
        """The same edits for a part of the run of which nothing is kept."""
        other = Tape(self._edits, (), fused=True)
        other._fired = self._fired
        return other

    def never_matched(self) -> list[str]:
        """The globs, of edits and then of `keep`, that matched nothing in the pass that has just ended."""
        idle = [edit.name for index, edit in enumerate(self._edits) if index not in self._fired]
        return idle + [glob for glob in self._keep if not any(fnmatchcase(name, glob) for name in self.names)]

    def check_all_fired(self) -> None:
        """Raise `EditError` when an edit, or a glob of `keep`, matched nothing in the pass that has just ended."""
        for glob in self.never_matched():
            raise EditError(f"Nothing in this run is called {glob!r}; its names are {', '.join(self.names)}.")


class TapeAt:
    """A tape as one layer sees it: it names what it hands over relative to itself."""

    recording = True

    def __init__(self, tape: Tape, path: str) -> None:
        self._tape = tape
        self._path = path

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return self._tape(f"{self._path}.{name}", value)

    def at(self, path: str) -> AnyTape:
        return self._tape.at(f"{self._path}.{path}")


class SilentTape:
    """No tape: everything passes through untouched, so that layers need not ask whether they are recorded."""

    recording = False

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value

    def at(self, path: str) -> SilentTape:
        return self


def _reaches(glob: str, prefix: str) -> bool:
    """Whether a glob can match a name that begins with `prefix`; true where only a closer look could tell that it cannot."""
    wild = re.search(r"[*?[]", glob)
    fixed = glob if wild is None else glob[: wild.start()]
    return fixed.startswith(prefix) or (wild is not None and prefix.startswith(fixed))


SILENT = SilentTape()
AnyTape = Tape | TapeAt | SilentTape
