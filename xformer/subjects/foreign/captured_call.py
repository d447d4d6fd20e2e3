"""One attention of a foreign model called by itself: with what it was called with in a run, and another stream in its place.

Queries and keys are an affine function of the stream, whatever a family does to get them: rotation, grouped heads, fused
matrices. So what each part of the stream adds to them is found by calling the attention with that part alone.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.errors import UnavailableError
from xformer.subjects.foreign.active_run import ActiveRun, running
from xformer.subjects.foreign.opened import Inputs, OpenedModel
from xformer.subjects.foreign.until import ReachedError, UntilTape
from xformer.tape import Tape

Side = Literal["q", "k"]


@torch.no_grad()
def heads_read(
    opened: OpenedModel, inputs: Inputs, path: str, x: Float[Tensor, "part pos d_model"], side: Side
) -> Float[Tensor, "part head pos d_head"]:
    """The queries or keys of an attention layer for streams x, as it reads them in a run of `inputs`.

    Raises `UnavailableError` where its queries cannot be read.
    """
    if opened.rung != 1:
        raise UnavailableError(
            f"The queries and keys of this model cannot be read: its attention is read from outside, at rung {opened.rung}."
        )
    module, args, kwargs = _call_of(opened, inputs, path)
    dtype = next(module.parameters()).dtype
    tape = UntilTape((), (f"{path}.{side}",))
    try:
        with running(ActiveRun(tape, (path,), n_batch=len(x))):
            stream = side == "q" or kwargs.get("key_value_states") is None
            x = x.to(dtype)
            module(*_with(args, x, as_stream=stream), **_with_names(kwargs, x, as_stream=stream, has_args=bool(args)))
    except ReachedError:
        return tape.activations[f"{path}.{side}"]
    raise UnavailableError(f"{path} was called by itself and handed no {side} over.")


def _call_of(opened: OpenedModel, inputs: Inputs, path: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The module of an attention, and what it is called with in a run."""
    name, number = opened.layout.owner_calls[opened.layout.paths.index(path)]
    module = opened.module.get_submodule(name)
    caught: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    run = ActiveRun(Tape((), (), fused=True), opened.layout.paths)

    def catch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        caught.append((args, kwargs))
        raise ReachedError

    run.catches = (name, number, catch)
    try:
        with running(run):
            opened.call(opened.module, inputs)
    except ReachedError:
        return module, *caught[0]
    raise UnavailableError(f"{path} was not called in this run.")


def _with(args: tuple[Any, ...], x: Tensor, *, as_stream: bool) -> tuple[Any, ...]:
    return (x, *args[1:]) if args and as_stream else args


def _with_names(kwargs: dict[str, Any], x: Tensor, *, as_stream: bool, has_args: bool) -> dict[str, Any]:
    if not as_stream:
        return {**kwargs, "key_value_states": x}
    return kwargs if has_args else {**kwargs, "hidden_states": x}
