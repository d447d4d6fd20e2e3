"""One input run many times at once, each time with another value in place of one activation.

values = replaced(reading["decoder.0.attn.z"], [(0,), (1,)])         heads 0 and 1, each silenced for itself
logits_with(reading, "decoder.0.attn.z", values)                     [value, pos, vocab]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from xformer import edits
from xformer.reading import Reading
from xformer.subjects import BareModel
from xformer.subjects.foreign.any_module import AnyModule
from xformer.trace import repeat_first

Where = tuple[Any, ...]
"""The index of a part in an activation, behind that of the batch."""


def replaced(
    value: Float[Tensor, "batch *part"], parts: Sequence[Where], by: Tensor | None = None
) -> Float[Tensor, "value *part"]:
    """The first input's activation once for each of the parts, which is 0 there, or as it is in the first input of `by`."""
    values = value[:1].repeat(len(parts), *[1] * (value.dim() - 1))
    for row, part in zip(values, parts, strict=True):
        row[part] = 0.0 if by is None else by[0][part]
    return values


def logits_with(reading: Reading, name: str, values: Float[Tensor, "value *part"]) -> Float[Tensor, "value pos vocab"]:
    """The logits of a reading's first input with each of the values in place of an activation; its edits stay on.

    A model of ours keeps its padding and its mask too. A module that is called with the inputs it was opened with takes
    one run for each.
    """
    subject, example, n = reading.subject, reading.example, len(values)
    change = edits.replace(name, values)
    if isinstance(subject, BareModel):
        return repeat_first(subject.model, reading.trace, n, edits=[change], keep=("logits",), fused=True).logits
    if isinstance(subject, AnyModule) and n > 1:
        return torch.cat([logits_with(reading, name, value[None]) for value in values])
    stream = example.stream[:1].expand(n, -1)
    target = None if example.target is None else example.target[:1].expand(n, -1)
    rows = replace(example, stream=stream, target=target)
    return subject.record(rows, edits=[*reading.edits, change], keep=("logits",)).logits[:n]
