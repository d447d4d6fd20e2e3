"""Where the neurons of a block are: what goes into the nonlinearity, what it is multiplied with, and what is mapped back.

out = W_down (act(W_gate x) · W_up x)      with a gate (Shazeer 2020)
out = W_down act(W_up x)                   without one
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from xformer.adapters.probe import Attention, Call, Probe

_IDLE = (nn.Dropout, nn.Identity)


def neuron_taps(
    seen: Probe, block: int, adds: Call, after: int, attention: Attention
) -> Iterator[tuple[str, Literal["in", "out"], int, str]]:
    """The activations of the neurons whose sum `adds` gives: module, side, number of the call, name."""
    excluded = _attention_only(seen, attention, block, adds)
    parts = [
        call
        for call in seen.inside(block)
        if call.begin > after and call.end <= adds.end and not excluded & {*call.parents}
    ]
    rows = adds.given.shape[:-1].numel() if adds.given is not None else 0
    mapped = [call for call in parts if call.is_matrix and call.taken is not None and _rows(call) == rows]
    if len(mapped) < 2:
        return
    down = mapped[-1]
    assert down.taken is not None
    d_ff = down.taken.shape[-1]
    yield down.path, "in", down.number, "post"
    ups = [call for call in mapped[:-1] if call.given is not None and call.given.shape[-1] in (d_ff, 2 * d_ff)]
    if not ups:
        return
    yield ups[0].path, "in", ups[0].number, "in"
    acts = [
        call
        for call in parts
        if call.is_leaf
        and not isinstance(call.module, _IDLE)
        and next(call.module.parameters(), None) is None
        and ups[0].begin < call.begin < down.begin
        and _rows(call) == rows
        and call.taken is not None
        and call.given is not None
        and call.taken.shape[-1] == call.given.shape[-1] == d_ff
    ]
    if acts:
        act = acts[0]
        yield act.path, "in", act.number, "pre"
        gate = next((call for call in ups if _is_same(call.given, act.taken)), None)
        if len(ups) == 2:
            other = next(call for call in ups if call is not gate)
            yield other.path, "out", other.number, "up"
    elif len(ups) == 1 and ups[0].given is not None and ups[0].given.shape[-1] == d_ff:
        yield ups[0].path, "out", ups[0].number, "pre"


def _attention_only(seen: Probe, attention: Attention, block: int, adds: Call) -> set[int]:
    """The calls between the block and the attention in it that hold no neurons, so that none of their parts are."""
    inner = attention.parents[attention.parents.index(block) + 1 :]
    return {index for index in inner if index not in adds.parents}


def _is_same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and one.shape == other.shape and torch.equal(one, other)


def _rows(call: Call) -> int:
    return call.taken.shape[:-1].numel() if call.taken is not None else -1
