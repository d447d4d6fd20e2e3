"""Attach hooks and our attention function to a model for one call, and leave the model as it was found.

    with attached(module, layout, backend, run):   eval mode, with our attention and hooks that serve one run
        module(...)
    with preserve_state(module):                    eval mode alone
    unwrapped(model)                               the model inside DDP, torch.compile and PEFT

Mode, attributes, configurations, buffers, hooks and random state are restored afterwards. Threads may share a model; it is
restored when the last of them is done. Results cached between calls (`cached`) do not keep the model alive.
"""

from __future__ import annotations

import copy
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from xformer.adapters.capture_backends import Backend, register
from xformer.adapters.module_map import ModuleMap, Side, Tap, routing
from xformer.adapters.offload import device_of, is_offloaded
from xformer.adapters.probe import ActiveRun, active_run, running
from xformer.errors import InputError, UnavailableError

T = TypeVar("T")
SEED = 0
"""The seed for models that draw random numbers in eval mode, like masked autoencoders, so that every run draws the same."""
_LOCK = threading.RLock()


class _SavedState:
    """The saved state of a module or configuration, shared by all calls that use it."""

    def __init__(self, owner: Any) -> None:
        self.owner, self.n_holders = owner, 0
        self.attributes = dict(vars(owner))
        self.contents = list(_containers(list(self.attributes.values()), set()))  # includes its hooks
        buffers = owner.buffers(recurse=False) if isinstance(owner, nn.Module) else ()
        self.buffers = [(one, one.clone()) for one in buffers]
        if isinstance(owner, nn.Embedding) and owner.max_norm is not None:  # a lookup rescales rows of its weight
            self.buffers.append((owner.weight.data, owner.weight.detach().clone()))

    @torch.no_grad()
    def restore(self) -> None:
        """Restore what has changed and leave the rest alone, as another thread may be using it."""
        now = vars(self.owner)
        for name in now.keys() - self.attributes.keys():
            del now[name]
        for name, value in self.attributes.items():
            if name not in now or now[name] is not value:
                now[name] = value
        for container, before in self.contents:
            if _ids(container) == _ids(before):
                continue
            if isinstance(container, list):
                container[:] = before
            elif isinstance(container, set):
                container.intersection_update(before)
                container.update(before)
            else:
                for key in container.keys() - before.keys():  # such as a hook; a thread may be using the other keys
                    del container[key]
                if list(container) != list(before):
                    container.clear()
                container.update(before)
        for buffer, before in self.buffers:
            if not torch.equal(buffer, before):
                buffer.copy_(before)


def _ids(container: Any) -> list[int]:
    """The ids of the objects in a list, set or dictionary, keys and values included."""
    return [id(one) for one in ((*container, *container.values()) if isinstance(container, dict) else container)]


def _containers(values: list[Any], seen: set[int]) -> Iterator[tuple[Any, Any]]:
    """Every list, dictionary and set among `values`, nested ones included, with a copy of its contents."""
    for value in values:
        if not isinstance(value, list | dict | set) or id(value) in seen:
            continue
        seen.add(id(value))
        before = set(value) if isinstance(value, set) else dict(value) if isinstance(value, dict) else list(value)
        yield value, before
        yield from _containers(list(before.values() if isinstance(before, dict) else before), seen)


def on_device(inputs: Any, module: nn.Module) -> Any:
    """Copies of inputs on the device of a module's parameters."""
    return copied(inputs, device_of(module))


def copied(inputs: Any, device: torch.device | None = None) -> Any:
    """Copies of inputs and of all tensors within them, such as those of a cache; on their own device if none is given.

    A model may change its inputs in place, but they belong to the caller. Raises `InputError` for an input that has no copy.
    """
    memo: dict[int, Any] = {}
    _copy_tensors(inputs, device, memo, set())
    try:
        return copy.deepcopy(inputs, memo)
    except Exception as error:  # such as a generator or a lock
        raise InputError(f"A model may change its inputs, and one of these cannot be copied: {error}.") from error


def _copy_tensors(value: Any, device: torch.device | None, memo: dict[int, Any], seen: set[int]) -> None:
    """Add a copy of each tensor within a value to the memo of `copy.deepcopy`, which refuses tensors with a graph."""
    if id(value) in seen or isinstance(value, str | int | float | type(None)):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        memo[id(value)] = value.to(value.device if device is None else device, copy=True)  # no tensor of inference mode
    elif isinstance(value, nn.Module):
        memo[id(value)] = value  # part of a model, not of an input
    else:
        within = list(value.values()) if isinstance(value, Mapping) else []
        within += list(value) if isinstance(value, list | tuple | set) else []
        for one in (*within, *getattr(value, "__dict__", {}).values()):
            _copy_tensors(one, device, memo, seen)


