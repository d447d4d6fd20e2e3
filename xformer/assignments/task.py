"""What an assignment is made of: parts that a student writes, inputs to try them on, the right formula and wrong ones.

The right formula has keyword arguments; each wrong one is a change of them, with the name of the mistake. A solution that gives
the numbers of a wrong formula on every input is explained by it, however it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from xformer.doctor.formulas.formula import CAUSES_OF_FORMULAS
from xformer.errors import AssignmentError

Outputs = Mapping[str, Tensor]
Run = Callable[[Callable[..., Any], Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class TaskCase:
    """One call of the student's code.

    Attributes:
        what: The case in a few words, for the report.
        inputs: The arguments.
        with_gradient: Whether the gradients of all inputs that are numbers are compared, too.
        free: Where any finite number is right, broadcast to the outputs.
    """

    what: str
    inputs: Mapping[str, Any]
    with_gradient: bool = False
    free: Bool[Tensor, "..."] | None = None


@dataclass(frozen=True, eq=False)
class Wrong:
    """A mistake: what the code does, and how it should read.

    Attributes:
        cause: Its identifier, one of the doctor's where it has one.
        how: How the code should read.
        what: What the code does, as a sentence.
        change: The arguments of the right formula that make it wrong.
        is_missing: Whether something is left out, so that the last right line is the one to look at.
        beyond: Another change, whose numbers do not show this mistake yet.
    """

    cause: str
    how: str
    what: str = ""
    change: Mapping[str, Any] = field(default_factory=dict)
    is_missing: bool = False
    beyond: Mapping[str, Any] | None = None

    @property
    def sentence(self) -> str:
        """What the code does, as a sentence."""
        text = self.what or CAUSES_OF_FORMULAS[self.cause]
        return f"{text[0].upper()}{text[1:].rstrip('.')}."


def wrong(
    cause: str,
    how: str,
    what: str = "",
    *,
    is_missing: bool = False,
    beyond: Mapping[str, Any] | None = None,
    **change: Any,
) -> Wrong:
    """Return a mistake; `change` are arguments of the right formula."""
    return Wrong(cause, how, what, change, is_missing, beyond)


def call(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Call a function that returns one tensor. Arguments go by their place, as a student may give them other names."""
    return {"output": function(*inputs.values())}


@dataclass(frozen=True, eq=False)
class TaskPart:
    """One function or class of a task.

    Attributes:
        name: Its name in the student's file.
        right: The right formula.
        cases: Makes the inputs; they are the same each time.
        axes: The names of the axes of each output.
        look: Where to look, the first hint.
        wrongs: The known mistakes, the likeliest first.
        run: Calls the function or the module, and names its outputs.
        make: Makes what `run` calls from a class and the inputs; None for a function.
        uses: The functions and classes of other tasks that it may call.
        styles: Changes of the right formula that are right, too, with other numbers on the way.
        model: Puts the function or module into a model of tokens, so that the doctor reads what no mistake explains.
        equation: The equation, for the last hint then.
    """

    name: str
    right: Callable[..., Any]
    cases: Callable[[], Sequence[TaskCase]]
    axes: Mapping[str, str]
    look: str
    wrongs: Sequence[Wrong]
    run: Run = call
    make: Callable[[Callable[..., Any], Mapping[str, Any]], Callable[..., Any]] | None = None
    uses: Sequence[str] = ()
    styles: Sequence[Mapping[str, Any]] = ()
    model: Callable[[Callable[..., Any]], nn.Module] | None = None
    equation: str = ""


@dataclass(frozen=True)
class AssignmentTask:
    """One task of a set.

    Attributes:
        name: Its name on the command line.
        title: Its title.
        parts: What the student writes.
        needs: The tasks whose functions it may use.
    """

    name: str
    title: str
    parts: Sequence[TaskPart]
    needs: Sequence[str] = ()


def normal(seed: int, *shape: int, scale: float = 1.0) -> Float[Tensor, "..."]:
    """Return seeded normal numbers."""
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def unpacked(returned: Any, *names: str) -> dict[str, Any]:
    """Return the elements of a returned tuple by name. Raises `AssignmentError` if it is another object."""
    if not isinstance(returned, tuple | list) or len(returned) != len(names):
        what = f"{len(returned)} values" if isinstance(returned, tuple | list) else type(returned).__name__
        raise AssignmentError(f"It returns {what}; it should return ({', '.join(names)}).")
    return dict(zip(names, returned, strict=True))


def weights_of(make: Callable[..., nn.Module], seed: int, *sizes: int) -> dict[str, Tensor]:
    """Return seeded weights for a module of these sizes."""
    shapes = {name: tuple(weight.shape) for name, weight in make(*sizes).state_dict().items()}
    return {
        name: normal(seed + at, *shape, scale=0.5) + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
        for at, (name, shape) in enumerate(shapes.items())
    }


def module_with(make: Callable[..., nn.Module], inputs: Mapping[str, Any]) -> nn.Module:
    """Return a module of the sizes and with the weights of a case. Raises `AssignmentError` if the weights do not fit."""
    module, weights = make(*inputs["sizes"]), inputs["weights"]
    found = {name: tuple(one.shape) for name, one in module.state_dict().items()}
    if found != {name: tuple(one.shape) for name, one in weights.items()}:
        odd = sorted(found.keys() ^ weights.keys()) or ["shapes"]
        raise AssignmentError(f"Its weights should be those of the given __init__; look at {', '.join(odd[:3])}.")
    module.load_state_dict(dict(weights))
    return module.to(next(iter(weights.values())).dtype).eval()
