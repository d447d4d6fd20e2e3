"""Attach hooks and our attention function to a model for one call, and leave the model as it was found.

    with attached(module, layout, backend, run):   eval mode, with our attention and hooks that serve one run
        module(...)
    with left_as_found(module):                    eval mode alone

Restored afterwards: mode, attributes, configurations, buffers, hooks, random state. Threads may share a model: it is restored
when the last of them is done. What is cached about a model between calls (`remembered`) does not keep it alive.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from xformer.adapters.capture_backends import Backend, register
from xformer.adapters.layout import Layout, Side, dense, routing, sparse
from xformer.adapters.probe import ActiveRun, active_run, running

T = TypeVar("T")
SEED = 0
"""The seed for models that draw random numbers in eval mode, as masked autoencoders do: every read draws the same ones."""
_LOCK = threading.RLock()
_OWN = vars(nn.Module()).keys() - {"training"}
"""What PyTorch itself keeps in a module: parameters, buffers, children, hooks."""


@dataclass
class _Held:
    """The saved state of a module or configuration, shared by all calls that use it."""

    owner: Any
    n_holders: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)
    contents: list[tuple[Any, Any]] = field(default_factory=list)
    """The containers among the attributes, each with a copy; a forward pass may add to them."""
    members: set[str] = field(default_factory=set)
    """The names of a module's parameters, buffers and children."""
    buffers: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Each buffer and a copy of it."""
    hooks: list[tuple[dict[Any, Any], set[Any]]] = field(default_factory=list)
    """A module's hook dictionaries, each with its keys; Transformers adds hooks when attention is requested."""

    def save(self) -> None:
        self.attributes = _attributes_of(self.owner)
        self.contents = list(_containers(list(self.attributes.values()), set()))
        if isinstance(self.owner, nn.Module):
            self.members = _members_of(self.owner)
            own = {name: value for name, value in vars(self.owner).items() if name in _OWN and "hooks" in name}
            self.hooks = [(value, set(value)) for value in own.values() if isinstance(value, dict)]
            self.buffers = {name: (one, one.clone()) for name, one in self.owner.named_buffers(recurse=False)}

    @torch.no_grad()
    def restore(self) -> None:
        if isinstance(self.owner, nn.Module):
            for name in _members_of(self.owner) - self.members:
                delattr(self.owner, name)
            for hooks, before in self.hooks:
                for key in hooks.keys() - before:
                    del hooks[key]
        now = vars(self.owner)
        for name in _attributes_of(self.owner).keys() - self.attributes.keys():
            del now[name]
        for name, value in self.attributes.items():
            if name not in now or now[name] is not value:
                now[name] = value
        for container, before in self.contents:
            if isinstance(container, list):
                container[:] = before
            else:
                container.clear()
                container.update(before)
        for name, (buffer, copy) in self.buffers.items():
            if getattr(self.owner, name, None) is not buffer:
                setattr(self.owner, name, buffer)
            if not torch.equal(buffer, copy):
                buffer.copy_(copy)


def _attributes_of(owner: Any) -> dict[str, Any]:
    """All attributes of a configuration; of a module those that PyTorch does not manage."""
    is_module = isinstance(owner, nn.Module)
    return {name: value for name, value in vars(owner).items() if not (is_module and name in _OWN)}


def _members_of(module: nn.Module) -> set[str]:
    named = (module.named_parameters(recurse=False), module.named_buffers(recurse=False), module.named_children())
    return {name for members in named for name, _ in members}


def _containers(values: list[Any], seen: set[int]) -> Iterator[tuple[Any, Any]]:
    """Every list, dictionary and set among `values`, nested ones included, with a copy of its contents."""
    for value in values:
        if not isinstance(value, list | dict | set) or id(value) in seen:
            continue
        seen.add(id(value))
        before = set(value) if isinstance(value, set) else dict(value) if isinstance(value, dict) else list(value)
        yield value, before
        yield from _containers(list(before.values() if isinstance(before, dict) else before), seen)


_HELD: dict[int, _Held] = {}
"""Saved states by object identity; empty while no call runs."""


@contextmanager
def left_as_found(module: nn.Module) -> Iterator[None]:
    """Put a model into eval mode, and restore afterwards what a forward pass or an attachment may have changed."""
    parts = _parts_of(module)
    with _LOCK:
        for part in parts:
            held = _HELD.get(id(part))
            if held is None:
                held = _HELD[id(part)] = _Held(part)
                held.save()
            held.n_holders += 1
        module.eval()
    try:
        with _same_numbers(module) if memory_of(module).draws else nullcontext():
            yield
    finally:
        with _LOCK:
            for part in parts:
                held = _HELD[id(part)]
                held.n_holders -= 1
                if not held.n_holders:
                    del _HELD[id(part)]
                    held.restore()


@contextmanager
def attached(module: nn.Module, layout: Layout, backend: Backend, run: ActiveRun) -> Iterator[None]:
    """Attach our attention function and hooks that serve `run` alone to a model."""

    def run_of() -> ActiveRun | None:
        return run if active_run() is run else None

    with left_as_found(module), running(run):
        with _LOCK:
            if backend == "attention_function":
                set_function(module)
            handles = (
                set_taps(module, layout, run_of, by_softmax=backend == "softmax")
                if backend != "returned_weights"
                else []
            )
        try:
            yield
        finally:
            with _LOCK:
                for handle in handles:
                    handle.remove()


