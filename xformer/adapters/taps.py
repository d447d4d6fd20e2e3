"""Hooks that hand a model's activations to the tape of the run they belong to; in any other run they idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from xformer.adapters.layout import Layout, Side, dense, routing, sparse
from xformer.adapters.probe import ActiveRun

RunOf = Callable[[], ActiveRun | None]
"""The run that hooks serve at the moment; None where the pass that they are called in is not theirs."""


def set_taps(model: nn.Module, layout: Layout, run_of: RunOf, *, by_softmax: bool) -> list[RemovableHandle]:
    """Register hooks for the taps of a layout, and return their handles.

    `by_softmax`: attention is found inside the modules that hold it, so that entering and leaving them is noted.

    Another thread may run the model while hooks are registered or removed, and PyTorch then calls some without their keyword
    arguments; these calls are never the run's own.
    """
    handles: list[RemovableHandle] = []
    by_place: dict[tuple[str, Side], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    factors = {tap.module: tap.factor for tap in layout.taps if tap.factor != 1.0}
    copied = {tap.module for tap in layout.taps if tap.is_changed_later}
    for tap in layout.taps:
        by_place[tap.module, tap.side][tap.number].append(tap.name)
    for (path, side), names in by_place.items():
        module = model.get_submodule(path)
        found = _by_number(names)
        if side == "in":
            handles.append(module.register_forward_pre_hook(_taking(run_of, path, found), with_kwargs=True))
        elif side == "angles":
            handles.append(module.register_forward_hook(_turning(run_of, path, found)))
        elif side == "experts":
            handles.append(module.register_forward_hook(_routing(run_of, path, found)))
    for path in dict.fromkeys(path for path, side in by_place if side in ("out", "adds")):
        adds, out = (_by_number(by_place.get((path, side), {})) for side in ("adds", "out"))
        hook = _giving(run_of, path, adds, out, factors.get(path, 1.0), path in copied)
        handles.append(model.get_submodule(path).register_forward_hook(hook))
    for path in layout.owners:
        owner = model.get_submodule(path)
        handles.append(owner.register_forward_pre_hook(_catching(run_of, path), with_kwargs=True))
        if by_softmax:
            handles.append(owner.register_forward_pre_hook(_counting(run_of, 1)))
            handles.append(owner.register_forward_hook(_counting(run_of, -1), always_call=True))
    return handles


def _by_number(names: dict[int, list[str]]) -> list[tuple[str, ...]]:
    return [tuple(names.get(number, ())) for number in range(max(names, default=-1) + 1)]


def _names(run: ActiveRun, path: str, side: Side, found: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    number = run.call_number(path, side)
    return found[number] if number < len(found) else ()


def _taking(run_of: RunOf, path: str, found: Sequence[tuple[str, ...]]) -> Callable[..., Any]:
    """The first tensor of numbers that a module takes."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        run = run_of()
        names = () if run is None else _names(run, path, "in", found)
        if run is None or not names or kwargs is None:
            return None
        at = next((i for i, value in enumerate(args) if _is_numbers(value)), None)
        key = None if at is not None else next((name for name, value in kwargs.items() if _is_numbers(value)), None)
        if at is not None:
            changed = _through(run, names, args[at])
            return None if changed is args[at] else ((*args[:at], changed, *args[at + 1 :]), kwargs)
        if key is not None:
            changed = _through(run, names, kwargs[key])
            return None if changed is kwargs[key] else (args, {**kwargs, key: changed})
        return None

    return hook