EXPORTED = (
    "An exported program is a graph without modules in which attention could be observed; read the module that it was exported "
    "from."
)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DataParallel, DDP, `torch.compile` and PEFT adapters. PEFT's prompt-learning models stay wrapped.

    Raises:
        UnavailableError: It is sharded by FSDP, or was exported by `torch.export`.
        InputError: It has no weights yet.
    """
    if type(model).__name__ == "UnflattenedModule" or {"eval", "_graph"} <= vars(model).keys():  # of torch.export
        raise UnavailableError(EXPORTED)
    if {weight.device.type for weight in model.parameters()} == {"meta"} and not any(
        map(is_offloaded, model.modules())
    ):
        raise InputError(f"{type(model).__name__} has no weights: they are on PyTorch's meta device; load them first.")
    kinds = {type(part).__name__ for part in (*model.modules(), *model.parameters())}
    if kinds & {"FullyShardedDataParallel", "DTensor"}:  # importing the classes takes a second
        raise UnavailableError(
            f"Weight matrices are read whole, but FSDP shards those of {type(model).__name__}; use "
            "DistributedDataParallel, or pass a gathered copy."
        )
    while True:
        inner = None
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        elif type(model).__name__ == "OptimizedModule":  # the wrapper of torch.compile
            inner = next(model.children())
        elif not getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", True):
            inner = model.get_base_model()  # type: ignore[operator]
        if not isinstance(inner, nn.Module) or inner is model:
            return model
        model = inner


_SAVED: dict[int, _SavedState] = {}
"""Saved states by object identity; empty while no call runs."""
_UNCOMPILED = ExitStack()
_n_uncompiled = 0


@contextmanager
def uncompiled() -> Iterator[None]:
    """Disable compilation inside, as hooks that serve one run would be compiled again in every run. Threads may overlap."""
    global _n_uncompiled
    with _LOCK:
        if not _n_uncompiled:
            _UNCOMPILED.enter_context(torch.compiler.set_stance("force_eager"))
        _n_uncompiled += 1
    try:
        yield
    finally:
        with _LOCK:
            _n_uncompiled -= 1
            if not _n_uncompiled:
                _UNCOMPILED.close()


@contextmanager
def preserve_state(module: nn.Module) -> Iterator[None]:
    """Put a model into eval mode, and restore afterwards what a forward pass or an attachment may have changed."""
    parts = _parts_of(module)
    with _LOCK:
        for part in parts:
            saved = _SAVED.get(id(part))
            if saved is None:
                saved = _SAVED[id(part)] = _SavedState(part)
            saved.n_holders += 1
        module.eval()
    try:
        with uncompiled(), _fixed_seed(module) if cache_of(module).is_random else nullcontext():
            yield
    finally:
        with _LOCK:
            for part in parts:
                saved = _SAVED[id(part)]
                saved.n_holders -= 1
                if not saved.n_holders:
                    del _SAVED[id(part)]
                    saved.restore()


@contextmanager
def attached(module: nn.Module, layout: ModuleMap, backend: Backend, run: ActiveRun) -> Iterator[None]:
    """Attach our attention function, and hooks that serve only `run`, to a model."""
    with preserve_state(module), running(run):
        with _LOCK:
            if backend == "attention_function":
                set_function(module)
            handles = set_taps(module, layout, run) if backend != "returned_weights" else []
        try:
            yield
        finally:
            with _LOCK:
                for handle in handles:
                    handle.remove()


def set_function(module: nn.Module) -> None:
    """Make a Transformers model call our attention function. Raises `ValueError` if the model does not support it."""
    name = register(
        like_sdpa=getattr(module.config, "_attn_implementation", None) in ("sdpa", register(like_sdpa=True))
    )
    module.set_attn_implementation(name)  # type: ignore[operator]
    for part in _parts_of(module):  # a copied block has its own configuration, which the call above does not reach
        if not isinstance(part, nn.Module) and hasattr(part, "_attn_implementation"):
            part._attn_implementation = name


@contextmanager
def _fixed_seed(module: nn.Module) -> Iterator[None]:
    """Draw the same random numbers in every run, and restore the generators afterwards."""
    devices = {weight.device for weight in module.parameters() if weight.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices, key=str)):
        torch.manual_seed(SEED)
        yield


_RANDOM = {
    torch.rand, torch.rand_like, torch.randn, torch.randn_like, torch.randint, torch.randint_like, torch.randperm,
    torch.normal, torch.bernoulli, torch.multinomial, Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_, Tensor.random_,
    Tensor.exponential_, Tensor.geometric_, Tensor.multinomial, Tensor.bernoulli,
}  # fmt: skip
"""Functions that draw random numbers even in eval mode."""


class _RandomnessDetector(TorchFunctionMode):
    """Records whether this thread draws random numbers."""

    found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.found or func in _RANDOM
        return func(*args, **(kwargs or {}))


@contextmanager
def detect_randomness(module: nn.Module) -> Iterator[None]:
    """Detect, within `preserve_state`, whether a model draws random numbers in eval mode. Only such models are seeded."""
    before = torch.get_rng_state()
    with _RandomnessDetector() as detector:
        yield
    if detector.found and not cache_of(module).is_random:
        cache_of(module).is_random = True
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
        if hasattr(value, "model_type"):  # a nested configuration of Transformers
            _add_config(value, parts)


@dataclass
class ModelCache:
    """The cache of one model; nothing in it keeps the model alive."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while the model is opened, so that threads open it once."""
    structure: tuple[Any, ...] = ()
    """The names and classes of its modules when the cache was filled."""
    found: dict[Any, Any] = field(default_factory=dict)
    is_random: bool = False
    """Whether the model draws random numbers in eval mode."""


_CACHES: WeakKeyDictionary[nn.Module, ModelCache] = WeakKeyDictionary()


def cache_of(module: nn.Module) -> ModelCache:
    """The cache of a model, created on first use."""
    with _LOCK:
        return _CACHES.setdefault(module, ModelCache())


def cached(module: nn.Module, key: Any, find: Callable[[], T]) -> T:
    """Cache the result of `find` until the model's modules change; concurrent threads wait for one result."""
    cache = cache_of(module)
    structure = tuple((name, type(part)) for name, part in module.named_modules())
    with cache.lock:
        if cache.structure != structure:
            cache.structure, cache.found = structure, {}
        if key not in cache.found:
            cache.found[key] = find()
        return cache.found[key]


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
    added = first
    if factor != 1.0:
        added = first * factor
    elif any(tap.is_changed_later for tap in taps):
        added = first.clone()
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
