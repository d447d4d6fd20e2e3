"""Every tensor operation of a forward pass, with the axes of its result and the line of source that called it.

operations = xformer.operations(module, inputs)
operations.table                        one row per operation
operations.at("model.py:38")            those of one line
operations.attentions                   the attention layers among them
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.errors import InputError
from xformer.program.attention import AttentionFinder, FoundAttention, Refusal
from xformer.program.axis_names import AxisNames
from xformer.program.axis_tracker import AxisTracker
from xformer.program.heads import HeadLayout
from xformer.program.inputs import ModuleInputs, accepted, call_plainly, larger, named_inputs
from xformer.program.module_state import fixed_seed, on_device, preserve_state, unwrapped
from xformer.program.plan import layers_of
from xformer.program.record import Address, Operation, Program, Value, record

KEPT_BYTES = 256 * 1024**2
"""The default limit of the tensors that are kept."""


@dataclass(frozen=True, eq=False, repr=False)
class AttentionOperations:
    """One attention layer of a pass."""

    heads: tuple[FoundAttention, ...]
    """One entry, or one per head if the heads are computed alone."""

    def __repr__(self) -> str:
        return f"<attention {self.line}, operations {self.first} to {self.last}>"

    @property
    def line(self) -> str:
        """The line of the product of queries and keys, as "model.py:38"."""
        return str(self.heads[0].first.line)

    @property
    def first(self) -> int:
        """The index of the operation that computes the scores, or of the fused function that computes everything."""
        return self.heads[0].first.index

    @property
    def last(self) -> int:
        """The index of the operation that multiplies the pattern with the values."""
        return self.heads[-1].last.index

    @property
    def scores(self) -> Float[Tensor, "batch head query key"] | None:
        """The input of the softmax; None inside a fused function, or beyond the limit of kept bytes."""
        return self._joined([(one.scores, one.layout) for one in self.heads])

    @property
    def pattern(self) -> Float[Tensor, "batch head query key"] | None:
        """The weights of the values; None as `scores`."""
        return self._joined([(one.pattern, one.pattern_layout) for one in self.heads])

    @property
    def softmax(self) -> Float[Tensor, "batch head query key"] | None:
        """The output of the softmax, of the shape of the scores; None as `scores`."""
        return self._joined([one.softmax for one in self.heads if one.softmax is not None])

    @property
    def q(self) -> Float[Tensor, "batch head query d_head"] | None:
        """The queries in the product with the keys; None as `scores`, or in an order of heads that is not the scores'."""
        return self._joined([one.operands["q"] for one in self.heads if "q" in one.operands])

    @property
    def k(self) -> Float[Tensor, "batch kv_head key d_head"] | None:
        """The keys, per query head or per group; None as `q`."""
        return self._joined([one.operands["k"] for one in self.heads if "k" in one.operands])

    @property
    def v(self) -> Float[Tensor, "batch kv_head key d_value"] | None:
        """The values, per query head or per group; None as `q`."""
        return self._joined([one.operands["v"] for one in self.heads if "v" in one.operands])

    @property
    def z(self) -> Float[Tensor, "batch head query d_head"] | None:
        """The output of the heads; None as `scores`."""
        return self._joined([(one.z, one.z_layout) for one in self.heads])

    def _joined(self, pieces: Sequence[tuple[Value, HeadLayout]]) -> Tensor | None:
        tensors = [layout.to_heads(value.tensor) for value, layout in pieces if value.tensor is not None]
        if self.heads[0].kernel is not None or len(tensors) < len(self.heads):
            return None
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=1)


