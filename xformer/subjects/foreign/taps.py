"""Hooks on a shared foreign model that hand its activations to the tape of the run they belong to; without a run they idle.

They are set once, when the model is opened, and hold no state of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from xformer.subjects.foreign.active_run import ActiveRun, active_run
from xformer.subjects.foreign.layout import Layout, Side
from xformer.subjects.foreign.router import dense, routing, sparse


def set_taps(model: nn.Module, layout: Layout, *, by_softmax: bool) -> None:
    """Hang the taps of a layout onto a model. `by_softmax`: attention is found inside the modules that hold it."""
    by_place: dict[tuple[str, Side], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    factors = {tap.module: tap.factor for tap in layout.taps if tap.factor != 1.0}
    copied = {tap.module for tap in layout.taps if tap.is_changed_later}
    for tap in layout.taps:
        by_place[tap.module, tap.side][tap.number].append(tap.name)
    for (path, side), names in by_place.items():
        module = model.get_submodule(path)
        found = _by_number(names)
        if side == "in":
            module.register_forward_pre_hook(_taking(path, found), with_kwargs=True)
        elif side == "angles":
            module.register_forward_hook(_turning(path, found))
        elif side == "experts":
            module.register_forward_hook(_routing(path, found))
    for path in dict.fromkeys(path for path, side in by_place if side in ("out", "adds")):
        adds, out = (_by_number(by_place.get((path, side), {})) for side in ("adds", "out"))
        model.get_submodule(path).register_forward_hook(
            _giving(path, adds, out, factors.get(path, 1.0), path in copied)
        )
    for path in layout.owners:
        model.get_submodule(path).register_forward_pre_hook(_catching(path), with_kwargs=True)
    if by_softmax:
        for path in layout.owners:
            model.get_submodule(path).register_forward_pre_hook(_entering)
            model.get_submodule(path).register_forward_hook(_leaving, always_call=True)


def _by_number(names: dict[int, list[str]]) -> list[tuple[str, ...]]:
    return [tuple(names.get(number, ())) for number in range(max(names, default=-1) + 1)]


def _names(run: ActiveRun, path: str, side: Side, found: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    number = run.call_number(path, side)
    return found[number] if number < len(found) else ()


def _taking(path: str, found: Sequence[tuple[str, ...]]) -> Callable[..., Any]:
    """The first tensor of numbers that a module takes."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = active_run()
        names = () if run is None else _names(run, path, "in", found)
        if run is None or not names:
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
    path: str, adds: Sequence[tuple[str, ...]], found: Sequence[tuple[str, ...]], factor: float, is_copied: bool
) -> Callable[..., Any]:
    """The first tensor that a module gives; and where that, times a factor, is added to the stream, the stream with it."""

    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        run = active_run()
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


def _turning(path: str, found: Sequence[tuple[str, ...]]) -> Callable[..., Any]:
    """The angles of a rotation, from its cosines and sines."""

    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        run = active_run()
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


def _routing(path: str, found: Sequence[tuple[str, ...]]) -> Callable[..., Any]:
    """The weights of all experts, from a router's choice of some."""

    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        run = active_run()
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


def _catching(path: str) -> Callable[..., Any]:
    """What an attention is called with, for a run that wants to know."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        run = active_run()
        if run is not None and run.catches is not None:
            run.catches(path, run.call_number(path, "catch"), args, kwargs)

    return hook


def _entering(module: nn.Module, args: tuple[Any, ...]) -> None:
    if (run := active_run()) is not None:
        run.inside += 1


def _leaving(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    if (run := active_run()) is not None:
        run.inside -= 1


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
