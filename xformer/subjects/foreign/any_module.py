"""Any `torch.nn.Module` with example inputs: `nn.TransformerEncoder`, `nn.MultiheadAttention`, a model written by hand.

    reading = xformer.read(module, x)                 a tensor, a tuple of tensors, or a dictionary of arguments
    reading["encoder.0.attn.pattern"]

Nothing is known of it but what a run shows. Where it reads whole numbers these are its tokens; else its positions are numbered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer.decoding import Step
from xformer.edits import AnyEdit
from xformer.errors import InputError, UnavailableError
from xformer.model_shape import ModelShape
from xformer.subjects.bare import NumbersInput
from xformer.subjects.foreign.captured_call import heads_read
from xformer.subjects.foreign.opened import Inputs, OpenedModel
from xformer.subjects.foreign.opening import Verification, open_module
from xformer.subjects.foreign.shape import shape_of
from xformer.subjects.foreign.transformers_model import logits_of
from xformer.subjects.foreign.weights import ForeignWeights
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example
from xformer.trace import Trace

ModuleInputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
"""What a module is called with: one tensor, several arguments in their order, or arguments by name."""


@dataclass(frozen=True, eq=False)
class AnyModule:
    """A module that is open, with the inputs that it was opened for. Only read."""

    opened: OpenedModel
    inputs: Inputs
    shape: ModelShape
    verification: Verification
    name: str = "module"

    @classmethod
    def open(cls, module: nn.Module, inputs: ModuleInputs, name: str = "module") -> AnyModule:
        """Find the attention in a module. Raises `InputError` where there is none that can be seen."""
        named = _named(inputs)
        is_causal = _is_causal(module, named)
        opened, verification = open_module(
            module, _call, logits_of, (named,), _ids_of, is_causal=is_causal, n_target=_n_target
        )
        run = opened.run(named, n_batch=_n_batch(named))
        shape = shape_of(opened, run, is_causal=is_causal, max_len=None)
        subject = cls(opened, named, shape, verification, name)
        subject.__dict__["_n_keys"] = _n_keys(run)  # this very run has told
        return subject

    @property
    def weights(self) -> ForeignWeights:
        """Those that were found."""
        return ForeignWeights(self.opened, self.name)

    def given(self, inputs: ModuleInputs) -> AnyModule:
        """The same module with other inputs."""
        return replace(self, inputs=_named(inputs))

    @property
    def labels(self) -> tuple[str, ...]:
        """Its tokens are numbers."""
        return self._labels

    @cached_property
    def _labels(self) -> tuple[str, ...]:
        return tuple(str(number) for number in range(self.shape.vocab_size))

    def frame(self, typed: Any = None) -> Example:
        """The inputs that it is called with, their batch's first one shown; nothing is asked of its outputs."""
        stream = self._positions(self.shape.attention[0].stack, 0)
        target = self._positions("decoder", 1) if self.shape.is_pair else None
        labels = torch.full_like(stream if target is None else target, IGNORED)
        return Example(tuple(stream[0].tolist()), (), stream, target, stream, labels)

    def has_right_answer(self, example: Example) -> bool:
        """Nobody knows what is right."""
        return False

    def names(self, tokens: Int[Tensor, " pos"]) -> tuple[str, ...]:
        """The numbers of the tokens, or of the positions."""
        return tuple(str(token) for token in tokens.tolist())

    def record(self, example: Example, *, edits: Sequence[AnyEdit] = (), keep: Sequence[str] = ("*",)) -> Trace:
        """Run it once; see `xformer.record`."""
        activations = self.opened.run(self.inputs, n_batch=_n_batch(self.inputs), edits=edits, keep=keep)
        return Trace(None, example.stream, example.target, tuple(edits), activations)

    def unembed(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """What the module makes of the last state of its stream. Raises `InputError` where that is not all it needs."""
        if self.opened.head is None:
            raise InputError(f"The output of {self.name} does not follow from the last state of its stream alone.")
        return self.opened.head(stream)

    @property
    def input(self) -> NumbersInput:
        """Nothing is typed: it reads the inputs that it is called with."""
        return NumbersInput()

    def heads_read(
        self, example: Example, trace: Trace, path: str, x: Float[Tensor, "part pos d_model"], side: Literal["q", "k"]
    ) -> Float[Tensor, "part head pos d_head"]:
        """The layer is called by itself; see `captured_call`."""
        return heads_read(self.opened, self.inputs, path, x, side)

    def steps(
        self, example: Example, n: int | None = None, *, edits: Sequence[AnyEdit] = (), **how: Any
    ) -> Iterator[Step]:
        """Nobody knows what it would say. Raises `UnavailableError`."""
        raise UnavailableError(f"{self.name} is a module that nobody knows the words of; it says nothing by itself.")

    def check_fits(self, example: Example, allowed_bytes: int) -> None:
        """It is read where it was made, by whoever made it."""

    def task_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """Nobody knows what is needed."""
        return {}

    def _positions(self, stack: str, index: int) -> Int[Tensor, "1 pos"]:
        """The tokens that a stack reads, or the numbers of its positions where what it reads are no tokens."""
        ids = _ids_of(self.inputs)
        if index < len(ids):
            return ids[index][:1]
        site = next(site for site in self.shape.attention if site.stack == stack and not site.is_cross)
        return torch.arange(self._n_keys[f"{site.path}.pattern"])[None]

    @cached_property
    def _n_keys(self) -> dict[str, int]:
        """How many positions each attention looks at with these inputs: only a run knows."""
        return _n_keys(self.opened.run(self.inputs, n_batch=_n_batch(self.inputs), keep=("*.pattern",)))


def _n_keys(run: Mapping[str, Tensor]) -> dict[str, int]:
    return {name: value.shape[-1] for name, value in run.items() if name.endswith(".pattern")}


def _named(inputs: ModuleInputs) -> Inputs:
    if isinstance(inputs, Tensor):
        return {"0": inputs}
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return {str(index): value for index, value in enumerate(inputs)}


def _call(module: nn.Module, inputs: Inputs) -> Any:
    args = [value for name, value in inputs.items() if name.isdigit()]
    return module(*args, **{name: value for name, value in inputs.items() if not name.isdigit()})


def _tensors(inputs: Inputs) -> list[Tensor]:
    return [
        value
        for value in inputs.values()
        if isinstance(value, Tensor) and value.dim() >= 2 and value.dtype != torch.bool
    ]


def _ids_of(inputs: Inputs) -> tuple[Tensor, ...]:
    return tuple(value for value in _tensors(inputs) if not value.is_floating_point())


def _n_batch(inputs: Inputs) -> int:
    return _tensors(inputs)[0].shape[0] if _tensors(inputs) else 1


def _n_target(inputs: Inputs) -> int | None:
    """The length of a second stream, where a module reads two of different lengths."""
    lengths = [value.shape[1] for value in _tensors(inputs)[:2]]
    return lengths[1] if len(lengths) == 2 and lengths[0] != lengths[1] else None


@torch.no_grad()
def _is_causal(module: nn.Module, inputs: Inputs) -> bool:
    """Whether no earlier output moves when the last position of the input is another one."""
    tensors = _tensors(inputs)
    if not tensors:
        raise InputError("A module is read with inputs [batch, pos] or [batch, pos, features], got no such tensor.")
    module.eval()
    first = tensors[0]
    if first.shape[1] < 2 or _n_target(inputs) is not None:
        return False
    other = first.clone()
    other[:, -1] = first[:, 0] if not torch.equal(first[:, 0], first[:, -1]) else first[:, 0] * 2
    before = logits_of(_call(module, inputs))
    after = logits_of(_call(module, {name: other if value is first else value for name, value in inputs.items()}))
    same = before.shape[1:2] == first.shape[1:2] and before.dim() == 3
    return bool(same and torch.allclose(before[:, :-1], after[:, :-1], atol=1e-5) and not torch.equal(before, after))
