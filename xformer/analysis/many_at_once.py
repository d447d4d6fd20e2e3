"""One input run many times at once, each time with another part of an activation replaced.

logits_with(reading, [("decoder.0.attn.z", (0,)), ("decoder.1.attn.z", (1,))])     [part, pos, vocab], each head 0 by itself
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.edits import ReplaceParts
from xformer.memory import BYTES_PER_FLOAT, LAYER_BYTES
from xformer.reading import Reading
from xformer.subjects import BareModel
from xformer.subjects.foreign.any_module import AnyModule
from xformer.trace import repeat_first

AT_ONCE = 256
"""Tokens that go through the model together: more take no less time each, and progress is told in larger steps."""
Where = tuple[Any, ...]
"""The index of a part in an activation, behind that of the batch."""


def rows_at_once(reading: Reading) -> int:
    """How many runs of this input may be one: as many as are quick, and as there is room for."""
    shape = reading.subject.shape
    n_pos, n_tokens = max(reading.example.stream.shape[1], reading.logits.shape[1]), reading.logits.shape[2]
    widest = n_pos * max(n_tokens, 8 * shape.d_model, 4 * n_pos * shape.n_heads)
    return max(1, min(AT_ONCE // n_pos, LAYER_BYTES // (BYTES_PER_FLOAT * widest)))


def logits_with(
    reading: Reading, parts: Sequence[tuple[str, Where]], by: Mapping[str, Tensor] | None = None
) -> Float[Tensor, "part pos vocab"]:
    """The logits of a reading's first input with each of the parts replaced by itself; the reading's edits stay on.

    A model of ours keeps its padding and its mask too. A module that is called with the inputs it was opened with takes
    one run for each.

    Args:
        reading: The run.
        parts: The name of an activation, and the index of the part in it.
        by: The activations to take the parts from, of the first input; without it the parts are 0.
    """
    subject, example, n = reading.subject, reading.example, len(parts)
    if isinstance(subject, AnyModule) and n > 1:
        return torch.cat([logits_with(reading, [part], by) for part in parts])
    changes = [
        ReplaceParts(
            name,
            tuple((row, where) for row, (of, where) in enumerate(parts) if of == name),
            None if by is None else by[name],
        )
        for name in dict.fromkeys(name for name, _ in parts)
    ]
    if isinstance(subject, BareModel):
        return repeat_first(subject.model, reading.trace, n, edits=changes, keep=("logits",), fused=True).logits
    stream = example.stream[:1].expand(n, -1)
    target = None if example.target is None else example.target[:1].expand(n, -1)
    rows = replace(example, stream=stream, target=target)
    return subject.record(rows, edits=[*reading.edits, *changes], keep=("logits",)).logits[:n]
