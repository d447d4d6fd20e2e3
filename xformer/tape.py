"""The tape: records and edits the activations of one forward pass without changing the model.

A layer passes each intermediate to the tape by name and continues with the returned value:

    pattern = tape("pattern", scores.softmax(dim=-1))

The state belongs to the call, so any number of threads can run the same model, each with its own tape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from xformer.errors import EditError
from xformer.formatting import similar_names


@dataclass(frozen=True, eq=False)
class Edit:
    """One edit: a glob over activation names, and the change to each activation that it matches."""

    name: str

    def apply(self, name: str, value: Tensor) -> Tensor:
        """Return the changed activation: a new tensor of the same shape, on the same device."""
        raise NotImplementedError


def graph_of(edits: Iterable[Edit]) -> AbstractContextManager[None]:
    """Enable gradients during a pass if any of `edits` needs an autograd graph (see `gradients`), else disable them."""
    return torch.set_grad_enabled(any(getattr(edit, "needs_graph", False) for edit in edits))


class Tape:
    """Record the activations of one forward pass, and apply edits to them.

    `keep` is a sequence of globs; only matching activations are kept (all of them by default). With `fused`, a part of the
    model in which nothing is kept or edited gets no tape and takes its fused path. With `copies`, what is kept stays as it was
    if the model later changes its tensor in place, as in `h += attention(h)`.
    """

    recording = True

    def __init__(
        self, edits: Iterable[Edit] = (), keep: Sequence[str] = ("*",), *, fused: bool = False, copies: bool = False
    ) -> None:
        self.activations: dict[str, Tensor] = {}
        self.names: list[str] = []
        self._edits = tuple(edits)
        self._keep = tuple(keep)
        self._fused = fused
        self._copies = copies
        self._made: dict[tuple[int, torch.Size, tuple[int, ...]], Tensor] = {}
        self._fired: set[int] = set()

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Return an activation after all matching edits, and keep it if a glob of `keep` matches."""
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
            self.activations[name] = self._copy(value) if self._copies else value
        return value

    def _copy(self, value: Tensor) -> Tensor:
        """A copy, the same one for a tensor with several names."""
        if value.requires_grad or 0 in value.stride():  # an expanded tensor cannot be changed in place
            return value
        at = value.data_ptr(), value.shape, value.stride()
        if at not in self._made or not torch.equal(self._made[at], value):
            self._made[at] = value.clone()
        return self._made[at]

    def at(self, path: str) -> AnyTape:
        """Return the tape for a part of the model: its names are prefixed with `path`."""
        globs = (*self._keep, *(edit.name for edit in self._edits))
        idle = self._fused and not any(_reaches(glob, f"{path}.") for glob in globs)
        return SILENT if idle else TapeAt(self, path)

    def without_keeping(self) -> Tape:
        """Return a tape with the same edits that keeps nothing."""
        other = Tape(self._edits, (), fused=True)
        other._fired = self._fired
        return other

    def never_matched(self) -> list[str]:
        """Return the globs, of edits and then of `keep`, that matched nothing in the pass."""
        idle = [edit.name for index, edit in enumerate(self._edits) if index not in self._fired]
        return idle + [glob for glob in self._keep if not any(fnmatchcase(name, glob) for name in self.names)]

    def check_all_fired(self, repeat: Callable[[Tape], object]) -> None:
        """Raise `EditError` if an edit, or a glob of `keep`, matched nothing in the pass.

        `repeat` runs the pass again: the error suggests names, and fused parts have reported none.
        """
        if self.never_matched():
            everything = Tape()
            with torch.no_grad():
                repeat(everything)
            self.names = everything.names
        for glob in self.never_matched():
            raise EditError(f"No activation of this run matches {glob!r}; {similar_names(glob, self.names)}")


class TapeAt:
    """A tape for one layer, which passes activations by names relative to itself."""

    recording = True

    def __init__(self, tape: Tape, path: str) -> None:
        self._tape = tape
        self._path = path

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return self._tape(f"{self._path}.{name}", value)

    def at(self, path: str) -> AnyTape:
        return self._tape.at(f"{self._path}.{path}")


class SilentTape:
    """A null tape that returns every value unchanged, so that layers need no special case for runs without a tape."""

    recording = False

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value

    def at(self, path: str) -> SilentTape:
        return self


def _reaches(glob: str, prefix: str) -> bool:
    """Return whether a glob might match a name that begins with `prefix`; false positives are possible."""
    wild = re.search(r"[*?[]", glob)
    fixed = glob if wild is None else glob[: wild.start()]
    return fixed.startswith(prefix) or (wild is not None and prefix.startswith(fixed))


class StopForward(Exception):  # noqa: N818  (not an error)
    """Ends a forward pass early."""


SILENT = SilentTape()
AnyTape = Tape | TapeAt | SilentTape
