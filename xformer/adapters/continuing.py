"""A foreign language model goes on with a text, token by token: an iterator of `Step`, as our own models give.

Unchanged it remembers the keys and values of what it has read; under edits each step is a whole run, because an edit may
change any earlier position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from xformer.adapters.opening import Inputs, OpenedModel
from xformer.decoding import Sampling, Step, choice_of
from xformer.edits import AnyEdit
from xformer.trace import Trace

Reads = Callable[[Tensor], Tensor]
"""From all that was read [1, pos] to the logits of what comes next [vocab]."""


def continuing(
    opened: OpenedModel,
    read: Tensor,
    inputs: Callable[[Tensor], Inputs],
    n: int,
    end: int | None,
    sampling: Sampling,
    edits: Sequence[AnyEdit],
    generator: torch.Generator | None,
) -> Iterator[Step]:
    """`n` steps at most, until the token `end`; `inputs` are what the model is called with once it has read so far."""
    choose, following = (
        choice_of(sampling, generator),
        _whole(opened, inputs, edits) if edits else _cached(opened, inputs),
    )
    for position in range(n):

        def run(so_far: Tensor = read) -> Trace:
            return Trace(None, so_far, None, tuple(edits), opened.run(inputs(so_far), edits=edits))

        step = choose.step(following(read), position, run)
        yield step
        if step.token == end:
            return
        read = torch.cat((read, read.new_tensor([[step.token]])), dim=1)


def _whole(opened: OpenedModel, inputs: Callable[[Tensor], Inputs], edits: Sequence[AnyEdit]) -> Reads:
    return lambda read: opened.run(inputs(read), edits=edits, keep=("logits",))["logits"][0, -1]


def _cached(opened: OpenedModel, inputs: Callable[[Tensor], Inputs]) -> Reads:
    """Only what is new is read; a model that keeps no cache reads everything again."""
    held: dict[str, Any] = {"cache": None, "length": 0}

    @torch.no_grad()
    def reads(read: Tensor) -> Tensor:
        asked = inputs(read)
        if "use_cache" not in asked or "decoder_input_ids" in asked:
            return opened.plain(asked)[0, -1]
        asked = {**asked, "input_ids": read[:, held["length"] :], "use_cache": True, "past_key_values": held["cache"]}
        output = opened.returned(asked)
        held["cache"], held["length"] = getattr(output, "past_key_values", None), read.shape[1]
        if held["cache"] is None:
            held["length"] = 0
        return opened.output_of(output)[0, -1]

    return reads
