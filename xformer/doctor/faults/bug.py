"""Bugs: the description of a mistake, and the function that puts it into a copy of a model."""

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
"""When a bug is visible: in any run · in a run with padding · with fresh weights · only in training."""


@dataclass(frozen=True)
class Bug:
    """One mistake. The code computes `equation_wrong` instead of the intended `equation_right`."""

    name: str
    title: str
    mistake: str
    """The mistake, in one sentence."""
    seen_in: str
    """Where the mistake occurs: the kind of code, or the reason."""
    equation_wrong: str
    equation_right: str
    look_for: str
    """The symptom in the pattern, the loss or the prediction."""
    rule: str
    """What a model needs to have the bug, as the end of "It needs …"."""
    put_into: Callable[[Transformer], Transformer]
    """Makes the copy with the bug. Call `broken` instead, which validates first."""
    applies_to: Callable[[ModelConfig], bool] = lambda config: True
    """Whether a model with this configuration can have the bug."""
    shows: Shows = "at once"
    train_changes: tuple[tuple[str, Any], ...] = ()
    """Fields of the `TrainConfig` that the bug changes."""
    counts_padding: bool = False
    """Whether the loss includes padding."""

    def broken(self, model: Transformer) -> Transformer:
        """Return a copy of `model` with the bug; the original is not changed.

        Raises `InputError` if the bug does not apply to the model, or the model already has a bug.
        """
        if not self.applies_to(model.config):
            raise InputError(f"The bug “{self.title}” does not fit this model. It needs {self.rule}.")
        if (existing := getattr(model, "bug", None)) is not None:
            raise InputError(f"This model already has the bug “{existing}”; put “{self.title}” into a model with none.")
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
    """Return the bug with the texts that `bugs.toml` has under its name."""
    return Bug(name=name, put_into=put_into, applies_to=applies_to, **_TEXTS[name], **settings)


def exchange(old: type[nn.Module], new: type[nn.Module], path_ends: str = "") -> Callable[[Transformer], Transformer]:
    """Return a function that applies `replace_modules` to a model."""
    return lambda model: replace_modules(model, old, new, path_ends)


def replace_modules(model: Transformer, old: type[nn.Module], new: type[nn.Module], path_ends: str = "") -> Transformer:
    """Copy `model`, and change the class of every layer of class `old` whose path ends in `path_ends` to its subclass `new`.

    A layer keeps its weights, mode, device and hooks, so `new` must have the same attributes. A layer of another subclass of
    `old` becomes a subclass of both.
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
    """A mistake that raises an error, the error, and the intended code."""

    mistake: str
    error: str
    meant: str


CRASHES = tuple(Crash(**one) for one in _TEXTS["crashes"])
