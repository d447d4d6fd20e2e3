"""Copies of a module that share its weights, and runs that leave the random state as it was."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from xformer.errors import InputError
from xformer.formatting import error_message


class _DetachedCopies(TorchFunctionMode):
    """Copies tensors without their graph: `deepcopy` refuses the results of a training step that a module keeps."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            value, memo = args
            return memo.setdefault(id(value), value.detach().clone())
        return func(*args, **(kwargs or {}))


def copied(model: nn.Module, kept: Iterable[Any] = ()) -> nn.Module:
    """Copy a module, except the objects in `kept`. Values that cannot be copied, such as a lock or a file, are shared."""
    memo: dict[int, Any] = {id(one): one for one in kept}
    with _DetachedCopies():
        try:
            return copy.deepcopy(model, dict(memo))
        except Exception:  # a module may hold anything
            _share_uncopyable(model, memo, set())
        try:
            return copy.deepcopy(model, memo)
        except Exception as error:
            what = f"{type(model).__name__} cannot be copied, and the checks need a copy"
            raise InputError(f"{what}: {error_message(error, 150)}") from error


def _share_uncopyable(value: Any, memo: dict[int, Any], seen: set[int]) -> None:
    """Enter into `memo` the values inside `value` that cannot be copied; modules are never shared."""
    if id(value) in seen or _is_copyable(value, memo):
        return
    seen.add(id(value))
    if isinstance(value, torch.Generator):
        memo[id(value)] = value.clone_state()
        return
    parts = list(value.values()) if isinstance(value, Mapping) else []
    parts += list(value) if isinstance(value, list | tuple | set | frozenset | deque) else []
    for part in [*parts, *getattr(value, "__dict__", {}).values()]:
        _share_uncopyable(part, memo, seen)
    if not isinstance(value, nn.Module) and not _is_copyable(value, memo):
        memo[id(value)] = value


def _is_copyable(value: Any, memo: dict[int, Any]) -> bool:
    try:
        copy.deepcopy(value, dict(memo))
    except Exception:  # `deepcopy` passes on whatever the value raises
        return False
    return True


def with_shared_weights(model: nn.Module) -> nn.Module:
    """Copy the modules and buffers, in eval mode, sharing the parameters."""
    return copied(model, model.parameters()).eval()


@contextmanager
def own_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the random state inside the context, and restore the caller's afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def converted(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Copy a module with its weights, in another type; complex buffers stay complex."""
    module, kept = copied(module), list[tuple[nn.Module, str, Tensor]]()
    for owner in module.modules():
        kept += [(owner, name, one) for name, one in owner.named_buffers(recurse=False) if one.is_complex()]
    for owner, name, _ in kept:  # `to` would drop the imaginary parts of angles
        setattr(owner, name, None)
    module.to(dtype)
    for owner, name, one in kept:
        setattr(owner, name, one.to(torch.complex128) if dtype == torch.float64 else one)
    return module