def _giving(
    run_of: RunOf,
    path: str,
    adds: Sequence[tuple[str, ...]],
    found: Sequence[tuple[str, ...]],
    factor: float,
    is_copied: bool,
) -> Callable[..., Any]:
    """The first tensor that a module gives; and where that, times a factor, is added to the stream, the stream with it."""

    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        run = run_of()
        if run is None:
            return None
        number = run.call_number(path, "out")
        names = found[number] if number < len(found) else ()
        sums = adds[number] if number < len(adds) else ()
        if not names and not sums:
            return None
        first = output if isinstance(output, Tensor) else output[0]
        added = first * factor if factor != 1.0 else first.clone() if is_copied else first
        changed = _through(run, names, added)
        for name in sums:
            changed = _onto_stream(run, name, changed)
        changed = first if changed is added else changed / factor
        for name in names:
            if name.endswith(".resid_post"):
                run.kept.pop(name.rpartition(".")[0], None)
        if changed is first:
            return None
        if isinstance(output, Tensor):
            return changed
        return type(output)((changed, *output[1:])) if isinstance(output, tuple | list) else _first_of(output, changed)

    return hook


def _onto_stream(run: ActiveRun, name: str, adds: Tensor) -> Tensor:
    """What is added, changed so that the sum is what the tape makes of it."""
    block = name.rpartition(".")[0]
    stream = run.kept.get(block)
    if stream is None:
        return adds
    total = stream + adds.reshape(stream.shape)
    changed = run.tape(name, total)
    run.kept[block] = changed
    return adds if changed is total else (changed - stream).reshape(adds.shape)


def _turning(run_of: RunOf, path: str, found: Sequence[tuple[str, ...]]) -> Callable[..., Any]:
    """The angles of a rotation, from its cosines and sines."""

    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        run = run_of()
        names = () if run is None else _names(run, path, "angles", found)
        if run is None or not names:
            return None
        cosine, sine = output[0], output[1]
        angles = torch.atan2(sine, cosine)
        changed = _through(run, names, angles)
        if changed is angles:
            return None
        length = torch.hypot(cosine, sine)
        return (changed.cos() * length, changed.sin() * length)

    return hook


def _routing(run_of: RunOf, path: str, found: Sequence[tuple[str, ...]]) -> Callable[..., Any]:
    """The weights of all experts, from a router's choice of some."""

    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        run = run_of()
        names = () if run is None else _names(run, path, "experts", found)
        where = routing(output) if names else None
        if run is None or where is None:
            return None
        scores, weights, numbers = (output[at] for at in where)
        every = dense(weights, numbers, scores.shape[-1])
        changed = _through(run, names, every)
        if changed is every:
            return None
        given = list(output)
        given[where[1]], given[where[2]] = sparse(changed, numbers.shape[-1])
        return type(output)(given)

    return hook


def _catching(run_of: RunOf, path: str) -> Callable[..., Any]:
    """What an attention is called with, for a run that wants to know."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        run = run_of()
        if run is not None and run.catches is not None and kwargs is not None:
            run.catches(path, run.call_number(path, "catch"), args, kwargs)

    return hook


def _counting(run_of: RunOf, step: int) -> Callable[..., Any]:
    """How many attention modules a run is in: one more on the way in, one less on the way out."""

    def hook(module: nn.Module, *_: Any) -> None:
        if (run := run_of()) is not None:
            run.inside += step

    return hook


def _through(run: ActiveRun, names: tuple[str, ...], value: Tensor) -> Tensor:
    """A value through the tape by its names, as [batch, pos, width]: some families lay the positions of a batch end to end."""
    for name in names:
        is_flat = value.dim() == 2 and name.rpartition(".")[2] != "pos_embed"
        shown = value.unflatten(0, (run.n_batch, -1)) if is_flat else value
        if name.endswith("pos_embed") and value.dim() == 3 and len(value) == 1:
            shown = value[0]
        changed = run.tape(name, shown)
        if changed is not shown:
            value = changed.reshape(value.shape)
        if name.endswith((".resid_pre", ".resid_mid", ".resid_cross")):
            run.kept[name.rpartition(".")[0]] = value
    return value


def _is_numbers(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _first_of(output: Any, changed: Tensor) -> Any:
    """A model's output object with another first entry."""
    name = next(iter(output.keys()))
    output[name] = changed
    return output
