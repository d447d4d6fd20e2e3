"""Attach hooks and our attention function to a model for one call.

with attached(module, layout, backend, run):   eval mode, with our attention and hooks that serve one run
    module(...)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from xformer.adapters.capture_backends import Backend, register
from xformer.adapters.module_map import ModuleMap, Side, Tap, routing
from xformer.adapters.probe import ActiveRun, active_run, running
from xformer.program.module_state import LOCK, parts_of, preserve_state


@contextmanager
def attached(module: nn.Module, layout: ModuleMap, backend: Backend, run: ActiveRun) -> Iterator[None]:
    """Attach our attention function, and hooks that serve only `run`, to a model."""
    with preserve_state(module), running(run):
        with LOCK:
            if backend == "attention_function":
                set_function(module)
            handles = set_taps(module, layout, run) if backend != "returned_weights" else []
        try:
            yield
        finally:
            with LOCK:
                for handle in handles:
                    handle.remove()


def set_function(module: nn.Module) -> None:
    """Make a Transformers model call our attention function. Raises `ValueError` if the model does not support it."""
    name = register(
        like_sdpa=getattr(module.config, "_attn_implementation", None) in ("sdpa", register(like_sdpa=True))
    )
    module.set_attn_implementation(name)  # type: ignore[operator]
    for part in parts_of(module):  # a copied block has its own configuration, which the call above does not reach
        if not isinstance(part, nn.Module) and hasattr(part, "_attn_implementation"):
            part._attn_implementation = name


def set_taps(model: nn.Module, layout: ModuleMap, run: ActiveRun) -> list[RemovableHandle]:
    """Register hooks that hand the activations of a layout to one run, and return their handles.

    Another thread may run the model meanwhile, so each hook checks whether the pass belongs to this run. While hooks are added
    or removed, PyTorch may call one without keyword arguments, but never in a pass of this run.
    """
    by_call: dict[tuple[str, Side, int], list[Tap]] = defaultdict(list)
    for tap in layout.taps:
        by_call[tap.module, "out" if tap.side == "adds" else tap.side, tap.number].append(tap)

    def hook(path: str, side: Side) -> Callable[..., Any]:
        def called(module: nn.Module, args: tuple[Any, ...], last: Any = None) -> Any:
            if active_run() is not run:
                return None
            taps = by_call.get((path, side, run.call_number(path, side)))
            if not taps:
                return None
            with run.aside():
                return _TAP_HANDLERS[side](run, taps, args, last)

        return called

    def entering(path: str) -> Callable[..., None]:
        def called(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
            if active_run() is run and run.on_call is not None:
                run.on_call(path, run.call_number(path, "catch"), args, kwargs or {})

        return called

    handles: list[RemovableHandle] = []
    hooked: list[tuple[str, Side]] = [(path, side) for path, side, _ in by_call]
    for path, side in dict.fromkeys(hooked):
        module = model.get_submodule(path)
        if side == "in":
            handles.append(module.register_forward_pre_hook(hook(path, side), with_kwargs=True))
        else:
            handles.append(module.register_forward_hook(hook(path, side)))
    if run.on_call is not None:
        for path in layout.owners:
            handles.append(model.get_submodule(path).register_forward_pre_hook(entering(path), with_kwargs=True))
    return handles


def _tap_input(run: ActiveRun, taps: list[Tap], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pass the first floating-point input of a module through the tape."""
    places: list[Any] = [*range(len(args)), *kwargs]
    given = dict(zip(places, (*args, *kwargs.values()), strict=True))
    at = next((one for one in places if isinstance(given[one], Tensor) and given[one].is_floating_point()), None)
    if at is None:
        return None
    changed = _apply_tape(run, taps, given[at])
    if changed is given[at]:
        return None
    given[at] = changed
    return tuple(given[one] for one in range(len(args))), {name: given[name] for name in kwargs}