@dataclass(frozen=True, eq=False, repr=False)
class Operations(Sequence[Operation]):
    """The operations of one forward pass, in order.

    `operation.result.tensor` is the tensor that an operation returned, if it was kept.

    Example:
        >>> import torch, xformer
        >>> operations = xformer.operations(torch.nn.Linear(3, 5), torch.ones(2, 4, 3))
        >>> operations[0].name, tuple(operations[0].result.shape), operations.table.loc[0, "inputs"]
        ('linear', (2, 4, 5), ('0', 'weight', 'bias'))
    """

    program: Program
    names: Mapping[tuple[Address, int], tuple[str, ...]]
    """The names of the axes of each result."""
    attentions: tuple[AttentionOperations, ...]
    refused: tuple[Refusal, ...]
    """What looks like attention but cannot be read, with the reason."""

    def __repr__(self) -> str:
        return f"<{len(self)} operations, {len(self.attentions)} attention layers>"

    def __len__(self) -> int:
        return len(self.program.operations)

    def __getitem__(self, index: Any) -> Any:
        return self.program.operations[index]

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.program.operations)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The tensors that the module returned, in order."""
        return self.program.outputs

    def axes(self, operation: Operation, result: int = 0) -> tuple[str, ...]:
        """The names of the axes of one result: batch, head, query, key, pos, d_head, d_model, d_ff, vocab, or a number.

        An axis that holds several is written with a dot, outermost first, as "batch·head"; one of unknown meaning is "?".
        """
        return self.names.get((operation.address, result), ("?",) * len(operation.results[result].shape))

    def at(self, line: str) -> list[Operation]:
        """The operations of one line, as "model.py:38", or of one file or function.

        Raises:
            InputError: No operation was called there.
        """
        found = [
            one
            for one in self
            if one.line is not None and line in (str(one.line), os.path.basename(one.line.file), one.line.function)
        ]
        if not found:
            known = list(dict.fromkeys(str(one.line) for one in self if one.line is not None))
            raise InputError(f"No operation was called at {line!r}; there are operations at {', '.join(known[:12])}.")
        return found

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per operation: `name`, `module`, `line`, `source`, `function`, `inputs`, `shape`, `axes`, `dtype`.

        `inputs` has the indices of the producers, and the names of inputs and weights.
        """
        return pd.DataFrame(
            {
                "name": one.name,
                "module": one.address.module,
                "line": "" if one.line is None else str(one.line),
                "source": "" if one.line is None else one.line.text,
                "function": "" if one.line is None else one.line.function,
                "inputs": tuple(_origin(value) for value in one.inputs),
                "shape": tuple(one.result.shape),
                "axes": self.axes(one),
                "dtype": str(one.result.dtype).removeprefix("torch."),
            }
            for one in self
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{index}</td><td>{escape(row['name'])}</td><td>{escape(row['module'])}</td><td>{escape(row['line'])}</td>"
            f"<td><code>{escape(row['source'])}</code></td><td>[{escape(', '.join(row['axes']))}]</td>"
            f"<td>{list(row['shape'])}</td></tr>"
            for index, row in enumerate(self.table.to_dict("records"))
        )
        head = "".join(f"<th>{name}</th>" for name in ("", "operation", "module", "line", "source", "axes", "shape"))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _origin(value: Value) -> int | str:
    """The index of the operation that computed a value, or the name of an input, a weight or a constant."""
    return value.name if value.operation is None else value.operation.index


def operations(module: nn.Module, inputs: ModuleInputs, *, keep_bytes: int = KEPT_BYTES) -> Operations:
    """Record every tensor operation of a module's forward pass in eval mode. The module is left as it was found.

    Inputs of one text or one position are named from another pass with two, where the module takes them, so that axes of size 1
    are distinguished.

    Args:
        module: Any module.
        inputs: One tensor, several positional arguments, or named arguments.
        keep_bytes: The limit of the tensors that are kept; later ones have shapes only.

    Returns:
        The operations.

    Example:
        >>> import torch, xformer
        >>> attention = torch.nn.MultiheadAttention(12, 3, batch_first=True)
        >>> x = torch.randn(2, 5, 12)
        >>> operations = xformer.operations(attention, (x, x, x))
        >>> [operation.name for operation in operations]
        ['transpose', 'multi_head_attention_forward', 'transpose']
    """
    module = unwrapped(module)
    given = named_inputs(inputs)
    named = next(accepted(module, given), given)
    here = on_device(named, module)
    with preserve_state(module), torch.no_grad(), fixed_seed(module):
        program = record(module, lambda: call_plainly(module, here), here, keep_bytes=keep_bytes)
        tracker = AxisTracker(program)
        finder = AttentionFinder(program, tracker)
        names = AxisNames(program, tracker, finder.found).of_results()
        for attempts in larger(here, single_only=True):
            for other in attempts:
                try:
                    again = record(module, lambda other=other: call_plainly(module, other), other)
                except Exception:
                    continue
                axes = AxisTracker(again)
                richer = AxisNames(again, axes, AttentionFinder(again, axes).found).of_results()
                names = {at: _merged(one, richer.get(at)) for at, one in names.items()}
                break
    layers, refused = layers_of(program, finder)
    return Operations(program, names, tuple(AttentionOperations(tuple(one)) for one in layers), tuple(refused))


def _merged(one: tuple[str, ...], other: tuple[str, ...] | None) -> tuple[str, ...]:
    """The axes as two passes name them: the name rather than the size 1."""
    if other is None or len(one) != len(other):
        return one
    return tuple(b if a in ("1", "?") and not b.isdigit() else a for a, b in zip(one, other, strict=True))