def set_function(module: nn.Module) -> None:
    """Make a Transformers model call our attention function. Raises `ValueError` if the model does not support it."""
    module.set_attn_implementation(register())  # type: ignore[operator]
    for part in _parts_of(module):  # a block that was copied has a configuration of its own, which that does not reach
        if not isinstance(part, nn.Module) and hasattr(part, "_attn_implementation"):
            part._attn_implementation = register()


@contextmanager
def _same_numbers(module: nn.Module) -> Iterator[None]:
    """Draw the same random numbers in every read, and restore the generators afterwards."""
    devices = {weight.device for weight in module.parameters() if weight.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices, key=str)):
        torch.manual_seed(SEED)
        yield


_RANDOM = {
    torch.rand, torch.rand_like, torch.randn, torch.randn_like, torch.randint, torch.randint_like, torch.randperm,
    torch.normal, torch.bernoulli, torch.multinomial, Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_, Tensor.random_,
    Tensor.exponential_, Tensor.geometric_, Tensor.multinomial, Tensor.bernoulli,
}  # fmt: skip
"""The functions that draw random numbers in eval mode too."""


class _Draws(TorchFunctionMode):
    """Notes whether this thread draws random numbers."""

    noted = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.noted = self.noted or func in _RANDOM
        return func(*args, **(kwargs or {}))


@contextmanager
def noting_draws(module: nn.Module) -> Iterator[None]:
    """Find out whether a model draws random numbers in eval mode. Only such models are seeded."""
    with _same_numbers(module) if memory_of(module).draws else nullcontext(), _Draws() as draws:
        before = torch.get_rng_state()
        yield
    if draws.noted and not memory_of(module).draws:
        memory_of(module).draws = True
        torch.set_rng_state(before)


def _parts_of(module: nn.Module) -> list[Any]:
    """The modules of a model and all their configurations, each once."""
    parts: dict[int, Any] = {}
    for part in module.modules():
        parts[id(part)] = part
        _add_config(getattr(part, "config", None), parts)
    return list(parts.values())


def _add_config(config: Any, parts: dict[int, Any]) -> None:
    if id(config) in parts or not hasattr(config, "__dict__") or isinstance(config, nn.Module | type):
        return
    parts[id(config)] = config
    for value in vars(config).values():
        if hasattr(value, "model_type"):  # a configuration of a part, as Transformers writes them
            _add_config(value, parts)


@dataclass
class Memory:
    """What is cached about one model; nothing in it keeps the model alive."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while the model is opened, so that threads open it once."""
    structure: tuple[Any, ...] = ()
    """The names and classes of its modules when the cache was filled."""
    found: dict[Any, Any] = field(default_factory=dict)
    draws: bool = False
    """Whether it draws random numbers in eval mode."""


_MEMORIES: WeakKeyDictionary[nn.Module, Memory] = WeakKeyDictionary()


def memory_of(module: nn.Module) -> Memory:
    """The cache of a model, created on first use."""
    with _LOCK:
        return _MEMORIES.setdefault(module, Memory())


def remembered(module: nn.Module, key: Any, find: Callable[[], T]) -> T:
    """Cache the result of `find` until the model's modules change; concurrent threads wait for one result."""
    memory = memory_of(module)
    structure = tuple((name, type(part)) for name, part in module.named_modules())
    with memory.lock:
        if memory.structure != structure:
            memory.structure, memory.found = structure, {}
        if key not in memory.found:
            memory.found[key] = find()
        return memory.found[key]


RunOf = Callable[[], ActiveRun | None]
"""The run that a hook serves; None if the pass belongs to another caller."""


def set_taps(model: nn.Module, layout: Layout, run_of: RunOf, *, by_softmax: bool) -> list[RemovableHandle]:
    """Register hooks for the taps of a layout.

    Another thread may run the model while hooks are added or removed; PyTorch then calls some of them without keyword
    arguments. Such calls never belong to this run.

    Args:
        module: The model.
        layout: Its layout.
        run_of: Returns the run to serve.
        by_softmax: Also count how many attention modules the run is inside.

    Returns:
        The handles.
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
    """A hook for the first floating-point input of a module."""

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
    """A hook for the first output of a module, and for the stream once the output, times `factor`, is added to it."""

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
    """The summand adjusted so that the sum equals what the tape returns for it."""
    block = name.rpartition(".")[0]
    stream = run.kept.get(block)
    if stream is None:
        return adds
    total = stream + adds.reshape(stream.shape)
    changed = run.tape(name, total)
    run.kept[block] = changed
    return adds if changed is total else (changed - stream).reshape(adds.shape)


def _turning(run_of: RunOf, path: str, found: Sequence[tuple[str, ...]]) -> Callable[..., Any]:
    """A hook for rotation angles, from cosines and sines."""

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
    """A hook for the weights of all experts, from a router's top-k choice."""

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
    """A hook that reports an attention module's arguments to the run."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        run = run_of()
        if run is not None and run.catches is not None and kwargs is not None:
            run.catches(path, run.call_number(path, "catch"), args, kwargs)

    return hook


def _counting(run_of: RunOf, step: int) -> Callable[..., Any]:
    """A hook that counts entering (+1) and leaving (−1) attention modules."""

    def hook(module: nn.Module, *_: Any) -> None:
        if (run := run_of()) is not None:
            run.inside += step

    return hook


def _through(run: ActiveRun, names: tuple[str, ...], value: Tensor) -> Tensor:
    """Pass a value through the tape as [batch, pos, width]; some families flatten batch and position."""
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
    """The model's output object with its first entry replaced."""
    name = next(iter(output.keys()))
    output[name] = changed
    return output