def _tap_output(run: ActiveRun, taps: list[Tap], args: tuple[Any, ...], output: Any) -> Any:
    """Pass a module's first output through the tape, then the stream to which that output, times a factor, is added."""
    factor = next((tap.factor for tap in taps if tap.factor != 1.0), 1.0)
    first = output if isinstance(output, Tensor) else output[0]
    added = first if factor == 1.0 else first * factor
    changed = _apply_tape(run, [tap for tap in taps if tap.side == "out"], added)
    for tap in taps:
        if tap.side == "adds":
            changed = _tap_stream(run, tap.name, changed)
        elif tap.name.endswith(".resid_post"):
            run.kept.pop(tap.name.rpartition(".")[0], None)
    if changed is added:
        return None
    changed = changed / factor
    if isinstance(output, Tensor):
        return changed
    if isinstance(output, tuple | list):
        return type(output)((changed, *output[1:]))
    output[next(iter(output.keys()))] = changed  # an output object of Transformers
    return output


def _tap_stream(run: ActiveRun, name: str, adds: Tensor) -> Tensor:
    """Pass the sum of stream and summand through the tape, and return the summand that yields the tape's value."""
    block = name.rpartition(".")[0]
    stream = run.kept.get(block)
    if stream is None:
        return adds
    total = stream + adds.reshape(stream.shape)
    changed = _pass(run, name, total)
    run.kept[block] = changed
    return adds if changed is total else (changed - stream).reshape(adds.shape)


def _tap_angles(run: ActiveRun, taps: list[Tap], args: tuple[Any, ...], output: Any) -> Any:
    """Pass rotation angles through the tape, from cosines and sines."""
    cosine, sine = output[0], output[1]
    angles = torch.atan2(sine, cosine)
    changed = _apply_tape(run, taps, angles)
    if changed is angles:
        return None
    length = torch.hypot(cosine, sine)
    return (changed.cos() * length, changed.sin() * length)


def _tap_experts(run: ActiveRun, taps: list[Tap], args: tuple[Any, ...], output: Any) -> Any:
    """Pass the weights of all experts through the tape, from a router's top-k choice."""
    positions = routing(output)
    if positions is None:
        return None
    scores, weights, chosen = (output[at] for at in positions)
    every = weights.new_zeros(*weights.shape[:-1], scores.shape[-1]).scatter(-1, chosen, weights)  # [token, expert]
    changed = _apply_tape(run, taps, every)
    if changed is every:
        return None
    values = list(output)
    values[positions[1]], values[positions[2]] = changed.topk(chosen.shape[-1], dim=-1)
    return type(output)(values)


_TAP_HANDLERS = {"in": _tap_input, "out": _tap_output, "angles": _tap_angles, "experts": _tap_experts}
"""The handler of each side of a tap; it returns None to leave the module's inputs or output unchanged."""


def _apply_tape(run: ActiveRun, taps: list[Tap], value: Tensor) -> Tensor:
    """Pass a value through the tape as [batch, pos, width]; some families flatten batch and position."""
    for name in (tap.name for tap in taps):
        is_flat = value.dim() == 2 and name.rpartition(".")[2] != "pos_embed"
        shown = value.unflatten(0, (run.n_batch, -1)) if is_flat else value
        if name.endswith("pos_embed") and value.dim() == 3 and len(value) == 1:
            shown = value[0]
        changed = _pass(run, name, shown)
        if changed is not shown:
            value = changed.reshape(value.shape)
        if name.endswith((".resid_pre", ".resid_mid", ".resid_cross")):
            run.kept[name.rpartition(".")[0]] = value
    return value


def _pass(run: ActiveRun, name: str, value: Tensor) -> Tensor:
    """Pass a value through the tape with the batch first."""
    if not run.is_positions_first or value.dim() != 3:
        return run.tape(name, value)
    turned = value.transpose(0, 1)
    changed = run.tape(name, turned)
    return value if changed is turned else changed.transpose(0, 1)
