"""A bug: a mistake that people make in a transformer, its description, and how it is put into a copy of a model."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from xformer.config import ModelConfig
from xformer.errors import InputError
from xformer.model import Transformer

Shows = Literal["at once", "with padding", "when fresh", "in training"]
"""When a bug can be seen: in any run · in a run with padding · while the weights are fresh · in training alone."""


@dataclass(frozen=True)
class Bug:
    """One mistake. `equation_wrong` is what the code with the bug computes where `equation_right` was meant."""

    name: str
    title: str
    mistake: str
    """What people do, in one plain sentence."""
    seen_in: str
    """Where the mistake is met: which kind of code makes it, or why."""
    equation_wrong: str
    equation_right: str
    look_for: str
    """What to look at in the pattern, the loss or the prediction."""
    rule: str
    """Which models can have it, as the end of "It needs …"."""
    put_into: Callable[[Transformer], Transformer]
    """Makes the copy with the bug; call `broken` instead, which checks first."""
    applies_to: Callable[[ModelConfig], bool] = lambda config: True
    """Whether a model of a configuration can have the bug."""
    shows: Shows = "at once"
    train_changes: tuple[tuple[str, Any], ...] = ()
    """Fields of the `TrainConfig` that the bug changes."""
    counts_padding: bool = False
    """Whether the loss also asks for an answer where there is only padding."""

    def broken(self, model: Transformer) -> Transformer:
        """A copy of `model` with the bug in it; the original stays as it is.

        Raises `InputError` where it cannot have it, and where it has a bug already.
        """
        if not self.applies_to(model.config):
            raise InputError(f"The bug “{self.title}” does not fit this model. It needs {self.rule}.")
        if (there := getattr(model, "bug", None)) is not None:
            raise InputError(
                f"This model has the bug “{there}” already; put “{self.title}” into a model without a bug."
            )
        changed = self.put_into(model)
        changed.__dict__["bug"] = self.title
        return changed


_TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("bugs.toml").read_text("utf-8"))


def bug(
    name: str,
    put_into: Callable[[Transformer], Transformer],
    applies_to: Callable[[ModelConfig], bool] = lambda config: True,
    **settings: Any,
) -> Bug:
    """The bug whose texts stand under its name in `bugs.toml`."""
    return Bug(name=name, put_into=put_into, applies_to=applies_to, **_TEXTS[name], **settings)


def exchange(old: type[nn.Module], new: type[nn.Module], path_ends: str = "") -> Callable[[Transformer], Transformer]:
    """`replace_modules` of these layers, for any model."""
    return lambda model: replace_modules(model, old, new, path_ends)


def replace_modules(model: Transformer, old: type[nn.Module], new: type[nn.Module], path_ends: str = "") -> Transformer:
    """A copy of `model` in which every layer of class `old` whose path ends in `path_ends` is one of its subclass `new`.

    The layer keeps all that it holds: weights, mode, device and hooks; so `new` must hold the same. A layer of another subclass
    of `old` becomes both.
    """
    changed = copy.deepcopy(model)
    for path, layer in list(changed.named_modules()):
        if isinstance(layer, old) and path.endswith(path_ends):
            kind = (
                new if type(layer) is old else type(f"{new.__name__}On{type(layer).__name__}", (new, type(layer)), {})
            )
            replacement = kind.__new__(kind)
            replacement.__dict__.update(vars(layer))
            changed.set_submodule(path, replacement)
    return changed


@dataclass(frozen=True)
class Crash:
    """A mistake, what Python says to it, and what was meant."""

    mistake: str
    error: str
    meant: str


CRASHES = tuple(Crash(**one) for one in _TEXTS["crashes"])
