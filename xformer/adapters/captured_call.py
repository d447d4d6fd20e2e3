"""One attention of a foreign model called by itself: with what it was called with in a run, and another stream in its place.

Queries and keys are an affine function of the stream, whatever a family does to get them: rotation, grouped heads, fused
matrices. So what each part of the stream adds to them is found by calling the attention with that part alone.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.adapters.attachment import attached
from xformer.adapters.on_demand import Calls, EarlyStopTape, StopForward
from xformer.adapters.opening import Inputs, OpenedModel
from xformer.adapters.probe import ActiveRun
from xformer.errors import UnavailableError
from xformer.tape import Tape

Side = Literal["q", "k"]


def heads_read(
    opened: OpenedModel,
    inputs: Inputs,
    path: str,
    x: Float[Tensor, "part pos d_model"],
    side: Side,
    calls: Calls | None = None,
) -> Float[Tensor, "part head pos d_head"]:
    """The queries or keys of an attention layer for streams x, as it reads them in a run of `inputs`.

    `calls` are those of that run where they are known; x that needs a gradient gets one.

    Raises `UnavailableError` where its queries cannot be read.
    """
    if opened.rung != 1:
        raise UnavailableError(
            f"The queries and keys of this model cannot be read: its attention is read from outside, at rung {opened.rung}."
        )
    name, number = opened.layout.owner_calls[opened.layout.paths.index(path)]
    args, kwargs = (calls or {}).get((name, number)) or _call_of(opened, inputs, name, number)
    module = opened.module.get_submodule(name)
    dtype = next(module.parameters()).dtype
    tape = EarlyStopTape((), (f"{path}.{side}",))
    try:
        run = ActiveRun(tape, (path,), n_batch=len(x))
        with attached(opened.module, opened.layout, 1, run), torch.set_grad_enabled(x.requires_grad):
            stream = side == "q" or kwargs.get("key_value_states") is None
            x = x.to(dtype)
            module(*_with(args, x, as_stream=stream), **_with_names(kwargs, x, as_stream=stream, has_args=bool(args)))
    except StopForward:
        return tape.activations[f"{path}.{side}"]
    raise UnavailableError(f"{path} was called by itself and handed no {side} over.")


@torch.no_grad()
def _call_of(opened: OpenedModel, inputs: Inputs, name: str, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the module of an attention is called with in a run, the time of that number."""
    caught: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    run = ActiveRun(Tape((), (), fused=True), opened.layout.paths)

    def catch(module: str, called: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (module, called) == (name, number):
            caught.append((args, kwargs))
            raise StopForward

    run.catches = catch
    try:
        with attached(opened.module, opened.layout, opened.rung, run):
            opened.call(opened.module, inputs)
    except StopForward:
        return caught[0]
    raise UnavailableError(f"{name} was not called in this run.")


def _with(args: tuple[Any, ...], x: Tensor, *, as_stream: bool) -> tuple[Any, ...]:
    return (x, *args[1:]) if args and as_stream else args


def _with_names(kwargs: dict[str, Any], x: Tensor, *, as_stream: bool, has_args: bool) -> dict[str, Any]:
    if not as_stream:
        return {**kwargs, "key_value_states": x}
    return kwargs if has_args else {**kwargs, "hidden_states": x}
