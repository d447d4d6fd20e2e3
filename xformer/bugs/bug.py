"""What a bug is here: a mistake people really make, told in one sentence and two equations, that can be put into a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

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
    applies: Callable[[ModelConfig], bool] = lambda config: True
    shows: Shows = "at once"
    train_changes: tuple[tuple[str, Any], ...] = ()
    """Fields of the `TrainConfig` that the bug changes."""
    counts_padding: bool = False
    """Whether the loss also asks for an answer where there is only padding."""
    decides: tuple[str, ...] = ()
    """The steps that it alone decides: of two bugs that decide one step, a model can have one."""
    undoes: tuple[str, ...] = ()
    """Bugs that would be gone, were this one put in after them."""

    def applies_to(self, config: ModelConfig) -> bool:
        """Whether a model of this configuration can have the bug."""
        return self.applies(config)

    def broken(self, model: Transformer) -> Transformer:
        """A copy of `model` with the bug in it besides those that it has; the original stays as it is.

        Raises `InputError` where it cannot have it, or where one of the two bugs would be lost.
        """
        if not self.applies(model.config):
            raise InputError(f"The bug “{self.title}” does not fit this model. It needs {self.rule}.")
        there: tuple[Bug, ...] = getattr(model, "bugs", ())
        if self in there:
            raise InputError(f"This model has the bug “{self.title}” already; put it into a model without it.")
        for other in there:
            if set(self.decides) & set(other.decides):
                step = next(step for step in self.decides if step in other.decides)
                raise InputError(
                    f"“{self.title}” and “{other.title}” both decide {step}, so a model can have one of them alone; put it "
                    "into the model without the other."
                )
            if other.name in self.undoes:
                raise InputError(
                    f"“{self.title}” would undo “{other.title}”, which this model has; put them in the other way round."
                )
        changed = self.put_into(model)
        changed.__dict__["bugs"] = (*there, self)
        return changed
