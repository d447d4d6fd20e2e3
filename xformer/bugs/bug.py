"""A bug: a mistake that people make in a transformer, its description, and how it is put into a copy of a model."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

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
    decides: tuple[str, ...] = ()
    """The steps that it alone decides: of two bugs that decide one step, a model can have one."""
    undoes: tuple[str, ...] = ()
    """Bugs that would be gone, were this one put in after them."""

    def broken(self, model: Transformer) -> Transformer:
        """A copy of `model` with the bug in it besides those that it has; the original stays as it is.

        Raises `InputError` where it cannot have it, or where one of the two bugs would be lost.
        """
        if not self.applies_to(model.config):
            raise InputError(f"The bug “{self.title}” does not fit this model. It needs {self.rule}.")
        there: tuple[Bug, ...] = getattr(model, "bugs", ())
        if self in there:
            raise InputError(f"This model has the bug “{self.title}” already; put it into a model without it.")
        for other in there:
            if both := [step for step in self.decides if step in other.decides]:
                raise InputError(
                    f"“{self.title}” and “{other.title}” both decide {both[0]}, so a model can have one of them alone; put it "
                    "into the model without the other."
                )
            if other.name in self.undoes:
                raise InputError(
                    f"“{self.title}” would undo “{other.title}”, which this model has; put them in the other way round."
                )
        changed = self.put_into(model)
        changed.__dict__["bugs"] = (*there, self)
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


Layer = TypeVar("Layer", bound=nn.Module)


def exchange(old: type[Layer], new: type[Layer], path_ends: str = "") -> Callable[[Transformer], Transformer]:
    """`replace_modules` of these layers, for any model."""
    return lambda model: replace_modules(model, old, new, path_ends)


def replace_modules(model: Transformer, old: type[Layer], new: type[Layer], path_ends: str = "") -> Transformer:
    """A copy of `model` in which every layer of class `old` whose path ends in `path_ends` is one of class `new`.

    The new layer takes over the weights, the mode, and whether gradients are wanted. Where an earlier exchange has been, the
    layer becomes both: a class that is `new` first and the earlier one behind it, so that no bug drops another.
    """
    changed = copy.deepcopy(model)
    for path, layer in list(changed.named_modules()):
        if not isinstance(layer, old) or isinstance(layer, new) or not path.endswith(path_ends):
            continue
        kind = new if type(layer) is old else type(f"{new.__name__}On{type(layer).__name__}", (new, type(layer)), {})
        replacement = cast(Layer, kind(changed.config))  # pyright: ignore[reportCallIssue]
        replacement.load_state_dict(layer.state_dict())
        replacement.to(
            next((p.device for p in layer.parameters()), None), next((p.dtype for p in layer.parameters()), None)
        )
        replacement.load_state_dict(layer.state_dict())  # again: what is not a float32 was rounded on the way
        replacement.train(layer.training)
        for mine, theirs in zip(replacement.parameters(), layer.parameters(), strict=True):
            mine.requires_grad_(theirs.requires_grad)
        parent, _, name = path.rpartition(".")
        setattr(changed.get_submodule(parent), name, replacement)
    return changed


@dataclass(frozen=True)
class Crash:
    """A mistake, what Python says to it, and what was meant."""

    mistake: str
    error: str
    meant: str


CRASHES = tuple(Crash(**one) for one in _TEXTS["crashes"])
