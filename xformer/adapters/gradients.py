"""Gradients of a measure of the logits at each activation of a run: one forward and one backward pass.

    found = gradients(adapter, example, lambda logits: logits[0, -1, 7], ["*.z"])
    found["decoder.0.attn.z"]           ∂ measure / ∂ z, shaped like z
    found.activations, found.measure    the activations and the value of the measure

Parameters get no gradient and keep their flags, so threads may share the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from xformer.adapters.adapter import ModelAdapter
from xformer.edits import AnyEdit, Watch
from xformer.errors import EditError, InputError
from xformer.tasks.task import Example

Measure = Callable[[Tensor], Tensor]
"""Maps the logits [batch, pos, vocab] to one number."""


@dataclass(frozen=True, eq=False)
class Gradients(Mapping[str, Tensor]):
    """Gradients by the names of their activations, in the order of the run."""

    measure: float
    activations: dict[str, Tensor] = field(repr=False)
    gradients: dict[str, Tensor] = field(repr=False)

    def __getitem__(self, name: str) -> Tensor:
        return self.gradients[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.gradients)

    def __len__(self) -> int:
        return len(self.gradients)


def gradients(
    subject: ModelAdapter, example: Example, measure: Measure, names: Sequence[str], edits: Sequence[AnyEdit] = ()
) -> Gradients:
    """The gradient of `measure` at each activation that matches a glob of `names`, in a run under `edits`.

    Activations that the measure does not depend on have gradient 0.

    Raises:
        EditError: A glob matches no differentiable activation.
        InputError: The measure is not a single number that depends on the logits.
    """
    seen: dict[str, Tensor] = {}
    logits = subject.record(example, edits=[*edits, *(Watch(name, seen) for name in names)], keep=("logits",)).logits
    if not seen:
        raise EditError(f"Nothing that {', '.join(names)} names has a gradient; ask for one like '*.z'.")
    with torch.enable_grad():
        value = measure(logits)
        if value.numel() != 1 or not value.requires_grad:
            raise InputError(
                f"A measure makes one number of the logits that depends on them, got {value}; for example logits[0, -1, 7]."
            )
        found = torch.autograd.grad(value.reshape(()), list(seen.values()), materialize_grads=True)
    return Gradients(
        float(value.detach()), {name: at.detach() for name, at in seen.items()}, dict(zip(seen, found, strict=True))
    )
