"""Run a module and leave it as it was found.

    with preserve_state(module):                   eval mode
    unwrapped(model)                               the model inside DDP, torch.compile and PEFT

Mode, attributes, configurations, tensors other than parameters, hooks and random state are restored afterwards. Threads may
share a model; it is restored when the last of them is done. Results cached between calls (`cached`) do not keep it alive.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from xformer.errors import InputError, UnavailableError
from xformer.program.offload import device_of, is_offloaded

T = TypeVar("T")
SEED = 0
"""The seed for models that draw random numbers in eval mode, like masked autoencoders, so that every run draws the same."""
LOCK = threading.RLock()


class _SavedState:
    """The saved state of a module or configuration, shared by all calls that use it."""

    def __init__(self, owner: Any) -> None:
        self.owner, self.n_holders = owner, 0
        self.attributes = dict(vars(owner))
        self.is_training = getattr(owner, "training", None)  # a scripted module does not have it among its attributes
        self.contents = list(_containers(list(self.attributes.values()), set()))  # includes its hooks
        held = [self.attributes, *(before for _, before in self.contents)]
        every = [one for values in held for one in (values.values() if isinstance(values, dict) else values)]
        tensors = {id(one): one for one in every if isinstance(one, Tensor) and not isinstance(one, nn.Parameter)}
        if isinstance(owner, nn.Embedding) and owner.max_norm is not None:  # a lookup rescales rows of its weight
            tensors[id(owner)] = owner.weight.data
        self.tensors = [(one, one.detach().clone()) for one in tensors.values()]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore what has changed and leave the rest alone, as another thread may be using it."""
        now = vars(self.owner)
        if isinstance(self.owner, nn.Module) and self.owner.training != self.is_training:
            self.owner.training = bool(self.is_training)
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
        for tensor, before in self.tensors:
            if not torch.equal(tensor, before):
                with torch.inference_mode(tensor.is_inference()):
                    tensor.copy_(before)


def _ids(container: Any) -> list[int]:
    """The ids of the objects in a list, set or dictionary, keys and values included."""
    return [id(one) for one in ((*container, *container.values()) if isinstance(container, dict) else container)]


_CONTAINERS = (list, dict, set)


def _containers(values: list[Any], seen: set[int]) -> Iterator[tuple[Any, Any]]:
    """Every list, dictionary and set among `values`, nested ones included, with a copy of its contents."""
    for value in values:
        if not isinstance(value, _CONTAINERS) or id(value) in seen:
            continue
        seen.add(id(value))
        before = set(value) if isinstance(value, set) else dict(value) if isinstance(value, dict) else list(value)
        yield value, before
        if before:
            yield from _containers(list(before.values() if isinstance(before, dict) else before), seen)


def on_device(inputs: Any, module: nn.Module) -> Any:
    """Copies of inputs on the device of a module's parameters."""
    return copied(inputs, device_of(module))


def copied(inputs: Any, device: torch.device | None = None) -> Any:
    """Copies of inputs and of all tensors within them, such as those of a cache; on their own device if none is given.

    A model may change its inputs in place, but they belong to the caller. Raises `InputError` for an input that has no copy.
    """
    memo: dict[int, Any] = {}
    for one in held_by(inputs, set()):  # `copy.deepcopy` refuses tensors with a graph; a module is no part of an input
        memo[id(one)] = one.to(one.device if device is None else device, copy=True) if isinstance(one, Tensor) else one
    try:
        return copy.deepcopy(inputs, memo)
    except Exception as error:  # such as a generator or a lock
        raise InputError(f"A model may change its inputs, and one of these cannot be copied: {error}.") from error


def held_by(value: Any, seen: set[int]) -> Iterator[Tensor | nn.Module]:
    """The tensors and modules in containers and in the attributes of any object, such as a cache."""
    if id(value) in seen or isinstance(value, str | int | float | type(None)):
        return
    seen.add(id(value))
    if isinstance(value, Tensor | nn.Module):
        yield value
        return
    within = list(value.values()) if isinstance(value, Mapping) else []
    within += list(value) if isinstance(value, list | tuple | set) else []
    for one in (*within, *getattr(value, "__dict__", {}).values()):
        yield from held_by(one, seen)


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
    with LOCK:
        if not _n_uncompiled:
            _UNCOMPILED.enter_context(torch.compiler.set_stance("force_eager"))
        _n_uncompiled += 1
    try:
        yield
    finally:
        with LOCK:
            _n_uncompiled -= 1
            if not _n_uncompiled:
                _UNCOMPILED.close()


@contextmanager
def preserve_state(module: nn.Module) -> Iterator[None]:
    """Put a model into eval mode, and restore afterwards what a forward pass or an attachment may have changed."""
    parts = parts_of(module)
    with LOCK:
        for part in parts:
            saved = _SAVED.get(id(part))
            if saved is None:
                saved = _SAVED[id(part)] = _SavedState(part)
            saved.n_holders += 1
        module.eval()
    try:
        with uncompiled(), fixed_seed(module) if cache_of(module).is_random else nullcontext():
            yield
    finally:
        with LOCK:
            for part in parts:
                saved = _SAVED[id(part)]
                saved.n_holders -= 1
                if not saved.n_holders:
                    del _SAVED[id(part)]
                    saved.restore()


@contextmanager
def fixed_seed(module: nn.Module) -> Iterator[None]:
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


def draws_random_numbers(module: nn.Module) -> bool:
    """Whether the module was found to draw random numbers in eval mode."""
    return cache_of(module).is_random


def parts_of(module: nn.Module) -> list[Any]:
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
    with LOCK:
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
